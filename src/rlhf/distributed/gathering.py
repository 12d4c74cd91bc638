"""Whole weights of a model in shards on rank 0 alone, one tensor after the other, without the memory that they would take."""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor, nn

from rlhf.distributed.ranks import current_ranks
from rlhf.distributed.sharding import is_shard, whole

ALIGNMENT = 64
"""Bytes; tensors begin at multiples, as torch's own do."""


@contextmanager
def whole_on_main(
    model: nn.Module, scratch: Path, *, wanted: Callable[[nn.Parameter], bool] = lambda _: True
) -> Iterator[None]:
    """Inside, rank 0 may save a model that lies in shards as a plain one; all ranks come here, and the others don't wait for it.

    Each tensor is gathered by itself. Rank 0 writes it to a file without a name and maps that, so whole weights are page cache,
    which the system may drop; the other ranks let go of it. No forward pass may run inside.

    Args:
        model: In shards, or not: then nothing happens.
        scratch: A folder with room for the weights, which are there until the end.
        wanted: Which parameters are gathered; the others stay shards.

    Raises:
        OSError: ``scratch`` has no room.
    """
    shards = {id(p): p for p in model.parameters() if is_shard(p) and p.numel() and wanted(p)}
    with tempfile.TemporaryFile(dir=scratch) as file:
        gathered = _gather(shards, file)
        kept = [
            (module, key, p) for module in model.modules() for key, p in module._parameters.items() if id(p) in gathered
        ]
        for module, key, p in kept:
            module._parameters[key] = gathered[id(p)]
        try:
            yield
        finally:
            for module, key, p in kept:
                module._parameters[key] = p


def _gather(shards: dict[int, nn.Parameter], file: BinaryIO) -> dict[int, nn.Parameter]:
    """Mapped tensors by the shards that they are the whole of; none on ranks other than 0."""
    starts: dict[int, int] = {}
    for key, shard in shards.items():
        tensor = whole(shard.detach())
        if current_ranks().is_main:
            starts[key] = file.tell()
            file.write(_bytes_of(tensor))
            file.write(b"\0" * (-file.tell() % ALIGNMENT))
    if not starts:
        return {}
    file.flush()
    memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    return {
        key: nn.Parameter(
            torch.frombuffer(memory, dtype=shards[key].dtype, count=shards[key].numel(), offset=start).view(
                shards[key].shape
            ),
            requires_grad=shards[key].requires_grad,
        )
        for key, start in starts.items()
    }


def _bytes_of(tensor: Tensor) -> memoryview:
    return tensor.to("cpu").contiguous().reshape(-1).view(torch.uint8).numpy().data
