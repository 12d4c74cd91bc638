"""Rollouts kept for several passes: a capacity, an order, minibatches; for a loop of one's own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from rlhf.data.contracts import Prompt
from rlhf.data.pack import PackedBatch
from rlhf.errors import CheckpointError, ConfigError, DataError, check_number, kind_of
from rlhf.rollout.types import Completion
from rlhf.training.experience import RolloutExperience
from rlhf.training.row_order import permutation

OLD_LOGPROBS = "old_logprobs"


class RolloutBuffer:
    """Completions with their numbers, cut into shuffled minibatches; trainers keep theirs themselves.

        buffer = RolloutBuffer(capacity=256)
        buffer.add(prompts, engine.generate(...), columns={"scores": scores})
        for epoch in range(4):
            for batch in buffer.minibatches(32, epoch=epoch):
                ratio = (policy.score(batch).logprobs - batch.token_columns["old_logprobs"]).exp()

    Completions of one prompt stay together, so that a minibatch computes their prompt once.

    Args:
        capacity: Completions that are kept; where more come, the oldest prompts go. None for no limit.
        seed: Seeds the order.

    Raises:
        ConfigError: The capacity is below 1.
    """

    def __init__(self, capacity: int | None = None, *, seed: int = 0) -> None:
        if capacity is not None:
            check_number(
                capacity, name="capacity", expected="a number of completions, or None for no limit", whole=True
            )
        if capacity is not None and capacity < 1:
            raise ConfigError(f"capacity is {capacity}; expected 1 or more completions, or None for no limit.")
        self.capacity = capacity
        self.seed = seed
        self._held: RolloutExperience | None = None

    def __len__(self) -> int:
        """Completions in it."""
        return 0 if self._held is None else self._held.num_sequences

    @property
    def num_prompts(self) -> int:
        """Prompts in it; one that was asked in two calls counts twice."""
        return 0 if self._held is None else len(self._held.groups)

    def add(
        self,
        prompts: Sequence[Prompt],
        completions: Sequence[Sequence[Completion]],
        *,
        columns: Mapping[str, Tensor] | None = None,
        token_columns: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Add what an engine gave.

        Args:
            prompts: Who was asked.
            completions: For each prompt, as engines give them.
            columns: [S] numbers per completion, such as scores, in the same order.
            token_columns: [M] numbers per sampled token, such as advantages. ``old_logprobs`` are the completions' own unless given.

        Raises:
            ConfigError: They are texts.
            DataError: There are not as many lists as prompts, a column has another length, or other columns than before, or a
                prompt has more completions than the capacity.
        """
        if len(prompts) != len(completions):
            raise DataError(
                f"There are {len(prompts)} prompts and completions of {len(completions)}; give as many of both."
            )
        _check_parts("prompts", prompts, "ids", "Prompt objects, such as GRPODataset(rows, tokenizer) has")
        _check_parts("completions", completions, "__len__", "a list of an engine's Completion objects for each prompt")
        _check_parts("completions[0]", next(iter(completions), ()), "logprobs", "an engine's Completion objects")
        experience = RolloutExperience.of(prompts, completions)
        experience.columns = dict(columns or {})
        own = torch.tensor([number for group in completions for c in group for number in c.logprobs])
        experience.token_columns = {OLD_LOGPROBS: own, **(token_columns or {})}
        for size, kind, named in (
            (experience.num_sequences, "completions", experience.columns),
            (len(experience.score_seq), "sampled tokens", experience.token_columns),
        ):
            for name, column in named.items():
                if column.shape[:1] != (size,):
                    raise DataError(f"Column {name!r} has shape {tuple(column.shape)}; there are {size} {kind}.")
        if self._held is not None:
            self._check_columns(experience)
            experience = RolloutExperience.joined([self._held, experience])
        self._held = self._newest(experience)

    def minibatches(self, batch_size: int, *, epoch: int = 0, shuffle: bool = True) -> Iterator[PackedBatch]:
        """One pass over everything.

        Args:
            batch_size: Completions in a minibatch, at most, unless one prompt alone has more; the last may be smaller.
            epoch: Another one has another order.
            shuffle: False keeps the order in which they came.

        Returns:
            Packed batches with the columns.

        Raises:
            ConfigError: The size is below 1.
        """
        if batch_size < 1:
            raise ConfigError(f"batch_size is {batch_size}; expected 1 or more.")
        held = self._held
        if held is None:
            return
        order = permutation(len(held.groups), self.seed, "buffer", epoch) if shuffle else list(range(len(held.groups)))
        batch: list[int] = []
        size = 0
        for number in order:
            more = len(held.groups[number].branches)
            if batch and size + more > batch_size:
                yield held.batch(batch)
                batch, size = [], 0
            batch.append(number)
            size += more
        if batch:
            yield held.batch(batch)

    def clear(self) -> None:
        """Forget everything, as after the passes over an on-policy rollout."""
        self._held = None

    def state_dict(self) -> dict[str, Any]:
        """Plain lists and tensors, for a checkpoint."""
        return {"held": None if self._held is None else self._held.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Hold what ``state_dict`` gave.

        Raises:
            CheckpointError: The state is not one of a buffer.
        """
        try:
            self._held = None if state["held"] is None else RolloutExperience.from_state(state["held"])
        except (KeyError, TypeError) as err:
            raise CheckpointError(f"This is not the state of a rollout buffer: {type(err).__name__}: {err}.") from err

    def _check_columns(self, rollout_experience: RolloutExperience) -> None:
        assert self._held is not None
        for new, old in (
            (rollout_experience.columns, self._held.columns),
            (rollout_experience.token_columns, self._held.token_columns),
        ):
            if new.keys() != old.keys():
                raise DataError(f"These rollouts have the columns {sorted(new)}, those in the buffer {sorted(old)}.")

    def _newest(self, experience: RolloutExperience) -> RolloutExperience:
        if self.capacity is None:
            return experience
        sizes = [len(group.branches) for group in experience.groups]
        first, total = 0, experience.num_sequences
        while total > self.capacity and first < len(sizes):
            total -= sizes[first]
            first += 1
        if first == len(sizes) and sizes:
            raise DataError(f"A prompt has {sizes[-1]} completions, and the buffer's capacity is {self.capacity}.")
        return experience.only(range(first, len(sizes)))


def _check_parts(name: str, items: Any, part: str, expected: str) -> None:
    """Refuse texts in place of what an engine gives."""
    first = items if isinstance(items, str) else next(iter(items), None)
    if first is not None and (isinstance(first, str) or not hasattr(first, part)):
        raise ConfigError(f"{name} holds {kind_of(first)}; expected {expected}.")
