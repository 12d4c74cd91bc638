"""Which rows each optimiser step takes: decided by seed, epoch and step alone, so a resumed run takes the same ones."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import torch

from rlhf.config.training import TrainConfig
from rlhf.data.pack import Group
from rlhf.errors import ConfigError, DataError
from rlhf.seeds import derive_seed

T = TypeVar("T")


class MapData(Protocol):
    """Rows that can be counted and picked."""

    def __len__(self) -> int:
        """How many."""
        ...

    def __getitem__(self, index: int) -> Group:
        """One row, tokenised."""
        ...


class StreamData(Protocol):
    """Rows that come one after another and remember where they are."""

    def __iter__(self) -> Iterator[Group]:
        """From the cursor on, epoch after epoch ends at the end of the data."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """The cursor."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Set the cursor."""
        ...


class Rows(Protocol):
    """What an offline trainer draws from."""

    num_steps: int

    def take(self, step: int) -> list[Group]:
        """The rows of one optimiser step."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """The cursor."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Set the cursor."""
        ...


class ShuffledRows:
    """Every row once an epoch, in an order that depends on (seed, epoch); the last step of an epoch may be smaller.

    Args:
        data: At least one row.
        config: rows_per_step or tokens_per_step, epochs or max_steps, seed.
    """

    def __init__(self, data: MapData, config: TrainConfig) -> None:
        if len(data) == 0:
            raise DataError("There is no usable row to train on; run `rlhf data check FILE` to see why.")
        self.data = data
        self.config = config
        self._epochs: dict[int, list[list[int]]] = {}
        first = len(self._epoch(0))
        if config.max_steps is not None:
            self.num_steps = config.max_steps
        elif config.epochs is not None:
            whole, part = divmod(config.epochs, 1)
            steps = sum(len(self._epoch(e)) for e in range(int(whole))) if config.tokens_per_step else int(whole) * first
            self.num_steps = max(1, steps + math.ceil(part * len(self._epoch(int(whole))) - 1e-9))
        else:
            raise ConfigError("Training needs a length: give `epochs` or `max_steps`.")

    def take(self, step: int) -> list[Group]:
        """The rows of one optimiser step."""
        epoch = 0
        while step >= (size := len(self._epoch(epoch))):
            step -= size
            epoch += 1
        return [self.data[index] for index in self._epoch(epoch)[step]]

    def state_dict(self) -> dict[str, Any]:
        """Nothing: the step decides."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Nothing to set."""

    def _epoch(self, epoch: int) -> list[list[int]]:
        """The epoch's rows, cut into steps."""
        if epoch not in self._epochs:
            order = permutation(len(self.data), self.config.seed, "rows", epoch)
            if self.config.tokens_per_step is None:
                size = self.config.rows_per_step
                steps = [order[i : i + size] for i in range(0, len(order), size)]
            else:
                steps = _cut(order, [self.data[i].num_tokens for i in order], self.config.tokens_per_step)
            self._epochs[epoch] = steps
        return self._epochs[epoch]


class StreamedRows:
    """Rows in the stream's own order; needs ``max_steps``, as nobody knows how long a stream is."""

    def __init__(self, data: StreamData, config: TrainConfig) -> None:
        if config.max_steps is None:
            raise ConfigError("Streaming data has no known length: give `max_steps`.")
        self.data = data
        self.config = config
        self.num_steps = config.max_steps
        self._iterator: Iterator[Group] | None = None

    def take(self, step: int) -> list[Group]:
        """The next rows; a stream that ends begins again, one that is empty is an error."""
        taken: list[Group] = []
        tokens = 0
        limit = self.config.tokens_per_step
        while len(taken) < self.config.rows_per_step if limit is None else tokens < limit:
            group = self._next()
            taken.append(group)
            tokens += group.num_tokens
        return taken

    def _next(self) -> Group:
        for _ in range(2):
            if self._iterator is None:
                self._iterator = iter(self.data)
            group = next(self._iterator, None)
            if group is not None:
                return group
            self._iterator = None
        raise DataError("The stream gave no usable row; run `rlhf data check FILE` to see why.")

    def state_dict(self) -> dict[str, Any]:
        """The stream's cursor."""
        return self.data.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Set the stream's cursor."""
        self.data.load_state_dict(dict(state))
        self._iterator = None


def build_rows(data: MapData | StreamData, config: TrainConfig) -> Rows:
    """Shuffled rows where the data can be counted, the stream's order where not."""
    return ShuffledRows(data, config) if hasattr(data, "__len__") else StreamedRows(data, config)


def permutation(size: int, seed: int, *names: str | int) -> list[int]:
    """A shuffled ``range(size)`` from a named seed."""
    generator = torch.Generator().manual_seed(derive_seed(seed, *names))
    order: list[int] = torch.randperm(size, generator=generator).tolist()
    return order


class Cycle:
    """Endless slices of a list, shuffled anew in each epoch; a slice may cross the border between epochs.

    Used for prompts, where every rollout should ask the same number.
    """

    def __init__(self, size: int, *, seed: int, name: str) -> None:
        self.size, self.seed, self.name = size, seed, name

    def take(self, start: int, count: int) -> list[int]:
        """Indices ``start .. start + count`` of the endless sequence."""
        first = start // self.size
        epochs = (permutation(self.size, self.seed, self.name, e) for e in itertools.count(first))
        endless = itertools.chain.from_iterable(epochs)
        return list(itertools.islice(endless, start - first * self.size, start - first * self.size + count))


def _cut(order: Sequence[int], sizes: Sequence[int], limit: int) -> list[list[int]]:
    steps: list[list[int]] = []
    room = 0
    for index, size in zip(order, sizes, strict=True):
        if not steps or size > room:
            steps.append([])
            room = limit
        steps[-1].append(index)
        room -= size
    return steps
