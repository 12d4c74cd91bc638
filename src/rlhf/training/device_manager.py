"""Device, precision, loss scaling and clipping, for a loop of one's own; trainers take the same from their config."""

from __future__ import annotations

import math
import typing
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from rlhf.config.model import AUTO
from rlhf.config.training import Autocast
from rlhf.errors import ConfigError, check_type
from rlhf.models.device import describe_device, resolve_device
from rlhf.training.optim import clip_gradients, mixed_precision

Model = TypeVar("Model", bound=nn.Module)


class DeviceManager:
    """Where and in which precision a loop trains.

        devices = DeviceManager("auto", autocast="bfloat16")
        model = devices.place(model)
        with devices.autocast():
            loss = model(**devices.place_batch(batch)).loss
        devices.backward(loss)
        grad_norm = devices.step(optimizer)

    Args:
        device: ``auto`` (the first GPU that torch has, else the CPU), ``cpu``, ``cuda`` or ``cuda:N``.
        autocast: Type of the matrix products: ``none``, ``bfloat16`` or ``float16``, which has a loss scale.
        max_grad_norm: Gradients are scaled down to this norm before a step; None for no limit.

    Raises:
        ConfigError: The device is not there, or a setting is wrong.
    """

    def __init__(self, device: str = AUTO, *, autocast: Autocast = "none", max_grad_norm: float | None = 1.0) -> None:
        check_type(device, str, name="device", expected="`auto`, `cpu`, `cuda` or `cuda:N`")
        if autocast not in typing.get_args(Autocast):
            raise ConfigError(f"autocast is {autocast!r}; expected one of {', '.join(typing.get_args(Autocast))}.")
        if max_grad_norm is not None and not max_grad_norm > 0:
            raise ConfigError(f"max_grad_norm is {max_grad_norm}; expected a number above 0, or None.")
        self.device = resolve_device(device)
        self.precision: Autocast = autocast
        self.max_grad_norm = max_grad_norm
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=autocast == "float16")

    def __repr__(self) -> str:
        return f"DeviceManager({describe_device(self.device)}, autocast={self.precision!r})"

    def place(self, model: Model) -> Model:
        """The same model, moved to the device."""
        check_type(model, torch.nn.Module, name="model", expected="a module; place_batch moves a mapping of tensors")
        return model.to(self.device)

    def place_batch(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """A copy of a mapping whose tensors are on the device."""
        return {key: value.to(self.device) if isinstance(value, Tensor) else value for key, value in batch.items()}

    def autocast(self) -> AbstractContextManager[object]:
        """Inside, matrix products run in the chosen type; nothing changes with ``none``."""
        return mixed_precision(self.precision, self.device)

    def backward(self, loss: Tensor) -> None:
        """Accumulate gradients, scaled where the precision is float16."""
        self.scaler.scale(loss).backward()

    def step(self, optimizer: torch.optim.Optimizer) -> float:
        """Unscale, clip, take one step and clear the gradients.

        Returns:
            The gradient's norm before clipping. Where it is not finite no step is taken; float16 then lowers its loss scale.
        """
        self.scaler.unscale_(optimizer)
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        norm = clip_gradients(parameters, self.max_grad_norm if self.max_grad_norm is not None else math.inf)
        if math.isfinite(norm) or self.scaler.is_enabled():
            self.scaler.step(optimizer)
            self.scaler.update()
        optimizer.zero_grad(set_to_none=True)
        return norm

    def state_dict(self) -> dict[str, Any]:
        """The loss scale, for a checkpoint."""
        return {"scaler": self.scaler.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state_dict`` was taken."""
        self.scaler.load_state_dict(state["scaler"])
