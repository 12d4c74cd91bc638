"""What a fit of strengths gives, and the two steps that all fits share: Newton's method and a covariance over prompts."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

import numpy as np
from scipy.special import expit, log_expit, stdtrit

from rlhf.errors import UnknownNameError, did_you_mean
from rlhf.evaluation.intervals import CONFIDENCE, Array, Estimate

ELO_SCALE = 400 / math.log(10)
"""Elo points to a unit of log-odds."""
Objective = Callable[[Array], tuple[float, Array, Array]]
"""Parameters [P] -> value to minimize (inf outside of its domain), gradient [P], Hessian [P, P]."""
MAX_STEPS = 200
TOLERANCE = 1e-12
"""Newton decrement (twice the distance of the log-likelihood from its maximum) at which a fit is done."""
NO_VARIANCE = 1e-18
"""Squared log-odds: what rounding leaves of a variance of 0, as where all matches were ties."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratings:
    """Strengths of systems as log-odds, mean 0, with the covariance of their errors."""

    strengths: dict[Hashable, float]
    covariance: Array
    """[K, K] in the order of ``strengths``; NaN where there are too few prompts."""
    loss: float
    """Negative log-likelihood, nats, without any prior."""
    num_units: int
    """Prompts (or rankings): what was drawn independently."""
    degrees_of_freedom: int
    """Prompts less parameters."""
    tie_parameter: float | None = None
    """Davidson's nu or Rao and Kupper's eta, where the model has one."""
    style: dict[str, float] = field(default_factory=dict)
    """Coefficients of differences of style, log-odds to a standard deviation."""
    confidence: float = CONFIDENCE

    def difference(self, first: Hashable, second: Hashable) -> Estimate:
        """Strength of the first less that of the second, log-odds. The errors of single ratings depend on what their mean is set to;
        those of a difference do not."""
        contrast = np.zeros(len(self.strengths))
        for name, sign in ((first, 1.0), (second, -1.0)):
            contrast[self._place(name)] += sign
        value = self.strengths[first] - self.strengths[second]
        return self._estimate(value, contrast)

    def elo_behind_best(self, name: Hashable) -> Estimate | None:
        """Difference to the strongest in Elo points, with its interval; None for the strongest itself."""
        best = max(self.strengths, key=lambda each: self.strengths[each])
        if name == best:
            return None
        gap = self.difference(name, best)
        return Estimate(
            value=ELO_SCALE * gap.value, low=ELO_SCALE * gap.low, high=ELO_SCALE * gap.high, n=gap.n, confidence=gap.confidence,
            reason=gap.reason,
        )  # fmt: skip

    def versus(self, baseline: Hashable) -> dict[Hashable, Estimate]:
        """Difference of every other system to a baseline, the strongest first."""
        others = sorted((name for name in self.strengths if name != baseline), key=lambda name: -self.strengths[name])
        return {name: self.difference(name, baseline) for name in others}

    def elo(self, *, mean: float = 1000.0) -> dict[Hashable, float]:
        """Strengths on the scale of Elo: 400 points are odds of 10 to 1."""
        return {name: mean + ELO_SCALE * strength for name, strength in self.strengths.items()}

    def win_probability(self, first: Hashable, second: Hashable) -> float:
        """That the first wins, given that one does, at equal style."""
        return float(expit(self.strengths[first] - self.strengths[second]))

    def _place(self, name: Hashable) -> int:
        if name not in self.strengths:
            known = [str(each) for each in self.strengths]
            raise UnknownNameError(
                f"No system is called {name!r}.{did_you_mean(str(name), known)} Known: {', '.join(known)}."
            )
        return list(self.strengths).index(name)

    def _estimate(self, value: float, contrast: Array) -> Estimate:
        variance = float(contrast @ self.covariance @ contrast)
        if not math.isfinite(variance):
            return Estimate(
                value=value, low=math.nan, high=math.nan, n=self.num_units, confidence=self.confidence,
                reason=f"no interval: {self.num_units} prompts are too few for {len(self.strengths)} systems",
            )  # fmt: skip
        if contrast.any() and variance <= NO_VARIANCE:
            return Estimate(
                value=value, low=math.nan, high=math.nan, n=self.num_units, confidence=self.confidence,
                reason=f"no interval: all {self.num_units} prompts say the same, which shows no spread",
            )  # fmt: skip
        half = float(stdtrit(self.degrees_of_freedom, (1 + self.confidence) / 2)) * math.sqrt(max(variance, 0.0))
        return Estimate(value=value, low=value - half, high=value + half, n=self.num_units, confidence=self.confidence)


def newton(objective: Objective, start: Array) -> Array:
    """Where a convex function has its minimum, by Newton's method with halved steps.

    Source: Boyd and Vandenberghe 2004, "Convex Optimization", algorithm 9.5.
    """
    at = start
    value, gradient, hessian = objective(at)
    for _ in range(MAX_STEPS):
        step = np.linalg.solve(hessian, -gradient)
        decrement = float(-gradient @ step)
        if decrement < TOLERANCE:
            return at
        size = 1.0
        while size > 1e-10:
            trial = objective(at + size * step)
            if trial[0] <= value - 1e-4 * size * decrement:
                break
            size /= 2
        else:
            return at  # rounding: the value can't be lowered any further
        at = at + size * step
        value, gradient, hessian = trial
    raise AssertionError("a fit that was checked to have a finite maximum did not reach it")


def prior_terms(strengths: Array, prior: float) -> tuple[float, Array, Array]:
    """Half a win and half a loss of every system against an average one, ``prior`` times: value, gradient, diagonal of the Hessian."""
    p = expit(strengths)
    value = -prior / 2 * float((log_expit(strengths) + log_expit(-strengths)).sum())
    return value, prior * (p - 0.5), prior * p * (1 - p)


def sandwich(hessian: Array, meat: Array, num_units: int) -> tuple[Array, int]:
    """Covariance of parameters from scores that are summed over each prompt, and its degrees of freedom.

        H^-1 (sum_c g_c g_c') H^-1 C / (C - P)

    Sources: Huber 1967; White 1982, "Maximum likelihood estimation of misspecified models", Econometrica 50; for Bradley-Terry on
    votes: Chiang et al. 2024, arXiv:2403.04132. Matches of one prompt belong together, which a covariance over matches misses.

    Args:
        hessian: [P, P] of the negative log-likelihood, invertible.
        meat: [P, P] sum over prompts of outer products of their scores.
        num_units: C.

    Returns:
        [P, P], NaN where there are no more prompts than parameters.
    """
    free = num_units - len(hessian)
    if free < 1:
        return np.full_like(hessian, math.nan), free
    inverse = np.linalg.inv(hessian)
    return inverse @ meat @ inverse * num_units / free, free


def centered(names: tuple[Hashable, ...], strengths: Array) -> dict[Hashable, float]:
    """With mean 0."""
    return dict(zip(names, (strengths - strengths.mean()).tolist(), strict=True))
