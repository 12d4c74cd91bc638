"""Heuristic, off by default: single completions with many repeated three-word runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rlhf.config.hacking import SimpleRepetitionConfig
from rlhf.formatting import percentage
from rlhf.training.monitoring.hacking.observations import Array, Detection, RolloutObservation, strongest


class SimpleRepetition:
    """Share of a completion's three-word runs that stood in it before.

        flagged:  rate > 0.3;   penalty:  2 rate

    The rate grows with length by itself: of real texts above 400 words 28 % are flagged, among them lists, plans and JSON
    (docs/reward-hacking.md). It is here because it was asked for; ``RepetitionShare`` is what to use.

    Args:
        config: Rate, factor and shortest text.
    """

    def __init__(self, config: SimpleRepetitionConfig) -> None:
        self.min_words, self.rate, self.factor = config.min_words, config.rate, config.penalty_factor
        self.value: float | None = None

    def update(self, observation: RolloutObservation) -> Detection | None:
        """Take an observation in; what is wrong now, also where that was said before."""
        flagged = self._flagged(observation)
        rates = observation.trigram_rates
        self.value = float(rates.max()) if len(rates) else None
        if not flagged.any():
            return None
        return Detection(
            value=float(rates[flagged].max()),
            limit=self.rate,
            message=(
                f"{int(flagged.sum())} of {len(flagged)} completions of a rollout repeat more than {percentage(self.rate, 0)} of their "
                "three-word runs. Long texts, lists and code do that, too: compare with the starting policy."
            ),
            places=strongest(flagged * rates),
        )

    def penalties(self, observation: RolloutObservation) -> Array:
        """[n] what `penalize` subtracts from the rewards of an observation that was just taken in."""
        return np.where(self._flagged(observation), self.factor * observation.trigram_rates, 0.0)

    def _flagged(self, observation: RolloutObservation) -> Any:
        return (observation.trigram_rates > self.rate) & (observation.num_words >= self.min_words)

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers and lists."""
        return {"value": self.value}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state_dict`` was taken."""
        self.value = state["value"]
