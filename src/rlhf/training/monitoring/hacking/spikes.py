"""A mean reward far from those of the rollouts before it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import median
from typing import Any

from rlhf.config.hacking import SpikesConfig
from rlhf.training.monitoring.guard_rules import MAD_TO_DEVIATION
from rlhf.training.monitoring.hacking.observations import (
    Array,
    Detection,
    RolloutObservation,
    none_penalized,
    strongest,
)


class Spikes:
    """Distance of a rollout's mean reward from the median of those before, in robust deviations.

        alarm:  |m - median| > threshold * max(1.4826 MAD, sd of the rollout / sqrt(n))

    Single rewards would never do: of 64,000 some are three deviations away. The standard error of the mean itself keeps a reward that
    was constant for a while from setting it off.

    Args:
        config: Window and threshold.
    """

    def __init__(self, config: SpikesConfig) -> None:
        self.window, self.threshold = config.window, config.threshold
        self.value: float | None = None
        """Deviations."""
        self.means: list[float] = []

    def update(self, observation: RolloutObservation) -> Detection | None:
        """Take an observation in; what is wrong now, also where that was said before."""
        rewards = observation.rewards
        mean = float(rewards.mean())
        before, self.means = self.means, [*self.means, mean][-self.window :]
        if len(before) < self.window:
            return None
        middle = median(before)
        spread = MAD_TO_DEVIATION * median(abs(value - middle) for value in before)
        scale = max(spread, float(rewards.std()) / math.sqrt(len(rewards)), 1e-12)
        self.value = abs(mean - middle) / scale
        if self.value <= self.threshold:
            return None
        above = mean > middle
        return Detection(
            value=self.value,
            limit=self.threshold,
            message=(
                f"The mean reward of a rollout, {mean:.3g}, is {self.value:.0f} robust deviations {'above' if above else 'below'} the median "
                f"{middle:.3g} of the {self.window} before (limit {self.threshold:g}): the reward may be broken. Look at the samples."
            ),
            places=strongest((rewards - middle) * (1 if above else -1)),
        )

    def penalties(self, observation: RolloutObservation) -> Array:
        """[n] what `penalize` subtracts from the rewards of an observation that was just taken in."""
        return none_penalized(observation.rewards)

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers and lists."""
        return {"means": self.means, "value": self.value}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state_dict`` was taken."""
        self.means, self.value = list(state["means"]), state["value"]
