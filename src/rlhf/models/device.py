"""The device of models: the first GPU that torch has, else the CPU, unless set otherwise.

Every model is moved there as soon as its weights are loaded or initialized (``rlhf.models.load``); what is added later (heads,
adapters, critics, copies) is made where it is, and batches follow it. So a device is named once, in the recipe's ``device``.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator
from typing import TypeVar

import torch
from torch import nn

from rlhf.config.model import APPLE_GPU, AUTO, DEVICE_FORMS, NO_APPLE_GPU, is_device_name
from rlhf.distributed.ranks import Ranks, current_ranks
from rlhf.errors import ConfigError

Model = TypeVar("Model", bound=nn.Module)

_CHOSEN: contextvars.ContextVar[torch.device | None] = contextvars.ContextVar("rlhf_device", default=None)
CPU = torch.device("cpu")


@contextlib.contextmanager
def placed_on(name: str) -> Iterator[torch.device]:
    """Inside, models that are loaded or made are put on this device, and kernels that name no device run there.

    Args:
        name: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.

    Raises:
        ConfigError: It is not a device that this library knows, or torch has none of that number.
    """
    device = resolve_device(name)
    token = _CHOSEN.set(device)
    try:
        # Triton and other code that uses torch's current GPU would otherwise take the first, wherever the weights are.
        with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
            yield device
    finally:
        _CHOSEN.reset(token)


def model_device() -> torch.device:
    """The device of a model that is loaded now: that of ``placed_on``, else the first GPU, else the CPU."""
    return _CHOSEN.get() or resolve_device(AUTO)


def placed(model: Model) -> Model:
    """A model moved to ``model_device``; the same object."""
    device = model_device()
    first = next(model.parameters(), None)
    return model if first is None or first.device == device else model.to(device)


def resolve_device(name: str) -> torch.device:
    """The device of a name, with its number; what ``CUDA_VISIBLE_DEVICES`` hides is not there for torch, nor for us.

    Of several ranks each has a GPU of its own, and without one for each of them ``auto`` is the CPU.

    Raises:
        ConfigError: See ``placed_on``.
    """
    if APPLE_GPU.fullmatch(name):
        raise ConfigError(f"device is {name!r}: {NO_APPLE_GPU}.")
    if not is_device_name(name):
        raise ConfigError(f"device is {name!r}; wanted {DEVICE_FORMS}.")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    ranks = current_ranks()
    own = 0 if ranks.size == 1 else ranks.gpu
    if name == AUTO:
        return torch.device("cuda", own) if count and own is not None else CPU
    device = torch.device(name)
    if device.type == "cpu":
        return device
    number = device.index if device.index is not None else own or 0
    if number >= count:
        raise ConfigError(f"device is {name!r}, and {gpus_in_words(count)}")
    return torch.device("cuda", number)


def device_problem_of_ranks(name: str, ranks: Ranks) -> str | None:
    """Why several ranks can't all train on this device; None where they can."""
    resolve_device(name)
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == CPU.type or not count:
        return None
    if ranks.gpu is None:
        return f"device: some of the ranks have no GPU (torch has {count} here); start as many on each machine as it has, or write `cpu`"
    if ranks.gpu_is_shared:
        return "device: several ranks have the same GPU, and NCCL connects none twice; start as many ranks as there are GPUs, or write `cpu`"
    return (
        "device: write `cuda`, of which each rank takes its own"
        if torch.device(name.replace(AUTO, "cuda")).index is not None
        else None
    )


def gpus_in_words(count: int) -> str:
    """The end of a complaint: how many GPUs there are, and what to write instead."""
    if count == 0:
        built = torch.version.cuda or torch.version.hip
        why = "finds none here" if built else "is a build for CPUs"
        return f"torch {why} (`rlhf doctor` says more). Write `device: auto`, which takes a GPU where there is one, or `cpu`."
    numbers = "cuda:0" if count == 1 else f"cuda:0 to cuda:{count - 1}"
    return f"torch has {count}: {numbers}. Write one of them, or `device: auto`."


def describe_device(device: torch.device) -> str:
    """``cpu``, or ``cuda:0 (NVIDIA H200)``: for display and for the record of a run."""
    if device.type != "cuda":
        return str(device)
    return f"{device} ({torch.cuda.get_device_name(device)})"
