"""Which rows each optimizer step takes: decided by seed, epoch and step alone, so a resumed run takes the same ones."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import torch

from rlhf.config.training import OfflineConfig
from rlhf.data.pack import Group
from rlhf.errors import ConfigError, DataError
from rlhf.seeds import derive_seed


@runtime_checkable
class MapData(Protocol):
    """Rows that can be counted and picked."""

    def __len__(self) -> int:
        """How many."""
        ...

    def __getitem__(self, index: int) -> Group:
        """One row, tokenized."""
        ...


class StreamData(Protocol):
    """Rows that come one after another and remember where they are."""

    def __iter__(self) -> Iterator[Group]:
        """From the cursor to the end of the data; the next iteration begins again."""
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
        """The rows of one optimizer step."""
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
        config: batch_size or batch_tokens, epochs or max_steps, seed.
    """

    def __init__(self, data: MapData, config: OfflineConfig) -> None:
        if len(data) == 0:
            raise DataError("There is no usable row to train on; run `rlhf data check FILE` to see why.")
        self.data = data
        self.config = config
        limit = config.batch_tokens
        self._sizes = [data[i].num_tokens for i in range(len(data))] if limit is not None else []
        self._first_step = [0]
        """First step of each epoch that was cut so far, and of the one behind."""
        self._cut_epoch: tuple[int, list[list[int]]] = (-1, [])
        self.num_steps = config.max_steps if config.max_steps is not None else self._steps_of(config.epochs or 0)

    def take(self, step: int) -> list[Group]:
        """The rows of one optimizer step."""
        epoch = bisect.bisect_right(self._first_step, step) - 1
        while step >= self._first_step[epoch] + len(self._epoch(epoch)):
            epoch += 1
        return [self.data[index] for index in self._epoch(epoch)[step - self._first_step[epoch]]]

    def state_dict(self) -> dict[str, Any]:
        """Nothing: the step decides."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Nothing to set."""

    def _steps_of(self, epochs: float) -> int:
        """Steps of so many epochs; a part of an epoch is rounded up to whole steps."""
        whole = int(epochs)
        for epoch in range(whole):
            self._epoch(epoch)
        part = math.ceil((epochs - whole) * len(self._epoch(whole)) - 1e-9)
        return max(1, self._first_step[whole] + part)

    def _epoch(self, epoch: int) -> list[list[int]]:
        """The epoch's rows, cut into steps; those of the newest epoch are kept."""
        if self._cut_epoch[0] != epoch:
            order = permutation(len(self.data), self.config.seed, "rows", epoch)
            if self.config.batch_tokens is None:
                size = self.config.batch_size
                steps = [order[i : i + size] for i in range(0, len(order), size)]
            else:
                steps = _cut(order, [self._sizes[i] for i in order], self.config.batch_tokens)
            self._cut_epoch = (epoch, steps)
            if epoch + 1 == len(self._first_step):
                self._first_step.append(self._first_step[epoch] + len(steps))
        return self._cut_epoch[1]


class StreamedRows:
    """Rows in the stream's own order; needs ``max_steps``, as nobody knows how long a stream is."""

    def __init__(self, data: StreamData, config: OfflineConfig) -> None:
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
        limit = self.config.batch_tokens
        while len(taken) < self.config.batch_size if limit is None else tokens < limit:
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


def build_rows(data: MapData | StreamData, config: OfflineConfig) -> Rows:
    """Shuffled rows where the data can be counted, the stream's order where not."""
    return ShuffledRows(data, config) if isinstance(data, MapData) else StreamedRows(data, config)


def permutation(size: int, seed: int, *names: str | int) -> list[int]:
    """A shuffled ``range(size)`` from a named seed."""
    generator = torch.Generator().manual_seed(derive_seed(seed, *names))
    order: list[int] = torch.randperm(size, generator=generator).tolist()
    return order


class Cycle:
    """Endless slices of a list, shuffled again in each epoch; a slice may cross the border between epochs.

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
