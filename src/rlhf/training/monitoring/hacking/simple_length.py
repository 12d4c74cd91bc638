"""Heuristic, off by default: completions are long, and length and reward correlate over the newest completions of all prompts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from rlhf.config.hacking import SimpleLengthConfig
from rlhf.training.monitoring.hacking.observations import Array, Detection, RolloutObservation, strongest


class SimpleLength:
    """Pearson correlation of words and rewards over the newest completions, whatever their prompts.

        flagged:  correlation > 0.7 and words / 200 > 2;   penalty:  log(words / 200 / 2)

    Measured (docs/results/hacking-detectors.md): mixtures of short and long tasks set it off in every run, and it raises as many alarms
    before length is gamed as after. It is here because it was asked for.

    Args:
        config: Baseline length and limits.
    """

    def __init__(self, config: SimpleLengthConfig) -> None:
        self.baseline, self.ratio, self.min_words = config.baseline_words, config.ratio, config.min_words
        self.correlation, self.min_values = config.correlation, config.min_values
        self.value: float | None = None
        self.num_seen = 0
        self.words: list[float] = []
        self.rewards: list[float] = []

    def update(self, observation: RolloutObservation) -> Detection | None:
        """Take an observation in; what is wrong now, also where that was said before."""
        counted = observation.num_words >= self.min_words
        self.num_seen += int(counted.sum())
        self.words = [*self.words, *observation.num_words[counted].tolist()][-self.min_values :]
        self.rewards = [*self.rewards, *observation.rewards[counted].tolist()][-self.min_values :]
        self.value = None
        if self.num_seen > self.min_values and np.std(self.words) > 0 and np.std(self.rewards) > 0:
            self.value = float(np.corrcoef(self.words, self.rewards)[0, 1])
        penalties = self.penalties(observation)
        if self.value is None or not penalties.any():
            return None
        return Detection(
            value=self.value,
            limit=self.correlation,
            message=(
                f"Length and reward of the newest {self.min_values} completions correlate by {self.value:.2f} (limit "
                f"{self.correlation:g}), and {int((penalties > 0).sum())} completions of this rollout are longer than "
                f"{self.ratio * self.baseline:g} words. Different tasks do that, too: compare completions of one prompt."
            ),
            places=strongest(penalties),
        )

    def penalties(self, observation: RolloutObservation) -> Array:
        """[n] what `penalize` subtracts from the rewards of an observation that was just taken in."""
        if self.value is None or self.value <= self.correlation:
            return np.zeros(len(observation.rewards))
        ratio = np.maximum(observation.num_words, 1.0) / self.baseline
        long = (ratio > self.ratio) & (observation.num_words >= self.min_words)
        return np.where(long, np.log(ratio) - math.log(self.ratio), 0.0)

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers and lists."""
        return {"num_seen": self.num_seen, "words": self.words, "rewards": self.rewards, "value": self.value}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state_dict`` was taken."""
        self.num_seen, self.value = state["num_seen"], state["value"]
        self.words, self.rewards = list(state["words"]), list(state["rewards"])
