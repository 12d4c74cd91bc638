"""Gain in quality that length does not explain."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit
from typing_extensions import override

from rlhf.evaluation.intervals import CONFIDENCE, Array, Estimate
from rlhf.evaluation.metrics.metric_inputs import MetricInputs
from rlhf.evaluation.metrics.unit_statistics import Measured, Moments, Statistic, missing

MIN_PROMPTS = 10
"""Fewer differences fit a line to noise."""


@dataclass(frozen=True, slots=True, eq=False)
class InterceptStatistic(Statistic):
    """Expected y where x = 0, from a straight line through one (x, y) for each unit."""

    rows: Array
    """[U, 2] x and y."""

    @property
    def num_units(self) -> int:
        """U."""
        return len(self.rows)

    def estimate(self, *, seed: int = 0) -> Estimate:
        """Least squares with a t interval; missing where x = 0 lies outside the data, or there is too little of it."""
        x = self.rows[:, 0]
        if self.num_units < MIN_PROMPTS:
            return Estimate.missing(f"a line needs {MIN_PROMPTS} prompts, there are {self.num_units}", n=self.num_units)
        if not x.min() <= 0 <= x.max():
            which = "longer" if x.min() > 0 else "shorter"
            reason = (
                f"every completion of the model is {which} than the baseline's, so nothing was measured at equal length"
            )
            return Estimate.missing(reason, n=self.num_units)
        moments = self.moments()
        assert moments is not None
        half = float(stdtrit(moments.freedom, (1 + CONFIDENCE) / 2)) * moments.error
        return Estimate(value=moments.value, low=moments.value - half, high=moments.value + half, n=self.num_units)

    @override
    def subset(self, numbers: Sequence[int]) -> InterceptStatistic:
        return InterceptStatistic(self.rows[list(numbers)])

    def moments(self, *, seed: int = 0) -> Moments | None:
        """Intercept and its standard error; where x is constant, mean and error of y."""
        x, y = self.rows.T
        n = len(x)
        if n < MIN_PROMPTS:
            return None
        spread = float(np.square(x - x.mean()).sum())
        if spread == 0:
            return Moments(float(y.mean()), float(y.std(ddof=1)) / math.sqrt(n), n - 1)
        slope = float(((x - x.mean()) * (y - y.mean())).sum()) / spread
        intercept = float(y.mean() - slope * x.mean())
        noise = float(np.square(y - intercept - slope * x).sum()) / (n - 2)
        return Moments(intercept, math.sqrt(noise * (1 / n + float(x.mean()) ** 2 / spread)), n - 2)

    def gain(self, before: Statistic, *, seed: int = 0) -> Estimate:
        """It is a comparison already."""
        return Estimate.missing("it compares the two models already")


def quality_at_equal_length(inputs: MetricInputs) -> Measured:
    """Gain over the baseline in the judge's (or the reward's) score at equal length, in points.

        score_i - baseline_i = gain + slope (log tokens_i - log baseline tokens_i) + noise_i,   i a prompt

    The intercept of least squares over prompts. It is missing where no prompt has completions of about equal length on both sides: a line
    beyond its data says nothing (the overlap that Dubois et al. 2024 ask for, "Length-Controlled AlpacaEval", arXiv:2404.04475, whose
    regression on wins this is for scores). What it can't say: that length *caused* the rest.
    """
    baseline = inputs.baseline
    assert baseline is not None
    ours, theirs = (_quality(side) for side in (inputs, baseline))
    lengths = [side.per_prompt([math.log(max(1, len(c.tokens))) for c in side.flat]) for side in (inputs, baseline)]
    rows = np.stack([lengths[0] - lengths[1], ours - theirs], axis=1)
    known = np.flatnonzero(np.isfinite(rows).all(axis=1))
    rows = rows[known]
    if not len(rows):
        return missing("no prompt has a score on both sides")
    by = "judge" if inputs.needs.judge is not None else "reward"
    return Measured(value=InterceptStatistic(rows), places=known.tolist(), about={"scored_by": by})


def _quality(inputs: MetricInputs) -> Array:
    return inputs.per_prompt(inputs.judged.scores if inputs.needs.judge is not None else inputs.scored.scores)
