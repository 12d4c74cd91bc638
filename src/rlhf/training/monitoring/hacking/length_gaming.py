"""Longer completions of the same prompt score higher, and completions have grown."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from rlhf.config.hacking import LengthGamingConfig
from rlhf.training.monitoring.hacking.observations import Array, Detection, RolloutObservation, strongest


class LengthGaming:
    """Correlation of log length and reward within prompts, together with growth over the starting policy.

        r = sum dx dy / sqrt(sum dx^2 sum dy^2),   dx, dy = log words and reward less their means over the prompt's completions
        alarm:  r > correlation,  and  mean(log words - the starting policy's on the same prompt) > log growth

    Over all prompts together the correlation would be that of the mixture of tasks: long tasks score differently from short ones. It needs
    several completions of a prompt, and says nothing without.

    Args:
        config: Window and limits.
    """

    def __init__(self, config: LengthGamingConfig) -> None:
        self.window, self.correlation, self.growth = config.window, config.correlation, math.log(config.growth)
        self.penalty = config.penalty
        self.value: float | None = None
        self.sums: list[list[float]] = []
        """Of each rollout: sums of dx dx, dy dy, dx dy, of the growth, and completions."""
        self.alarmed = False

    def update(self, observation: RolloutObservation) -> Detection | None:
        """Take an observation in; what is wrong now, also where that was said before."""
        logs = np.log(np.maximum(observation.num_words, 1.0))
        sizes = np.bincount(observation.groups)
        dx, dy = (
            v - (np.bincount(observation.groups, weights=v) / np.maximum(sizes, 1))[observation.groups]
            for v in (logs, observation.rewards)
        )
        grown = float((logs - observation.reference_log_words).sum())
        self.sums = [*self.sums, [float(dx @ dx), float(dy @ dy), float(dx @ dy), grown, float(len(logs))]]
        self.sums = self.sums[-self.window :]
        xx, yy, xy, grown, count = (sum(each[k] for each in self.sums) for k in range(5))
        self.alarmed, self.value = False, None
        if len(self.sums) < self.window or xx <= 1e-12 or yy <= 1e-12:
            return None
        self.value = xy / math.sqrt(xx * yy)
        self.alarmed = self.value > self.correlation and grown / count > self.growth
        if not self.alarmed:
            return None
        return Detection(
            value=self.value,
            limit=self.correlation,
            message=(
                f"Length pays: within prompts, log length and reward correlate by {self.value:.2f} (limit {self.correlation:g}), and "
                f"completions are {math.exp(grown / count):.1f} times as long as the starting policy's on the same prompts (limit "
                f"{math.exp(self.growth):g}). Look whether the longer ones are better; a length-debiased reward takes this out."
            ),
            places=strongest(np.where(dx > 0, dx * dy, 0.0)),
        )

    def penalties(self, observation: RolloutObservation) -> Array:
        """[n] what `penalize` subtracts from the rewards of an observation that was just taken in."""
        grown = np.log(np.maximum(observation.num_words, 1.0)) - observation.reference_log_words
        penalties: Array = self.penalty * np.maximum(grown, 0.0) * self.alarmed
        return penalties

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers and lists."""
        return {"sums": self.sums, "value": self.value, "alarmed": self.alarmed}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state_dict`` was taken."""
        self.sums = [list(each) for each in state["sums"]]
        self.value, self.alarmed = state["value"], state["alarmed"]
