"""A quantile over all samples of all units, such as the median or the 95 % quantile of lengths."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.stats import binom
from typing_extensions import override

from rlhf.evaluation.intervals import CONFIDENCE, Array, Estimate
from rlhf.evaluation.metrics.unit_statistics import ERROR_RESAMPLES, NOT_COMPARABLE, Moments, Statistic
from rlhf.formatting import percentage


@dataclass(frozen=True, slots=True, eq=False)
class QuantileStatistic(Statistic):
    """The value that a share of all samples does not exceed.

    A bootstrap would never go beyond the largest value that was seen: its interval for the 95 % quantile holds the truth in 67 % of runs
    of 20 prompts. Instead, of n independent samples the ones at places l and u in order hold it between them, where

        P(Bin(n, level) < l) <= 2.5 %,   P(Bin(n, level) >= u) <= 2.5 %

    With several samples of a unit, n is how many independent ones would vary as much (``share_interval``), and the places are those
    shares of all samples. Sources: David and Nagaraja 2003, "Order Statistics", section 7.1; clusters: Woodruff 1952, "Confidence
    Intervals for Medians and Other Position Measures", JASA 47.
    """

    rows: Array
    """[U, S] samples of each unit."""
    level: float
    """Share of the samples that it does not exceed."""

    @property
    def num_units(self) -> int:
        """U."""
        return len(self.rows)

    @property
    def fewest(self) -> int:
        """Units from which on the largest of them lies above the quantile, and the smallest below it, as surely as wanted."""
        return math.ceil(math.log((1 - CONFIDENCE) / 2) / math.log(max(self.level, 1 - self.level)))

    def estimate(self, *, seed: int = 0) -> Estimate:
        """The quantile; without an interval for fewer units than ``fewest``."""
        if not self.num_units:
            return Estimate.missing("there was nothing to measure")
        value = float(np.quantile(self.rows, self.level))
        if self.num_units < self.fewest:
            reason = f"there are {self.num_units}; the interval of a {percentage(self.level, 0)} quantile takes {self.fewest}"
            return Estimate(value=value, low=math.nan, high=math.nan, n=self.num_units, reason=reason)
        n = self._independent(value)
        tail = (1 - CONFIDENCE) / 2
        first, last = binom.ppf([tail, 1 - tail], n, self.level) + np.array([0, 1])
        ordered = np.sort(self.rows, axis=None)
        low, high = (ordered[self._place(position / n, len(ordered))] for position in (first, last))
        return Estimate(value=value, low=float(min(low, value)), high=float(max(high, value)), n=self.num_units)

    @override
    def subset(self, numbers: Sequence[int]) -> QuantileStatistic:
        return replace(self, rows=self.rows[list(numbers)])

    def moments(self, *, seed: int = 0) -> Moments | None:
        """The deviation of bootstrap draws; None for fewer units than ``fewest``."""
        n = self.num_units
        if n < self.fewest:
            return None
        draws = np.random.default_rng(seed).integers(0, n, size=(ERROR_RESAMPLES, n))
        quantiles = [float(np.quantile(self.rows[draw], self.level)) for draw in draws]
        return Moments(float(np.quantile(self.rows, self.level)), float(np.std(quantiles, ddof=1)), n - 1)

    def gain(self, before: Statistic, *, seed: int = 0) -> Estimate:
        """The difference, its interval from those of the two sides; wider than need be where they resemble each other.

            low = d - sqrt((a - low_a)^2 + (high_b - b)^2),   high = d + sqrt((high_a - a)^2 + (b - low_b)^2)

        Source: Zou and Donner 2008, "Construction of confidence limits about effect measures", Statistics in Medicine 27.
        """
        if not isinstance(before, QuantileStatistic) or before.num_units != self.num_units:
            return Estimate.missing(NOT_COMPARABLE)
        a, b = self.estimate(), before.estimate()
        value = a.value - b.value
        low = value - math.hypot(a.value - a.low, b.high - b.value)
        high = value + math.hypot(a.high - a.value, b.value - b.low)
        return Estimate(value=value, low=low, high=high, n=self.num_units, reason=a.reason)

    def _independent(self, value: float) -> int:
        """As many independent samples as these are worth; one more below the quantile and one above, as in ``share_interval``."""
        y, n = (self.rows <= value).mean(axis=1), self.num_units
        middle = (y.sum() + 1) / (n + 2)
        spread = (np.square(y).sum() + 1) / (n + 2) - middle**2
        return min(max(self.fewest, int(n * middle * (1 - middle) / spread)), self.rows.size)

    @staticmethod
    def _place(share: float, total: int) -> int:
        """Among all samples in order, from 0: the last one of a share of them."""
        return min(max(math.ceil(share * total - 1e-9), 1), total) - 1
