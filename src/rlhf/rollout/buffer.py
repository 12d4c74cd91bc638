"""Completions that wait to be learned from, with the version of the weights that sampled them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
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


@dataclass(slots=True, kw_only=True)
class WaitingRollout:
    """One that was begun and not learned from."""

    rollout_index: int
    version: int
    """Of the weights that sample it."""
    prompt_ids: list[str]
    fingerprint: str | None = None
    """Of those weights, where it is compared."""
    groups: list[RolloutGroup] | None = None
    """One for each prompt; None while they are sampled."""
    figures: dict[str, float] = field(default_factory=dict)
    """What the sampler reported with it."""

    def state_dict(self) -> dict[str, Any]:
        """Plain lists and numbers: ``torch.load(weights_only=True)`` takes them. Only of one that is complete."""
        assert self.groups is not None, f"rollout {self.rollout_index} is still sampled"
        return {
            "rollout_index": self.rollout_index,
            "version": self.version,
            "figures": dict(self.figures),
            "groups": [
                {
                    "prompt_id": group.prompt_id,
                    # not asdict, which copies every list of tokens
                    "completions": [
                        {key: getattr(completion, key) for key in KEYS} for completion in group.completions
                    ],
                }
                for group in self.groups
            ],
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> WaitingRollout:
        """What ``state_dict`` was taken of.

        Raises:
            CheckpointError: It is not a state of one.
        """
        try:
            groups = [
                RolloutGroup(saved["prompt_id"], [Completion(**c) for c in saved["completions"]])
                for saved in state["groups"]
            ]
            return cls(
                rollout_index=state["rollout_index"], version=state["version"], figures=dict(state["figures"]),
                prompt_ids=[group.prompt_id for group in groups], groups=groups,
            )  # fmt: skip
        except (KeyError, TypeError, AssertionError) as err:
            raise CheckpointError(
                f"The checkpoint's pending rollouts can't be read ({type(err).__name__}: {err}); go on with the version of this package "
                "that wrote it, or from the beginning."
            ) from err


class StalenessBuffer:
    """Rollouts, first in first out; it gives out nothing that is older than it may be."""

    def __init__(self, *, max_staleness: int) -> None:
        """An empty buffer.

        Args:
            max_staleness: Versions of the weights between a group's sampling and its learning, at most.
        """
        if max_staleness < 0:
            raise ConfigError(f"max_staleness is {max_staleness}; wanted 0 or more.")
        self.max_staleness = max_staleness
        self._rollouts: deque[WaitingRollout] = deque()

    def __len__(self) -> int:
        return len(self._rollouts)

    def __iter__(self) -> Iterator[WaitingRollout]:
        return iter(self._rollouts)

    def add(self, rollout: WaitingRollout) -> None:
        """Put one at the end."""
        self._rollouts.append(rollout)

    def take(self, rollout_index: int, prompt_ids: Sequence[str]) -> WaitingRollout:
        """Remove and return the oldest one, which must be complete.

        Args:
            rollout_index: Which one it must be; the trainer that will learn from it is at the version of the same number.
            prompt_ids: Whose completions it must have, in order.

        Raises:
            TrainingError: It is another one, of other prompts, or too old.
        """
        first = next(iter(self._rollouts), None)
        if first is None or first.rollout_index != rollout_index or first.prompt_ids != list(prompt_ids):
            pending = "no rollout" if first is None else f"rollout {first.rollout_index} of {first.prompt_ids[:1]} ..."
            raise TrainingError(
                f"The pending completions are of {pending}, and wanted is rollout {rollout_index} of {list(prompt_ids)[:1]} ... "
                f"({len(prompt_ids)} prompts). Was the data changed since the checkpoint?"
            )
        assert first.groups is not None, f"rollout {rollout_index} is still sampled"
        oldest = min((group.weight_version for group in first.groups), default=rollout_index)
        if rollout_index - oldest > self.max_staleness:
            raise TrainingError(
                f"The pending completions are from weights of version {oldest}, the trainer is at version {rollout_index}, and they "
                f"may be at most {self.max_staleness} behind."
            )
        return self._rollouts.popleft()

    def clear(self) -> None:
        """Forget all of them."""
        self._rollouts.clear()

    def load_state_dict(self, state: Sequence[Mapping[str, Any]]) -> None:
        """Hold what the rollouts' ``state_dict`` gave.

        Raises:
            CheckpointError: The state is not one of rollouts.
        """
        self._rollouts = deque(WaitingRollout.from_state(saved) for saved in state)
