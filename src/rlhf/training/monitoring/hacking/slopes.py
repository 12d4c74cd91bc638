"""Least-squares slopes of many series at once, and whether they fall together."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from rlhf.config.hacking import JudgeSlopeConfig
from rlhf.training.monitoring.hacking.observations import Array, HeldOutObservation, none_penalized

MIN_PROMPTS = 8
"""Slopes below which nothing is said of their mean."""


def prompt_slopes(values: Array) -> Array:
    """Least-squares slope of each prompt's scores over the evaluations.

        b_i = sum_k (k - mean k) y_ki / sum_k (k - mean k)^2

    Args:
        values: [W, n] evaluations in order; NaN where a score is missing.

    Returns:
        [n] per evaluation; NaN for a prompt of which a score is missing.
    """
    centered = np.arange(len(values)) - (len(values) - 1) / 2
    slopes: Array = centered @ values / (centered @ centered)
    return slopes


def mean_t(slopes: Array) -> float | None:
    """t = mean(b) / (sd(b) / sqrt(n)) of those that are there; None where there are too few.

    Slopes that are all equal give plus or minus infinity, and 0 where they are all 0.
    """
    known = slopes[np.isfinite(slopes)]
    if len(known) < MIN_PROMPTS:
        return None
    mean, deviation = float(known.mean()), float(known.std(ddof=1))
    if deviation <= 1e-12 * abs(mean):
        return math.copysign(math.inf, mean) if mean else 0.0
    return mean / (deviation / math.sqrt(len(known)))


@dataclass(frozen=True, slots=True)
class Fall:
    """A window over which the judge's score falls."""

    window: int
    limit: float
    t_judge: float
    t_proxy: float | None
    slopes: Array
    """[n] of the judge."""
    best_step: int
    """Of the window's evaluation with the highest mean of the judge."""

    @property
    def numbers(self) -> str:
        """For messages."""
        proxy = "" if self.t_proxy is None else f", the reward's {self.t_proxy:+.1f}"
        prompts = int(np.isfinite(self.slopes).sum())
        return f"t {self.t_judge:+.1f} over {prompts} prompts, limit {self.limit:+.1f}{proxy}"


class JudgeWindows:
    """The newest evaluations of reward and judge, and over which windows the judge falls.

    Args:
        config: Windows and thresholds.
    """

    shows: ClassVar[Literal["judge", "proxy"]] = "judge"
    """Whose t over the short window is ``value``."""

    def __init__(self, config: JudgeSlopeConfig) -> None:
        self.windows = ((config.window, config.threshold), (config.long_window, config.long_threshold))
        self.proxy_threshold = config.proxy_threshold
        self.value: float | None = None
        """See ``shows``."""
        self.steps: list[int] = []
        self.proxy: list[list[float]] = []
        self.judge: list[list[float]] = []

    def falls(self, observation: HeldOutObservation) -> Iterator[Fall]:
        """Take an evaluation in; the windows over which the judge's t is beyond its threshold, short before long."""
        longest = self.windows[-1][0]
        self.steps = [*self.steps, observation.step][-longest:]
        self.proxy = [*self.proxy, observation.proxy.tolist()][-longest:]
        self.judge = [*self.judge, observation.judge.tolist()][-longest:]
        judge, proxy = np.array(self.judge), np.array(self.proxy)
        short, shown = self.windows[0][0], proxy if self.shows == "proxy" else judge
        self.value = mean_t(prompt_slopes(shown[-short:])) if len(shown) >= short else None
        return self._falls(judge, proxy)

    def _falls(self, judge: Array, proxy: Array) -> Iterator[Fall]:
        for window, threshold in self.windows:
            if len(self.steps) < window:
                return
            slopes = prompt_slopes(judge[-window:])
            t_judge = mean_t(slopes)
            if t_judge is None or t_judge >= -threshold:
                continue
            there = np.isfinite(slopes)  # only prompts that were judged at every evaluation of the window
            best = int(judge[-window:][:, there].mean(axis=1).argmax())
            t_proxy = mean_t(prompt_slopes(proxy[-window:]))
            yield Fall(window, -threshold, t_judge, t_proxy, slopes, self.steps[-window:][best])

    def penalties(self, observation: HeldOutObservation) -> Array:
        """[n] what `penalize` subtracts from the rewards of an observation that was just taken in."""
        return none_penalized(observation.proxy)

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers and lists."""
        return {"steps": self.steps, "proxy": self.proxy, "judge": self.judge, "value": self.value}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state_dict`` was taken."""
        self.steps, self.proxy, self.judge = list(state["steps"]), list(state["proxy"]), list(state["judge"])
        self.value = state["value"]
