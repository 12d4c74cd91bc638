"""Optimiser, learning-rate schedule, gradient clipping and weight averaging: written once, used by the one loop."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from rlhf.config.training import TrainConfig
from rlhf.errors import TrainingError


@dataclass(frozen=True, slots=True)
class TrainedModule:
    """A module that the optimiser changes, and how fast."""

    name: str
    module: nn.Module
    learning_rate: float


def learning_rate_factor(
    step: int, total_steps: int, *, warmup_frac: float, kind: Literal["cosine", "linear", "constant"], floor: float
) -> float:
    """Share of the peak learning rate at a step, counted from 0.

        rises linearly over round(warmup_frac * total_steps) steps, then falls to ``floor`` along a half cosine or a line

    Returns:
        In (0, 1]; the last step stands one step before the end of the fall, so no step is spent at exactly 0.
    """
    warmup = round(warmup_frac * total_steps)
    if step < warmup:
        return (step + 1) / (warmup + 1)
    if kind == "constant":
        return 1.0
    progress = min(1.0, (step - warmup) / max(1, total_steps - warmup))
    fall = 0.5 * (1 + math.cos(math.pi * progress)) if kind == "cosine" else 1 - progress
    return floor + (1 - floor) * fall


class Optimizer:
    """AdamW over several modules with one schedule, one clip and, for float16, one loss scale.

    Matrices get weight decay; parameters with one dimension (norms, biases) do not.
    """

    def __init__(self, modules: Sequence[TrainedModule], config: TrainConfig, *, total_steps: int) -> None:
        """Raises TrainingError where nothing is trainable."""
        self.config = config
        self.total_steps = total_steps
        groups: list[dict[str, Any]] = []
        self.parameters: list[nn.Parameter] = []
        seen: set[int] = set()
        for trained in modules:
            fresh = [p for p in trained.module.parameters() if p.requires_grad and id(p) not in seen]
            seen.update(map(id, fresh))
            self.parameters += fresh
            for decay, chosen in (
                (config.weight_decay, [p for p in fresh if p.ndim > 1]),
                (0.0, [p for p in fresh if p.ndim <= 1]),
            ):
                if chosen:
                    groups.append({"params": chosen, "weight_decay": decay, "peak": trained.learning_rate})
        if not groups:
            raise TrainingError("No parameter is trainable: every weight is frozen; unfreeze some or add an adapter.")
        self.adamw = torch.optim.AdamW(
            groups, lr=config.learning_rate, betas=config.betas, eps=config.eps, fused=_can_fuse(self.parameters)
        )
        device = self.parameters[0].device.type
        self.scaler = torch.amp.GradScaler(device, enabled=config.autocast == "float16")
        self.autocast_device = device

    def autocast(self) -> AbstractContextManager[Any]:
        """Mixed precision as configured."""
        if self.config.autocast == "none":
            return nullcontext()
        return torch.autocast(self.autocast_device, dtype=getattr(torch, self.config.autocast))

    def backward(self, loss: Tensor) -> None:
        """Accumulate gradients."""
        self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]

    def step(self, step: int) -> dict[str, float]:
        """Clip, take one step at the schedule's learning rate, clear gradients.

        Args:
            step: Optimiser steps taken before this one.

        Returns:
            ``learning_rate`` (of the first module) and ``grad_norm`` (before clipping).

        Raises:
            TrainingError: The gradient is not finite (except under float16, where the scaler skips the step).
        """
        factor = learning_rate_factor(
            step,
            self.total_steps,
            warmup_frac=self.config.warmup_frac,
            kind=self.config.schedule,
            floor=self.config.min_learning_rate_frac,
        )
        for group in self.adamw.param_groups:
            group["lr"] = group["peak"] * factor
        self.scaler.unscale_(self.adamw)
        limit = self.config.max_grad_norm if self.config.max_grad_norm is not None else math.inf
        norm = float(nn.utils.clip_grad_norm_(self.parameters, limit))
        if not math.isfinite(norm) and not self.scaler.is_enabled():
            raise TrainingError(f"The gradient's norm is {norm} at step {step + 1}; lower the learning rate or look at the data.")
        self.scaler.step(self.adamw)
        self.scaler.update()
        self.adamw.zero_grad(set_to_none=False)
        return {"learning_rate": self.adamw.param_groups[0]["lr"], "grad_norm": norm}

    def state_dict(self) -> dict[str, Any]:
        """Moments and loss scale."""
        return {"adamw": self.adamw.state_dict(), "scaler": self.scaler.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where ``state_dict`` was taken."""
        self.adamw.load_state_dict(state["adamw"])
        self.scaler.load_state_dict(state["scaler"])


class WeightAverage:
    """Exponential moving average of trained parameters, kept beside them.

        average <- decay * average + (1 - decay) * weight,   decay = min(config, (1 + t) / (10 + t))

    Sources: Polyak & Juditsky 1992; the warm-up of the decay is TensorFlow's ``ExponentialMovingAverage`` rule.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], *, decay: float) -> None:
        self.parameters = list(parameters)
        self.decay = decay
        self.updates = 0
        self.average = [p.detach().clone() for p in self.parameters]

    @torch.no_grad()
    def update(self) -> None:
        """Fold the current weights in."""
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        self.updates += 1
        for average, parameter in zip(self.average, self.parameters, strict=True):
            average.lerp_(parameter, 1 - decay)

    @contextmanager
    def swapped(self) -> Iterator[None]:
        """The model holds the average inside and its own weights again outside."""
        self.swap()
        try:
            yield
        finally:
            self.swap()

    @torch.no_grad()
    def swap(self) -> None:
        """Exchange weights and average."""
        for average, parameter in zip(self.average, self.parameters, strict=True):
            kept = parameter.detach().clone()
            parameter.copy_(average)
            average.copy_(kept)

    def state_dict(self) -> dict[str, Any]:
        """Averages and count."""
        return {"average": self.average, "updates": self.updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where ``state_dict`` was taken."""
        for mine, saved in zip(self.average, state["average"], strict=True):
            mine.copy_(saved)
        self.updates = state["updates"]


def _can_fuse(parameters: Sequence[Tensor]) -> bool:
    return all(p.is_floating_point() and p.device.type in ("cpu", "cuda") for p in parameters)
