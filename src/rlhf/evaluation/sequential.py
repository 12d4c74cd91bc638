"""Comparisons that may be looked at any time: evidence that grows with the data, and stays valid whenever one stops.

A fixed-n interval that is looked at every 10 comparisons from 50 to 1,000 calls equal models different in 31 % of runs. An
e-process E has expectation at most 1 at any stopping time if there is no difference, so P(E ever reaches 1 / alpha) is at
most alpha (Ville 1939): stop when it does, or go on, as you like.

    VoteProcess        decisive votes; E by the beta-binomial, an interval, a p-value
    BettingProcess     any outcomes in [0, 1], such as wins with ties or shares of a prompt's samples
    mixture_interval   mean of outcomes in [0, 1], an interval that holds at all times together
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import brentq
from scipy.special import betaln, logsumexp

from rlhf.errors import CheckpointError, ConfigError
from rlhf.evaluation.intervals import CONFIDENCE, Array, Estimate, check_confidence

PRIOR = 10.0
"""Of the beta-binomial: most power at win rates of 0.4 to 0.6."""
BETS = (0.05, 0.1, 0.2, 0.4, 0.8)
"""Stakes of the betting process, averaged: large ones are quick where the difference is large, small ones find small ones."""


class VoteProcess:
    """Evidence that the first of two systems wins more or fewer than half of the decisive votes.

        E = 2^n B(a + wins, a + losses) / B(a, a),   n = wins + losses

    Median stop at 95 %: 85, 183 and 729 votes where it wins 65, 60 and 55 %, against 85, 194 and 783 with a number that was
    fixed before; of equal systems 3.0 % are ever called different.

    Sources: Johari et al. 2015, "Always valid inference", arXiv:1512.04922 (mixture SPRT); Ramdas et al. 2022,
    "Game-theoretic statistics and safe anytime-valid inference", arXiv:2210.01948.

    Args:
        prior: a, above 0. Larger is better at smaller differences.
    """

    def __init__(self, *, prior: float = PRIOR) -> None:
        if not prior > 0:
            raise ConfigError(f"The prior of a vote process is {prior}; it is above 0.")
        self.prior = float(prior)
        self.wins = self.losses = self.ties = 0
        self.max_log_e = 0.0

    def update(self, outcomes: ArrayLike) -> Array:
        """Take further votes, in order: 1 won, 0 lost, 1/2 a tie, which is counted and says nothing.

        Returns:
            [n] log E after each.
        """
        y = _checked_outcomes(outcomes)
        if not np.isin(y, (0.0, 0.5, 1.0)).all():
            raise ConfigError("A vote is 1, 0 or 1/2; for shares between them use BettingProcess.")
        wins, losses = self.wins + np.cumsum(y == 1), self.losses + np.cumsum(y == 0)
        path = self._log_e(wins, losses, 0.5)
        if y.size:
            self.max_log_e = max(self.max_log_e, float(path.max()))
            self.wins, self.losses, self.ties = int(wins[-1]), int(losses[-1]), self.ties + int((y == 0.5).sum())
        return path

    @property
    def log_e(self) -> float:
        """log E of all votes so far, against a share of one half."""
        return float(self._log_e(self.wins, self.losses, 0.5))

    @property
    def p_value(self) -> float:
        """That holds at any time: 1 / the largest E so far."""
        return math.exp(-self.max_log_e)

    def interval(self, *, confidence: float = CONFIDENCE) -> Estimate:
        """Share of decisive votes won, with all shares p0 whose E(p0) is below 1 / alpha: it holds at all times together."""
        check_confidence(confidence)
        n = self.wins + self.losses
        if n == 0:
            return Estimate.missing("there was no decisive vote")
        share, limit = self.wins / n, -math.log1p(-confidence)

        def excess(p0: float) -> float:
            return float(self._log_e(self.wins, self.losses, p0)) - limit

        tiny = 1e-12
        low = 0.0 if self.wins == 0 else _crossing(excess, tiny, share)
        high = 1.0 if self.losses == 0 else _crossing(excess, 1 - tiny, share)
        return Estimate(value=share, low=low, high=high, n=n, confidence=confidence)

    def state_dict(self) -> dict[str, Any]:
        """JSON."""
        return {
            "prior": self.prior, "wins": self.wins, "losses": self.losses, "ties": self.ties, "max_log_e": self.max_log_e,
        }  # fmt: skip

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of a process with the same prior."""
        check_same("prior", self.prior, state["prior"])
        self.wins, self.losses, self.ties = int(state["wins"]), int(state["losses"]), int(state["ties"])
        self.max_log_e = float(state["max_log_e"])

    def _log_e(self, wins: ArrayLike, losses: ArrayLike, p0: float) -> Any:
        s, f = np.asarray(wins, dtype=np.float64), np.asarray(losses, dtype=np.float64)
        a = self.prior
        return betaln(a + s, a + f) - betaln(a, a) - s * math.log(p0) - f * math.log1p(-p0)


class BettingProcess:
    """Evidence that the mean of outcomes in [0, 1] lies above (or below) a value.

        E = mean over bets of prod_i (1 + bet (y_i - m)),   and (m - y_i) for "below"

    It is valid for independent prompts with means of their own, if their average obeys the hypothesis: a fixed set of prompts
    is fine (their logs are concave, so the product's expectation is largest where all means are equal).

    Source: Waudby-Smith and Ramdas 2020, "Estimating means of bounded random variables by betting", arXiv:2010.09686.

    Args:
        mean: m, the hypothesis, between 0 and 1.
        side: ``above`` gathers evidence against a mean of at most m, ``below`` against one of at least m.
        bets: Each above 0 and at most 1, so that no factor is negative.
    """

    def __init__(self, mean: float, *, side: str = "above", bets: Sequence[float] = BETS) -> None:
        if not 0 < mean < 1 or side not in ("above", "below") or not bets or not all(0 < bet <= 1 for bet in bets):
            raise ConfigError(
                f"A betting process needs a mean between 0 and 1, side 'above' or 'below' and bets above 0 and at most 1; got "
                f"{mean}, {side!r} and {list(bets)}."
            )
        self.mean, self.side, self.bets = float(mean), side, tuple(float(bet) for bet in bets)
        self.n = 0
        self.max_log_e = 0.0
        self._log_wealth: Array = np.zeros(len(self.bets))

    def update(self, outcomes: ArrayLike) -> Array:
        """Take further outcomes, in order.

        Returns:
            [n] log E after each.
        """
        y = _checked_outcomes(outcomes)
        gains = (y - self.mean) if self.side == "above" else (self.mean - y)
        wealth = self._log_wealth + np.cumsum(np.log1p(np.multiply.outer(gains, self.bets)), axis=0)
        path: Array = logsumexp(wealth, axis=1) - math.log(len(self.bets))
        if y.size:
            self.max_log_e = max(self.max_log_e, float(path.max()))
            self._log_wealth = wealth[-1]
            self.n += y.size
        return path

    @property
    def log_e(self) -> float:
        """log E of all outcomes so far."""
        return float(logsumexp(self._log_wealth)) - math.log(len(self.bets))

    @property
    def p_value(self) -> float:
        """That holds at any time: 1 / the largest E so far."""
        return math.exp(-self.max_log_e)

    def state_dict(self) -> dict[str, Any]:
        """JSON."""
        return {
            "mean": self.mean, "side": self.side, "bets": list(self.bets), "n": self.n, "max_log_e": self.max_log_e,
            "log_wealth": self._log_wealth.tolist(),
        }  # fmt: skip

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of a process with the same hypothesis and bets."""
        check_same("mean", self.mean, state["mean"])
        check_same("side", self.side, state["side"])
        check_same("bets", list(self.bets), list(state["bets"]))
        self.n, self.max_log_e = int(state["n"]), float(state["max_log_e"])
        self._log_wealth = np.asarray(state["log_wealth"], dtype=np.float64)


def mixture_interval(
    outcomes: ArrayLike, *, best_at: int = 200, spread: float = 1.0, confidence: float = CONFIDENCE
) -> Estimate:
    """Mean of bounded outcomes with an interval that holds at all times together, so it may be looked at after each.

        half-width = sqrt(2 sigma^2 (n + r) / n^2 log(sqrt((n + r) / r) / alpha)),   sigma = spread / 2
        r          = n0 / (log(1/alpha^2) + log log(1/alpha^2) + 1)

    Wider than an interval at a fixed n: at n = n0 = 200 and 95 % it is 0.108 on each side where that has 0.069.

    Sources: Robbins 1970, "Statistical methods related to the law of the iterated logarithm"; Howard et al. 2021,
    "Time-uniform, nonparametric, nonasymptotic confidence sequences", eq. 14, arXiv:1810.08240.

    Args:
        outcomes: [n] so far, one for each independent unit.
        best_at: n0, the number of units at which it is about as narrow as it can be; chosen before the data.
        spread: Largest less smallest possible outcome: 1 for outcomes in [0, 1], 2 for differences of two of them.
        confidence: Share of runs in which it holds the mean at every n, one half or more.
    """
    check_confidence(confidence)
    if confidence < 0.5:
        raise ConfigError(f"The confidence is {confidence}; an interval for all times takes 0.5 or more, such as 0.95.")
    y = np.asarray(outcomes, dtype=np.float64)
    if y.size == 0 or not np.isfinite(y).all():
        return Estimate.missing("there was nothing to measure" if y.size == 0 else "an outcome is not finite", n=y.size)
    if np.ptp(y) > spread or best_at < 1:
        raise ConfigError(
            f"Outcomes span {np.ptp(y):g} and the spread is {spread:g}; best_at is {best_at}, at least 1."
        )
    alpha, n = 1 - confidence, y.size
    log_level = -2 * math.log(alpha)
    r = best_at / (log_level + math.log(log_level) + 1)
    half = math.sqrt(spread**2 / 2 * (n + r) / n**2 * math.log(math.sqrt((n + r) / r) / alpha))
    mean = float(y.mean())
    return Estimate(value=mean, low=mean - half, high=mean + half, n=n, confidence=confidence)


def check_same(name: str, mine: Any, saved: Any) -> None:
    """Refuse a saved state that belongs to another test: a bound on errors does not survive a changed hypothesis."""
    if mine != saved:
        raise CheckpointError(
            f"The saved state of a sequential test has {name} {saved!r}, and this test has {mine!r}. Start a new test, on data "
            "that the old one has not seen."
        )


def _checked_outcomes(outcomes: ArrayLike) -> Array:
    y = np.atleast_1d(np.asarray(outcomes, dtype=np.float64))
    if y.ndim != 1 or not ((y >= 0) & (y <= 1)).all():  # NaN fails both
        raise ConfigError(
            f"Outcomes of a sequential test are finite numbers from 0 to 1; got {y[~((y >= 0) & (y <= 1))][:3].tolist()}."
        )
    return y


def _crossing(excess: Any, end: float, share: float) -> float:
    """Where E passes the limit between an end of [0, 1] and the share that was seen; the end if it does not."""
    inside = min(max(share, 1e-12), 1 - 1e-12)
    return float(brentq(excess, end, inside, xtol=1e-10)) if excess(end) > 0 else float(round(end))
