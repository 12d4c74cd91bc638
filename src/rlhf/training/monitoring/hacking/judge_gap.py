"""Reward and held-out judge move apart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rlhf.config.hacking import JudgeGapConfig
from rlhf.training.monitoring.hacking.observations import (
    Array,
    Detection,
    HeldOutObservation,
    none_penalized,
    strongest,
)
from rlhf.training.monitoring.hacking.slopes import mean_t, prompt_slopes


class JudgeGap:
    """t statistic of the slopes of reward minus judge, each in units of its spread over prompts at the first evaluation.

    An honest judge gains less than the reward that is trained for (regression to the mean), so that the gap grows in healthy runs, too:
    a warning, and never a reason to stop.

    Args:
        config: Window and threshold.
    """

    def __init__(self, config: JudgeGapConfig) -> None:
        self.window, self.threshold = config.window, config.threshold
        self.value: float | None = None
        self.scales: list[float] = []
        """Spread over prompts of reward and judge at the first evaluation."""
        self.gaps: list[list[float]] = []

    def update(self, observation: HeldOutObservation) -> Detection | None:
        """Take an observation in; what is wrong now, also where that was said before."""
        if not self.scales:
            finite = [values[np.isfinite(values)] for values in (observation.proxy, observation.judge)]
            spreads = [float(values.std()) if len(values) else 0.0 for values in finite]
            if min(spreads) <= 0:
                return None  # all scores are equal, or none is there: there is no unit yet
            self.scales = spreads
        gap = observation.proxy / self.scales[0] - observation.judge / self.scales[1]
        self.gaps = [*self.gaps, gap.tolist()][-self.window :]
        if len(self.gaps) < self.window:
            return None
        slopes = prompt_slopes(np.array(self.gaps))
        self.value = mean_t(slopes)
        if self.value is None or self.value <= self.threshold:
            return None
        return Detection(
            value=self.value,
            limit=self.threshold,
            message=(
                f"Reward and held-out judge move apart over the last {self.window} evaluations (t {self.value:+.1f}, limit "
                f"{self.threshold:+.1f}). Some of that is normal: a judge gains less than what is trained for. Look at the samples."
            ),
            places=strongest(slopes),
        )

    def penalties(self, observation: HeldOutObservation) -> Array:
        """[n] what `penalize` subtracts from the rewards of an observation that was just taken in."""
        return none_penalized(observation.proxy)

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers and lists."""
        return {"scales": self.scales, "gaps": self.gaps, "value": self.value}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state_dict`` was taken."""
        self.scales, self.gaps, self.value = list(state["scales"]), list(state["gaps"]), state["value"]
