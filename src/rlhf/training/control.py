"""Controllers that watch a run: adaptive KL weights and early stopping. All have state, and say so."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal, Protocol, Self

from rlhf.config.kl import KLConfig
from rlhf.config.training import EarlyStoppingConfig
from rlhf.errors import ConfigError

PROPORTIONAL_LIMITS = (1e-3, 10.0)
DOUBLING_LIMITS = (1e-4, 100.0)
LARGEST_MULTIPLIER = 10.0


class KLController(Protocol):
    """Holds the weight of a KL penalty, and may change it by the KL that a rollout shows."""

    @property
    def coef(self) -> float:
        """The weight as it is now."""
        ...

    def update(self, kl: float, num_sequences: int) -> None:
        """Adapt after a rollout of so many sequences, whose mean KL was ``kl`` nats per sequence."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """The weight."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state_dict`` was taken."""
        ...


def build_kl_controller(config: KLConfig) -> KLController:
    """The controller that a recipe names; without a target, or a penalty that it could adapt, the weight stays."""
    controller = _controller_after_warmup(config)
    if config.warmup is None or config.where == "none":
        return controller
    return WarmupKLController(controller, start=config.warmup.start, rollouts=config.warmup.rollouts)


def _controller_after_warmup(config: KLConfig) -> KLController:
    target = config.target if config.where != "none" else None
    low, high = config.min_coef, config.max_coef
    if target is not None and config.controller == "doubling":
        limits = _limits(low, high, DOUBLING_LIMITS)
        return DoublingKLController(
            config.coef, target=target, tolerance=config.tolerance, factor=config.factor, limits=limits
        )
    if target is not None and config.controller == "constraint":
        largest = LARGEST_MULTIPLIER if high is None else high
        return ConstraintKLController(config.coef, limit=target, step_size=config.step_size, largest=largest)
    limits = _limits(low, high, PROPORTIONAL_LIMITS)
    return AdaptiveKLController(
        config.coef, target=target, horizon=config.horizon, error_clip=config.error_clip, limits=limits
    )


def _limits(low: float | None, high: float | None, default: tuple[float, float]) -> tuple[float, float]:
    return default[0] if low is None else low, default[1] if high is None else high


class WarmupKLController:
    """Holds a KL weight that goes from one number to another in a straight line, and is another controller's from then on.

        coef = start + (coef of the other - start) * n / rollouts,    n = rollouts that were reported so far

    What the rollouts of the warm-up show does not reach the other controller: their KL is that of another weight.

    Args:
        controller: Whose weight is the end of the line.
        start: The weight of the first rollout.
        rollouts: The first rollout with the other controller's weight, counted from 0; at least 1.
    """

    def __init__(self, controller: KLController, *, start: float, rollouts: int) -> None:
        self.controller = controller
        self.start = start
        self.rollouts = rollouts
        self.num_updates = 0

    @property
    def coef(self) -> float:
        """The weight as it is now."""
        if self.num_updates >= self.rollouts:
            return self.controller.coef
        return self.start + (self.controller.coef - self.start) * self.num_updates / self.rollouts

    def update(self, kl: float, num_sequences: int) -> None:
        """One step of the line, or of the other controller."""
        if self.num_updates >= self.rollouts:
            self.controller.update(kl, num_sequences)
        else:
            self.num_updates += 1

    def state_dict(self) -> dict[str, Any]:
        """How far it is, and the other's."""
        return {"num_updates": self.num_updates, "controller": self.controller.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state_dict`` was taken."""
        self.num_updates = state["num_updates"]
        self.controller.load_state_dict(state["controller"])


class AdaptiveKLController:
    """Holds a KL weight that moves towards a target KL.

        error = clip(kl / target - 1, -error_clip, error_clip);   coef <- coef * (1 + error * n / horizon)

    Source: Ziegler et al. 2019, section 2.2, arXiv:1909.08593. There the error is clipped at 0.2. Without a target the weight stays.

    Args:
        coef: Initial weight; above 0 where there is a target, as the rule multiplies.
        target: KL in nats per sequence, or None for a fixed weight.
        horizon: Sequences over which the weight may change by about ``error_clip``.
        error_clip: Above 0; the error counts up to this.
        limits: The weight never leaves this range, which is widened to hold the initial one: a limit must not overrule it.
    """

    def __init__(
        self,
        coef: float,
        *,
        target: float | None = None,
        horizon: int = 10_000,
        error_clip: float = 0.2,
        limits: tuple[float, float] = PROPORTIONAL_LIMITS,
    ) -> None:
        if target is not None and (not target > 0 or not coef > 0):
            raise ConfigError(
                f"A KL weight of {coef} can't be moved towards a target KL of {target} in proportion to the error; both must "
                "be above 0."
            )
        self.coef = coef
        self.target = target
        self.horizon = horizon
        self.error_clip = error_clip
        self.limits = min(limits[0], coef), max(limits[1], coef)

    def update(self, kl: float, num_sequences: int) -> None:
        """Adapt after a rollout whose mean KL was ``kl`` nats per sequence; a KL that is not finite changes nothing."""
        if self.target is None or not math.isfinite(kl):
            return
        error = min(max(kl / self.target - 1, -self.error_clip), self.error_clip)
        low, high = self.limits
        self.coef = min(max(self.coef * (1 + error * num_sequences / self.horizon), low), high)

    def state_dict(self) -> dict[str, Any]:
        """The weight."""
        return {"coef": self.coef}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state_dict`` was taken."""
        self.coef = state["coef"]


class DoublingKLController:
    """Holds a KL weight that doubles where the policy went too far and halves where it hardly moved.

        kl > target * tolerance:  coef <- coef * factor;    kl < target / tolerance:  coef <- coef / factor

    The rule of PPO's penalty form, with its 1.5 and 2. It answers at once, where ``AdaptiveKLController`` moves by
    some percent. The paper penalizes and measures the KL to the policy before the update, which each update decides again;
    trainers feed it the KL to the reference, whose penalty the weight is of. That one grows over a run and answers late, so
    the weight may swing about a target by a factor or two.

    Source: Schulman et al. 2017, section 4, arXiv:1707.06347.

    Args:
        coef: Initial weight, above 0.
        target: KL in the caller's units, above 0; the same units as in ``update``.
        tolerance: Above 1; the weight stays while the KL is within this factor of the target.
        factor: Above 1; what the weight is multiplied or divided by.
        limits: The weight never leaves this range, which is widened to hold the initial one.
    """

    def __init__(
        self,
        coef: float,
        *,
        target: float,
        tolerance: float = 1.5,
        factor: float = 2.0,
        limits: tuple[float, float] = DOUBLING_LIMITS,
    ) -> None:
        if not target > 0 or not coef > 0:
            raise ConfigError(
                f"A KL weight of {coef} with a target KL of {target} can't be doubled and halved towards it; both must be "
                "above 0."
            )
        if not tolerance > 1 or not factor > 1:
            raise ConfigError(
                f"The KL weight is to change by a factor of {factor} beyond {tolerance} times the target; both must be "
                "above 1, such as 2 and 1.5."
            )
        self.coef = coef
        self.target = target
        self.tolerance = tolerance
        self.factor = factor
        self.limits = min(limits[0], coef), max(limits[1], coef)

    def update(self, kl: float, num_sequences: int = 1) -> None:
        """Adapt after a rollout or an update whose mean KL was ``kl``; a KL that is not finite changes nothing.

        ``num_sequences`` is taken so that both controllers are called alike; the rule does not use it.
        """
        if not math.isfinite(kl):
            return
        low, high = self.limits
        if kl > self.target * self.tolerance:
            self.coef = min(self.coef * self.factor, high)
        elif kl < self.target / self.tolerance:
            self.coef = max(self.coef / self.factor, low)

    def state_dict(self) -> dict[str, Any]:
        """The weight."""
        return {"coef": self.coef}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state_dict`` was taken."""
        self.coef = state["coef"]


class ConstraintKLController:
    """Holds the multiplier of the constraint kl <= limit: 0 while the policy is well inside, as large as needed outside.

        coef <- clip(coef + step_size * (kl / limit - 1), 0, largest)

    Projected gradient ascent on the Lagrangian. A target is approached from both sides; a limit costs nothing until it
    is reached.

    Source: as the multiplier of a cost, Dai et al. 2023 (Safe RLHF), arXiv:2310.12773.

    Args:
        coef: Initial multiplier, at least 0.
        limit: Largest KL wanted, above 0; the same units as in ``update``.
        step_size: Change of the multiplier, in its units, when the KL is twice the limit.
        largest: The multiplier never exceeds this.
    """

    def __init__(
        self, coef: float = 0.0, *, limit: float, step_size: float = 0.01, largest: float = LARGEST_MULTIPLIER
    ) -> None:
        if not limit > 0 or not step_size > 0 or not 0 <= coef <= largest:
            raise ConfigError(
                f"A KL constraint needs a limit and a step size above 0, and a multiplier from 0 to {largest}; got limit "
                f"{limit}, step size {step_size}, multiplier {coef}."
            )
        self.coef = coef
        self.limit = limit
        self.step_size = step_size
        self.largest = largest

    def update(self, kl: float, num_sequences: int = 1) -> None:
        """Adapt after a rollout whose mean KL was ``kl``; one that is not finite changes nothing.

        ``num_sequences`` is taken so that all controllers are called alike; the rule does not use it.
        """
        if math.isfinite(kl):
            self.coef = min(max(self.coef + self.step_size * (kl / self.limit - 1), 0.0), self.largest)

    def state_dict(self) -> dict[str, Any]:
        """The multiplier."""
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
