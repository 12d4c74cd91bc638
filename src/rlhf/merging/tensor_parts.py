"""One tensor of each model, read part by part into buffers that are used again: what is worked on stays in a processor's cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from rlhf.merging.arithmetic import blocks, flat
from rlhf.merging.safetensors_file import Files, TensorPlace

Reader = Callable[[slice], Tensor]
"""Which elements of a flat tensor -> those, in arithmetic's type, until it is called again."""


class TensorParts:
    """Iterated, it gives (a part of each model's tensor, the base's part or None), flat and in order; iterated again, it reads again."""

    def __init__(self, models: Sequence[Reader], base: Reader | None, count: int, dtype: torch.dtype) -> None:
        """Of readers.

        Args:
            models: One for each model.
            base: The base's, where the method sets it apart.
            count: Elements of each.
            dtype: Of arithmetic.
        """
        self._models, self._base, self.count, self.dtype = models, base, count, dtype

    @classmethod
    def of_tensors(cls, tensors: Sequence[Tensor], base: Tensor | None) -> TensorParts:
        """Of tensors in memory; parts are views of them."""
        first = tensors[0] if tensors else base
        count, dtype = (0, torch.float32) if first is None else (first.numel(), first.dtype)
        return cls([in_memory(tensor) for tensor in tensors], None if base is None else in_memory(base), count, dtype)

    def __iter__(self) -> Iterator[tuple[list[Tensor], Tensor | None]]:
        """Parts in order."""
        for at in blocks(self.count):
            yield [read(at) for read in self._models], None if self._base is None else self._base(at)

    def differences(self, model: int) -> Iterator[Tensor]:
        """Parts of one model's difference from the base, the caller's to change."""
        assert self._base is not None
        for at in blocks(self.count):
            yield self._models[model](at) - self._base(at)


def in_memory(tensor: Tensor) -> Reader:
    """Views of a tensor."""
    elements = flat(tensor)
    return lambda at: elements[at]


def in_file(files: Files, place: TensorPlace, dtype: torch.dtype) -> Reader:
    """Reads from a file.

    Args:
        files: Open files.
        place: The tensor's.
        dtype: Of arithmetic.
    """
    most = next((at.stop for at in blocks(place.count)), 0)
    read = torch.empty(most, dtype=place.dtype)
    worked_on = read if place.dtype == dtype else torch.empty(most, dtype=dtype)

    def part(at: slice) -> Tensor:
        count = at.stop - at.start
        files.read_into(read[:count], place, at.start)
        return read[:count] if worked_on is read else worked_on[:count].copy_(read[:count])

    return part
