"""Heuristic, off by default: single rewards far from the earlier ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rlhf.config.hacking import SimpleSpikesConfig
from rlhf.training.monitoring.hacking.observations import Array, Detection, RolloutObservation, strongest


class SimpleSpikes:
    """Each reward against mean and standard deviation of the 50 before it, in the order of the rollout.

        flagged:  |r - mean| > 3 sd;   penalty of a reward above:  r - (mean + 3 sd)

    A reward is compared with earlier ones only: among those that it is part of, one of 50 can't be more than seven deviations away, and a
    burst hides itself. Of a thousand healthy rollouts most have some that are flagged (docs/results/hacking-detectors.md).

    Args:
        config: Window and deviations.
    """

    def __init__(self, config: SimpleSpikesConfig) -> None:
        self.window, self.deviations = config.window, config.deviations
        self.value: float | None = None
        """Largest distance of the newest rollout, in deviations."""
        self.earlier: list[float] = []
        self._newest: tuple[Array, Array] = (np.zeros(0), np.zeros(0))
        """Distance of each reward of the newest rollout, and what it is above its limit."""

    def update(self, observation: RolloutObservation) -> Detection | None:
        """Take an observation in; what is wrong now, also where that was said before."""
        distances, excess = self._measure(observation.rewards)
        self._newest = distances, excess
        self.earlier = [*self.earlier, *observation.rewards.tolist()][-self.window :]
        self.value = float(distances.max()) if len(distances) else None
        flagged = distances > self.deviations
        if not flagged.any():
            return None
        return Detection(
            value=float(distances.max()),
            limit=self.deviations,
            message=(
                f"{int(flagged.sum())} of {len(flagged)} rewards of a rollout are more than {self.deviations:g} standard deviations from the "
                f"mean of the {self.window} before them. In a long run some always are: look at rollouts, not at single rewards."
            ),
            places=strongest(flagged * distances),
        )

    def penalties(self, observation: RolloutObservation) -> Array:
        """[n] what `penalize` subtracts from the rewards of an observation that was just taken in."""
        return self._newest[1]

    def _measure(self, rewards: Array) -> tuple[Array, Array]:
        """[n] distance in deviations, 0 without enough earlier rewards; [n] excess above the limit."""
        distances, excess = np.zeros(len(rewards)), np.zeros(len(rewards))
        everything = np.concatenate([np.array(self.earlier), rewards])
        first = max(0, self.window - len(self.earlier))
        if first >= len(rewards):
            return distances, excess
        ends = np.arange(first, len(rewards)) + len(self.earlier)
        earlier = np.lib.stride_tricks.sliding_window_view(everything, self.window)[ends - self.window]
        means, deviations = earlier.mean(axis=1), earlier.std(axis=1, ddof=1)
        gaps = rewards[first:] - means
        far = np.divide(np.abs(gaps), deviations, out=np.where(gaps == 0, 0.0, np.inf), where=deviations > 0)
        distances[first:] = far
        excess[first:] = np.where(far > self.deviations, np.maximum(gaps - self.deviations * deviations, 0.0), 0.0)
        return distances, excess

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers and lists."""
        return {"earlier": self.earlier, "value": self.value}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state_dict`` was taken."""
        self.earlier, self.value = list(state["earlier"]), state["value"]
