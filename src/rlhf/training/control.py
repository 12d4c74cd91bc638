"""Controllers that watch a run: the adaptive KL weight and early stopping. Both have state, and say so."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal, Self

from rlhf.config.training import EarlyStoppingConfig


class AdaptiveKLController:
    """Holds a KL weight that moves towards a target KL.

        error = clip(kl / target - 1, -0.2, 0.2);   coef <- coef * (1 + error * n / horizon)

    Source: Ziegler et al. 2019, section 2.2, arXiv:1909.08593. Without a target the weight stays.

    Args:
        coef: Initial weight.
        target: KL in nats per sequence, or None for a fixed weight.
        horizon: Sequences over which the weight may change by about 20 %.
        limits: The weight never leaves this range.
    """

    def __init__(
        self,
        coef: float,
        *,
        target: float | None = None,
        horizon: int = 10_000,
        limits: tuple[float, float] = (1e-3, 10.0),
    ) -> None:
        self.coef = coef
        self.target = target
        self.horizon = horizon
        self.limits = limits

    def update(self, kl: float, num_sequences: int) -> None:
        """Adapt after a rollout whose mean KL was ``kl`` nats per sequence; a KL that is not finite changes nothing."""
        if self.target is None or not math.isfinite(kl):
            return
        error = min(max(kl / self.target - 1, -0.2), 0.2)
        low, high = self.limits
        self.coef = min(max(self.coef * (1 + error * num_sequences / self.horizon), low), high)

    def state_dict(self) -> dict[str, Any]:
        """The weight."""
        return {"coef": self.coef}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state_dict`` was taken."""
        self.coef = state["coef"]


class EarlyStopping:
    """Says when a metric has stopped improving.

    Args:
        mode: Whether lower or higher is better.
        patience: Evaluations without improvement before ``should_stop`` is true; None for never.
        min_delta: Smaller changes do not count.
    """

    def __init__(self, *, mode: Literal["min", "max"], patience: int | None, min_delta: float = 0.0) -> None:
        self.sign = 1.0 if mode == "max" else -1.0
        self.patience = patience
        self.min_delta = min_delta
        self.best: float | None = None
        self.best_step: int | None = None
        self.waited = 0

    @classmethod
    def of(cls, config: EarlyStoppingConfig) -> Self:
        """As a recipe asks for it."""
        return cls(mode=config.mode, patience=config.patience, min_delta=config.min_delta)

    def update(self, value: float, step: int) -> bool:
        """Take note of an evaluation; True where this is the best so far. NaN never is."""
        if math.isfinite(value) and (self.best is None or self.sign * (value - self.best) > self.min_delta):
            self.best, self.best_step, self.waited = value, step, 0
            return True
        self.waited += 1
        return False

    @property
    def should_stop(self) -> bool:
        """Whether patience is used up."""
        return self.patience is not None and self.waited >= self.patience

    def state_dict(self) -> dict[str, Any]:
        """Best value, its step, and how long it has stood."""
        return {"best": self.best, "best_step": self.best_step, "waited": self.waited}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state_dict`` was taken."""
        self.best, self.best_step, self.waited = state["best"], state["best_step"], state["waited"]
