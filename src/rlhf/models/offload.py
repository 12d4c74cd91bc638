"""Frozen models whose weights stay in the CPU's memory and are copied to the GPU while they are used.

The CPU's copy is kept meanwhile, so nothing is copied back. What is computed is computed on the GPU: the numbers are those of a model that
stays there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from rlhf.models.device import CPU

_DEVICE = "_rlhf_used_on"
"""Attribute of a module that is offloaded: the device that it is used on."""


def offload(module: nn.Module, device: torch.device) -> None:
    """Move a frozen module to the CPU; ``on_device`` brings it to ``device`` for a block.

    On a CPU nothing changes. The weights must not change any more: what changes inside of ``on_device`` is lost.
    """
    if device.type == "cpu":
        return
    for tensor in _tensors(module):
        tensor.data = tensor.data.to(CPU)
    setattr(module, _DEVICE, device)


def is_offloaded(module: object) -> bool:
    """Whether the module's weights wait on the CPU between two uses."""
    return hasattr(module, _DEVICE)


@contextmanager
def on_device(*models: object) -> Iterator[None]:
    """Inside, models that were offloaded have their weights on the device; others stay as they are. Blocks may be nested."""
    at_home: list[tuple[Tensor, Tensor]] = []
    try:
        for model in models:
            if not is_offloaded(model):
                continue
            assert isinstance(model, nn.Module)
            device = getattr(model, _DEVICE)
            for tensor in _tensors(model):
                if tensor.device != device:
                    at_home.append((tensor, tensor.data))
                    tensor.data = tensor.data.to(device)
        yield
    finally:
        for tensor, own in at_home:
            tensor.data = own


def _tensors(module: nn.Module) -> Iterator[Tensor]:
    """Each parameter and buffer once, shared ones too."""
    yield from module.parameters()
    yield from module.buffers()
