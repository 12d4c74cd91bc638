"""Losses against the best checkpoint so far, as an e-detector: no calibration, and a stated false-alarm rate."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy.special import logsumexp

from rlhf.config.hacking import WinRateDropConfig
from rlhf.training.monitoring.hacking.observations import (
    Array,
    Detection,
    HeldOutObservation,
    none_penalized,
    strongest,
)

BETS = (0.1, 0.2, 0.4, 0.8, 1.2)
"""lambda: sizes of the bets that are averaged; each must stay below 1 / (1 - win rate)."""


class WinRateDrop:
    """Shiryaev-Roberts e-detector of a win rate below ``win_rate`` against cached completions of the best checkpoint.

        y_i   = share of wins of prompt i's new completion over the anchor's completions of the same prompt, ties half
        L     = prod_i (1 + lambda (win_rate - y_i))
        M     <- (1 + M) L,    one for each lambda of ``BETS``
        alarm:  mean over lambda of M >= J / alpha,    J evaluations planned

    While the true win rate is at least ``win_rate``, the chance of an alarm within J evaluations is at most alpha, whatever the
    scores look like. The anchor is the checkpoint with the highest mean of the judge over ``anchor_window`` evaluations up to it. Its
    completions are sampled after it was chosen: those that chose it were lucky. Where the anchor changes, the bets go on.

    Source: Shin, Ramdas and Rinaldo 2022, arXiv:2203.03532.

    Args:
        config: Win rate, alpha and anchor.
        horizon: J.
    """

    def __init__(self, config: WinRateDropConfig, *, horizon: int) -> None:
        self.win_rate, self.alpha, self.horizon = config.win_rate, config.alpha, max(1, horizon)
        self.anchor_window, self.anchor_gain = config.anchor_window, config.anchor_gain
        self.anchor_completions = config.anchor_completions
        self.bets = np.array([bet for bet in BETS if bet < 1 / (1 - config.win_rate)])
        self.value: float | None = None
        """Log of the e-detector, less that of its limit: an alarm from 0 on."""
        self.newest_win_rate: float | None = None
        self.log_m = np.full(len(self.bets), -math.inf)
        self.means: list[float] = []
        """Of the judge, over the newest ``anchor_window`` evaluations."""
        self.best = -math.inf
        self.anchor_step: int | None = None
        self.anchor: Array | None = None
        """[n, anchor_completions] the judge's scores of the anchor's completions."""
        self.wants_anchor = False
        """Whether the policy as it is has just become the anchor, and is to be sampled for ``set_anchor``."""

    def update(self, observation: HeldOutObservation) -> Detection | None:
        """Take an observation in; what is wrong now, also where that was said before."""
        detection = self._bet(observation) if self.anchor is not None else None
        judged = observation.judge[np.isfinite(observation.judge)]
        self.wants_anchor = False
        if len(judged) < 2:
            return detection
        self.means = [*self.means, float(judged.mean())][-self.anchor_window :]
        trailing, error = float(np.mean(self.means)), float(judged.std(ddof=1)) / math.sqrt(len(judged))
        better = self.anchor is None or trailing > self.best + self.anchor_gain * error
        self.wants_anchor = len(self.means) == self.anchor_window and better
        if self.wants_anchor:
            self.best, self.anchor_step = trailing, observation.step
        return detection

    def set_anchor(self, scores: Array) -> None:
        """Compare with these from now on.

        Args:
            scores: [n, k] the judge's scores of k new completions of each prompt by the policy as it is; NaN where there is none.
        """
        self.anchor, self.wants_anchor = np.asarray(scores, dtype=np.float64), False

    def _bet(self, observation: HeldOutObservation) -> Detection | None:
        assert self.anchor is not None
        wins = win_shares(observation.judge, self.anchor)
        there = wins[np.isfinite(wins)]
        if not len(there):
            return None
        factors = 1 + self.bets[:, None] * (self.win_rate - there)
        self.log_m = np.logaddexp(0.0, self.log_m) + np.log(factors).sum(axis=1)
        limit = math.log(self.horizon / self.alpha)
        self.value = float(logsumexp(self.log_m)) - math.log(len(self.bets)) - limit
        self.newest_win_rate = float(there.mean())
        if self.value < 0:
            return None
        return Detection(
            value=self.value,
            limit=0.0,
            message=(
                f"The policy loses against its own checkpoint of step {self.anchor_step} in the eyes of the held-out judge: win rate "
                f"{self.newest_win_rate:.2f} at this evaluation, and below {self.win_rate:g} over the evaluations together (e-value "
                f"10^{self.value / math.log(10):.1f} times its limit). Go back to that checkpoint, or raise kl.coef."
            ),
            places=strongest(0.5 - wins),
            good_step=self.anchor_step,
        )

    def penalties(self, observation: HeldOutObservation) -> Array:
        """[n] what `penalize` subtracts from the rewards of an observation that was just taken in."""
        return none_penalized(observation.proxy)

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers and lists."""
        return {
            "value": self.value,
            "newest_win_rate": self.newest_win_rate,
            "log_m": self.log_m.tolist(),
            "means": self.means,
            "best": self.best,
            "anchor_step": self.anchor_step,
            "anchor": None if self.anchor is None else self.anchor.tolist(),
            "wants_anchor": self.wants_anchor,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state_dict`` was taken."""
        self.value, self.newest_win_rate = state["value"], state["newest_win_rate"]
        self.log_m = np.array(state["log_m"])
        self.means, self.best, self.anchor_step = list(state["means"]), state["best"], state["anchor_step"]
        self.anchor = None if state["anchor"] is None else np.array(state["anchor"])
        self.wants_anchor = state["wants_anchor"]


def win_shares(scores: Array, anchor: Array) -> Array:
    """[n] share of each row of ``anchor`` [n, k] that a score [n] beats, ties half; NaN where either is missing."""
    with np.errstate(invalid="ignore"):
        points = (scores[:, None] > anchor) + 0.5 * (scores[:, None] == anchor)
    there = np.isfinite(anchor) & np.isfinite(scores)[:, None]
    count = there.sum(axis=1)
    total = np.where(there, points, 0.0).sum(axis=1)
    return np.divide(total, count, out=np.full(len(scores), np.nan), where=count > 0)
