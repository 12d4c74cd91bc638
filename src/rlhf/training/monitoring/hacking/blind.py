"""The held-out judge gives no scores, so that the detectors that need it are silent and not calm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rlhf.config.hacking import BlindConfig
from rlhf.training.monitoring.hacking.observations import Array, Detection, HeldOutObservation, none_penalized


class Blind:
    """Held-out prompts that the judge scored at every one of the newest evaluations: those that have a slope.

        alarm:  #{i : the judge's score of prompt i is finite at each of the last W evaluations} < min_prompts

    A judge that fails, and a list of prompts that is too short, raise no alarm of any other detector.

    Args:
        config: Window and prompts.
    """

    def __init__(self, config: BlindConfig) -> None:
        self.window, self.min_prompts = config.window, config.min_prompts
        self.value: float | None = None
        """Prompts."""
        self.scored: list[list[bool]] = []

    def update(self, observation: HeldOutObservation) -> Detection | None:
        """Take an observation in; what is wrong now, also where that was said before."""
        self.scored = [*self.scored, np.isfinite(observation.judge).tolist()][-self.window :]
        if len(self.scored) < self.window:
            return None
        count = int(np.all(self.scored, axis=0).sum())
        self.value = float(count)
        if count >= self.min_prompts:
            return None
        return Detection(
            value=self.value,
            limit=float(self.min_prompts),
            message=(
                f"Of {len(observation.judge)} held-out prompts {count} had a score of the judge at each of the last {self.window} evaluations, "
                f"and at least {self.min_prompts} are needed: the detectors that ask the judge see nothing, or are wrong more often than "
                "they say. Look at why the judge gives no scores, or give more held-out prompts."
            ),
        )

    def penalties(self, observation: HeldOutObservation) -> Array:
        """[n] what `penalize` subtracts from the rewards of an observation that was just taken in."""
        return none_penalized(observation.proxy)

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers and lists."""
        return {"scored": self.scored, "value": self.value}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state_dict`` was taken."""
        self.scored, self.value = [list(each) for each in state["scored"]], state["value"]
