"""Completions that wait to be learned from, with the version of the weights that sampled them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from rlhf.errors import CheckpointError, ConfigError, TrainingError
from rlhf.rollout.types import Completion

KEYS = tuple(field.name for field in fields(Completion))


@dataclass(frozen=True, slots=True)
class RolloutGroup:
    """The completions of one prompt."""

    prompt_id: str
    completions: list[Completion]
    """At least one."""

    def __post_init__(self) -> None:
        assert self.completions, f"group {self.prompt_id} has no completions"

    @property
    def weight_version(self) -> int:
        """The oldest version that sampled any of it."""
        return min(completion.weight_version for completion in self.completions)


class StalenessBuffer:
    """First in, first out; it gives out nothing that is older than it may be."""

    def __init__(self, *, max_staleness: int) -> None:
        """An empty buffer.

        Args:
            max_staleness: Versions of the weights between a group's sampling and its learning, at most.
        """
        if max_staleness < 0:
            raise ConfigError(f"max_staleness is {max_staleness}; wanted 0 or more.")
        self.max_staleness = max_staleness
        self._groups: deque[RolloutGroup] = deque()

    def __len__(self) -> int:
        return len(self._groups)

    def __iter__(self) -> Iterator[RolloutGroup]:
        return iter(self._groups)

    def add(self, groups: Sequence[RolloutGroup]) -> None:
        """Put groups at the end."""
        self._groups.extend(groups)

    def take(self, prompt_ids: Sequence[str], *, weight_version: int) -> list[list[Completion]]:
        """Remove and return the oldest groups' completions.

        Args:
            prompt_ids: Whose they must be, in order.
            weight_version: Of the trainer that will learn from them.

        Raises:
            TrainingError: They are of other prompts, there are too few, or one is too old.
        """
        groups = [self._groups.popleft() for _ in range(min(len(prompt_ids), len(self._groups)))]
        if [group.prompt_id for group in groups] != list(prompt_ids):
            raise TrainingError(
                f"The pending completions are for other prompts ({len(groups)}, the first "
                f"{groups[0].prompt_id if groups else 'missing'!r}) than those of the rollout ({len(prompt_ids)}, the first "
                f"{prompt_ids[0]!r}). Was the data changed since the checkpoint?"
            )
        oldest = min((group.weight_version for group in groups), default=weight_version)
        if weight_version - oldest > self.max_staleness:
            raise TrainingError(
                f"The pending completions are from weights of version {oldest}, the trainer is at version {weight_version}, and they "
                f"may be at most {self.max_staleness} behind."
            )
        return [group.completions for group in groups]

    def clear(self) -> None:
        """Forget all groups."""
        self._groups.clear()

    def state_dict(self) -> list[dict[str, Any]]:
        """Plain lists and numbers: ``torch.load(weights_only=True)`` takes them."""
        return [
            {
                "prompt_id": group.prompt_id,
                # not asdict, which copies every list of tokens
                "completions": [{key: getattr(completion, key) for key in KEYS} for completion in group.completions],
            }
            for group in self._groups
        ]

    def load_state_dict(self, state: Sequence[Mapping[str, Any]]) -> None:
        """Hold what ``state_dict`` gave.

        Raises:
            CheckpointError: The state is not one of a buffer.
        """
        try:
            groups = [
                RolloutGroup(saved["prompt_id"], [Completion(**c) for c in saved["completions"]]) for saved in state
            ]
        except (KeyError, TypeError, AssertionError) as err:
            raise CheckpointError(f"This is not the state of a rollout buffer: {type(err).__name__}: {err}.") from err
        self._groups = deque(groups)
