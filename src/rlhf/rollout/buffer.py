"""Rollouts that wait to be learned from, with the version of the weights that sampled them."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from rlhf.errors import CheckpointError, ConfigError
from rlhf.rollout.types import Completion
from rlhf.seeds import derive_seed


@dataclass(frozen=True, slots=True)
class RolloutGroup:
    """The completions of one prompt, and their scores."""

    prompt_id: str
    prompt_ids: list[int]
    completions: list[Completion]
    """At least one."""
    scores: list[float]
    """One for each completion."""

    def __post_init__(self) -> None:
        assert len(self.completions) == len(self.scores) > 0, f"group {self.prompt_id}: one score for each completion"

    @property
    def weight_version(self) -> int:
        """The oldest version that sampled any of it."""
        return min(completion.weight_version for completion in self.completions)


class RolloutBuffer:
    """First in, first out, bounded, and it forgets what is too old.

    Shuffling depends on the seed and the name of the pass alone, so a resumed run sees the same minibatches.
    """

    def __init__(self, *, capacity: int = 1024, max_staleness: int | None = None, seed: int = 0) -> None:
        """An empty buffer.

        Args:
            capacity: Groups; the oldest leave when it is full.
            max_staleness: Groups sampled more than so many weight versions ago are dropped; None keeps all.
            seed: The run's.
        """
        if capacity < 1:
            raise ConfigError(f"The buffer's capacity is {capacity}; wanted 1 or more.")
        if max_staleness is not None and max_staleness < 0:
            raise ConfigError(f"max_staleness is {max_staleness}; wanted 0 or more, or None for no limit.")
        self.capacity = capacity
        self.max_staleness = max_staleness
        self.seed = seed
        self.num_evicted = 0
        """Groups that left unread because the buffer was full."""
        self.num_stale = 0
        """Groups that were dropped for their age."""
        self._groups: deque[RolloutGroup] = deque()

    def __len__(self) -> int:
        return len(self._groups)

    def __iter__(self) -> Iterator[RolloutGroup]:
        return iter(self._groups)

    def add(self, groups: Sequence[RolloutGroup]) -> None:
        """Put groups at the end; the oldest make room."""
        for group in groups:
            if len(self._groups) == self.capacity:
                self._groups.popleft()
                self.num_evicted += 1
            self._groups.append(group)

    def drop_stale(self, weight_version: int) -> int:
        """Forget groups too old for a trainer at this version; returns how many."""
        if self.max_staleness is None:
            return 0
        kept = [g for g in self._groups if weight_version - g.weight_version <= self.max_staleness]
        dropped = len(self._groups) - len(kept)
        self._groups = deque(kept)
        self.num_stale += dropped
        return dropped

    def take(self, count: int) -> list[RolloutGroup]:
        """Remove and return the ``count`` oldest groups, or all where there are fewer."""
        return [self._groups.popleft() for _ in range(min(count, len(self._groups)))]

    def minibatches(self, num_groups: int, *names: str | int) -> Iterator[list[RolloutGroup]]:
        """All groups in shuffled order, ``num_groups`` at a time, the last one maybe smaller; they stay in the buffer.

        Args:
            num_groups: Groups in a minibatch.
            names: Name of this pass, such as (step, epoch): another name, another order.
        """
        if num_groups < 1:
            raise ConfigError(f"A minibatch of {num_groups} groups makes no sense; wanted 1 or more.")
        order = list(self._groups)
        random.Random(derive_seed(self.seed, "rollout_buffer", *names)).shuffle(order)
        for first in range(0, len(order), num_groups):
            yield order[first : first + num_groups]

    def clear(self) -> None:
        """Forget all groups; the counts stay."""
        self._groups.clear()

    def state_dict(self) -> dict[str, Any]:
        """Plain lists and numbers: ``torch.load(weights_only=True)`` takes them."""
        return {
            "num_evicted": self.num_evicted,
            "num_stale": self.num_stale,
            "groups": [
                {
                    "prompt_id": group.prompt_id,
                    "prompt_ids": list(group.prompt_ids),
                    "completions": [asdict(completion) for completion in group.completions],
                    "scores": list(group.scores),
                }
                for group in self._groups
            ],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Hold what ``state_dict`` gave.

        Raises:
            CheckpointError: The state is not one of a buffer, or holds more groups than fit.
        """
        known = {field.name for field in fields(Completion)}
        try:
            groups = [
                RolloutGroup(
                    saved["prompt_id"],
                    list(saved["prompt_ids"]),
                    [Completion(**{k: v for k, v in c.items() if k in known}) for c in saved["completions"]],
                    list(saved["scores"]),
                )
                for saved in state["groups"]
            ]
            counts = int(state["num_evicted"]), int(state["num_stale"])
        except (KeyError, TypeError, AssertionError) as err:
            raise CheckpointError(f"This is not the state of a rollout buffer: {type(err).__name__}: {err}.") from err
        if len(groups) > self.capacity:
            raise CheckpointError(
                f"The saved buffer holds {len(groups)} groups, more than the capacity of {self.capacity}; raise it."
            )
        self._groups = deque(groups)
        self.num_evicted, self.num_stale = counts
