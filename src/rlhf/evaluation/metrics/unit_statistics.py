"""Numbers over independent units (prompts, pairs, texts): the value, its interval, and the difference from another.

Four kinds, by what can be resampled (quantiles are in ``quantiles``):

    MeanStatistic       the mean of one value for each unit                   t interval, for shares Wilson with n_eff
    ResampledStatistic  a function of sums (ratios)                           bootstrap over units
    CorpusStatistic     a function of the set of texts (distinct words, BLEU) delete-a-group jackknife
    MissingStatistic    nothing, with the reason

A bootstrap draws a unit twice and would call that a repetition, so whatever counts different things among all texts is resampled by
leaving units out instead.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scipy.special import stdtr, stdtrit
from typing_extensions import override

from rlhf.evaluation.intervals import (
    CONFIDENCE,
    Array,
    Estimate,
    bootstrap_interval,
    mean_interval,
    paired_difference,
    share_interval,
)
from rlhf.seeds import derive_seed

JACKKNIFE_GROUPS = 20
"""Parts of which each is left out once."""
ERROR_RESAMPLES = 400
"""Bootstrap resamples of a standard error alone."""
NOT_COMPARABLE = "the two sides were not measured on the same units"


@dataclass(frozen=True, slots=True)
class Moments:
    """A value with the standard error of its noise."""

    value: float
    error: float
    freedom: float
    """Degrees of freedom of ``error``."""


class Statistic(ABC):
    """See the top of this file."""

    @property
    @abstractmethod
    def num_units(self) -> int:
        """Independent units."""

    @abstractmethod
    def estimate(self, *, seed: int = 0) -> Estimate:
        """The value with its interval."""

    @abstractmethod
    def subset(self, numbers: Sequence[int]) -> Statistic:
        """The same of some units, by their numbers."""

    @abstractmethod
    def moments(self, *, seed: int = 0) -> Moments | None:
        """For a comparison with the same number of other units; None where there is no error."""

    @abstractmethod
    def gain(self, before: Statistic, *, seed: int = 0) -> Estimate:
        """This minus the same of another model on the same units, paired by unit."""

    @property
    def per_unit(self) -> Array | None:
        """[U] one value for each unit, NaN where it has none; None where the number is no mean of such values."""
        return None


@dataclass(frozen=True, slots=True, eq=False)
class MeanStatistic(Statistic):
    """The mean over units that have a value."""

    values: Array
    """[U] NaN where a unit has none."""
    share: bool = False
    """Values lie between 0 and 1."""
    reason: str = "no completion has a value"
    """Why values are NaN."""

    @property
    def num_units(self) -> int:
        """U."""
        return len(self.values)

    @property
    def per_unit(self) -> Array | None:
        """``values``."""
        return self.values

    def estimate(self, *, seed: int = 0) -> Estimate:
        """A t interval, for shares Wilson's with the effective number of units."""
        known = self._known
        if not known.size:
            return Estimate.missing(self.reason if self.num_units else "there was nothing to measure")
        return (share_interval if self.share else mean_interval)(known)

    @override
    def subset(self, numbers: Sequence[int]) -> MeanStatistic:
        return MeanStatistic(self.values[list(numbers)], self.share, self.reason)

    def moments(self, *, seed: int = 0) -> Moments | None:
        """Standard error of the mean; of a share with one more success and one more failure, so that it is never 0."""
        known = self._known
        n = known.size
        if n < 2:
            return None
        if self.share:
            middle = (known.sum() + 1) / (n + 2)
            spread = (np.square(known).sum() + 1) / (n + 2) - middle**2
        else:
            spread = known.var(ddof=1)
        return Moments(float(known.mean()), math.sqrt(spread / n), n - 1)

    def gain(self, before: Statistic, *, seed: int = 0) -> Estimate:
        """``paired_difference`` over the units that both have."""
        if not isinstance(before, MeanStatistic) or before.num_units != self.num_units:
            return Estimate.missing(NOT_COMPARABLE)
        both = np.isfinite(self.values) & np.isfinite(before.values)
        if not both.any():
            return Estimate.missing(self.reason)
        return paired_difference(before.values[both], self.values[both], shares=self.share and before.share)

    @property
    def _known(self) -> Array:
        known: Array = self.values[np.isfinite(self.values)]
        return known


@dataclass(frozen=True, slots=True, eq=False)
class ResampledStatistic(Statistic):
    """A smooth function of the rows of all units, such as a ratio of sums."""

    rows: Array
    """[U, k] finite."""
    function: Callable[[Array], Array]
    """[R, U, k] -> [R]."""

    @property
    def num_units(self) -> int:
        """U."""
        return len(self.rows)

    def estimate(self, *, seed: int = 0) -> Estimate:
        """``bootstrap_interval`` over units."""
        if not self.num_units:
            return Estimate.missing("there was nothing to measure")
        return bootstrap_interval(self.rows, self.function, seed=seed)

    @override
    def subset(self, numbers: Sequence[int]) -> ResampledStatistic:
        return ResampledStatistic(self.rows[list(numbers)], self.function)

    def moments(self, *, seed: int = 0) -> Moments | None:
        """The deviation of bootstrap draws."""
        n = self.num_units
        if n < 2:
            return None
        draws = np.random.default_rng(seed).integers(0, n, size=(ERROR_RESAMPLES, n))
        resampled = np.array([self.function(self.rows[draw][None])[0] for draw in draws])
        return Moments(float(self.function(self.rows[None])[0]), float(resampled.std(ddof=1)), n - 1)

    def gain(self, before: Statistic, *, seed: int = 0) -> Estimate:
        """Bootstrap over units, both models' rows together."""
        if not isinstance(before, ResampledStatistic) or before.rows.shape != self.rows.shape:
            return Estimate.missing(NOT_COMPARABLE)
        function, width = self.function, self.rows.shape[1]

        def difference(draws: Array) -> Array:
            return function(draws[..., :width]) - function(draws[..., width:])

        return bootstrap_interval(np.concatenate([self.rows, before.rows], axis=1), difference, seed=seed)


@dataclass(frozen=True, slots=True, eq=False)
class CorpusStatistic(Statistic):
    """A function of the set of units, which a bootstrap would distort."""

    function: Callable[[Sequence[int]], float]
    """Numbers of units -> the number over them together; NaN where there is none."""
    units: tuple[int, ...]
    limits: tuple[float, float] = (-math.inf, math.inf)
    """What the number can be: the interval ends there."""
    grows: bool = False
    """Whether more texts of the same kind give another number, as they do of different words among all: then only as many of others
    compare."""

    @property
    def num_units(self) -> int:
        """U."""
        return len(self.units)

    def estimate(self, *, seed: int = 0) -> Estimate:
        """The number, with the interval of ``jackknife``."""
        value = self.function(self.units) if self.units else math.nan
        if not math.isfinite(value):
            return Estimate.missing("the texts are too short or too few to measure it", n=self.num_units)
        interval = _around(value, self._left_out(self.function, seed), self.num_units)
        lowest, highest = self.limits
        return (
            replace(interval, low=max(interval.low, lowest), high=min(interval.high, highest))
            if math.isfinite(interval.low)
            else interval
        )

    @override
    def subset(self, numbers: Sequence[int]) -> CorpusStatistic:
        return replace(self, units=tuple(self.units[number] for number in numbers))

    def moments(self, *, seed: int = 0) -> Moments | None:
        """The jackknife's error."""
        value = self.function(self.units) if self.units else math.nan
        error, freedom = jackknife(self._left_out(self.function, seed))
        return Moments(value, error, freedom) if math.isfinite(value) and math.isfinite(error) else None

    def gain(self, before: Statistic, *, seed: int = 0) -> Estimate:
        """Jackknife of the difference, the same units left out of both."""
        if not isinstance(before, CorpusStatistic) or before.units != self.units:
            return Estimate.missing(NOT_COMPARABLE)
        ours, theirs = self.function, before.function

        def difference(numbers: Sequence[int]) -> float:
            return ours(numbers) - theirs(numbers)

        value = difference(self.units) if self.units else math.nan
        if not math.isfinite(value):
            return Estimate.missing("one side's texts are too short or too few to measure it", n=self.num_units)
        interval = _around(value, self._left_out(difference, seed), self.num_units)
        width = self.limits[1] - self.limits[0]
        return (
            replace(interval, low=max(interval.low, -width), high=min(interval.high, width))
            if math.isfinite(interval.low)
            else interval
        )

    def _left_out(self, function: Callable[[Sequence[int]], float], seed: int) -> Array:
        """[G] the number without each group; units are dealt to groups at random, so that their order means nothing."""
        n = len(self.units)
        num_groups = min(JACKKNIFE_GROUPS, n)
        if num_groups < 2:
            return np.array([])
        order = np.random.default_rng(derive_seed(seed, "jackknife")).permutation(n)
        group = np.empty(n, dtype=np.int64)
        group[order] = np.arange(n) % num_groups
        kept = [[unit for unit, own in zip(self.units, group, strict=True) if own != g] for g in range(num_groups)]
        return np.array([function(numbers) for numbers in kept], dtype=np.float64)


@dataclass(frozen=True, slots=True)
class MissingStatistic(Statistic):
    """A number that could not be measured."""

    reason: str

    @property
    def num_units(self) -> int:
        """None were measured."""
        return 0

    def estimate(self, *, seed: int = 0) -> Estimate:
        """NaN with the reason."""
        return Estimate.missing(self.reason)

    def subset(self, numbers: Sequence[int]) -> MissingStatistic:
        """The same."""
        return self

    def moments(self, *, seed: int = 0) -> Moments | None:
        """None."""
        return None

    def gain(self, before: Statistic, *, seed: int = 0) -> Estimate:
        """NaN with the reason."""
        return Estimate.missing(self.reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a metric found."""

    value: Statistic
    parts: Mapping[str, Statistic] = field(default_factory=dict)
    """More numbers of the same metric, such as ``per_token``; users see them as ``kl_divergence/per_token``."""
    over: str = "prompts"
    """What its units are: ``prompts``, ``pairs`` or ``texts``."""
    places: Sequence[int] | None = None
    """Which of those each unit is, or belongs to, where they are not all of them in order."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """What a reader must know to repeat it: a signature, a classifier, how many values are missing; JSON."""


def missing(reason: str) -> Measured:
    """A metric that could not be measured."""
    return Measured(value=MissingStatistic(reason))


def ratio(numerators: Array, denominators: Array, *, then: Callable[[Array], Array] | None = None) -> Statistic:
    """Sum over units divided by sum over units, and ``then`` of that: a corpus number is no mean of the units' ratios."""
    rows = np.stack([numerators, denominators], axis=1)

    def function(draws: Array) -> Array:
        sums = draws.sum(axis=1)
        array: Array = sums[:, 0] / sums[:, 1]
        return array if then is None else then(array)

    return ResampledStatistic(rows, function)


def jackknife(left_out: Array) -> tuple[float, float]:
    """Standard error and degrees of freedom from the numbers without each of G groups.

        se^2 = (G - 1) / G  sum_g (theta_(g) - mean)^2

    Source: Tukey 1958; Shao and Tu 1995, "The Jackknife and Bootstrap", section 2.3. For smooth functions of sums and counts, not
    for quantiles.

    Returns:
        NaN, 0 for fewer than two groups or a number that is not finite.
    """
    groups = len(left_out)
    if groups < 2 or not np.isfinite(left_out).all():
        return math.nan, 0.0
    return math.sqrt((groups - 1) / groups * float(np.square(left_out - left_out.mean()).sum())), groups - 1


def difference_of(one: Moments, other: Moments) -> tuple[Estimate, float]:
    """One minus other for different units, with Welch's interval, and the p-value that they are equal.

    Source: Welch 1947, "The generalization of Student's problem", Biometrika 34.
    """
    value = one.value - other.value
    error = math.hypot(one.error, other.error)
    if error == 0:  # units that are all alike show no noise, which is not the same as having none
        reason = "all units of both sides are alike, so nothing says how far chance would move them"
        return Estimate(value=value, low=math.nan, high=math.nan, n=0, reason=reason), 1.0
    freedom = error**4 / (one.error**4 / one.freedom + other.error**4 / other.freedom)
    half = float(stdtrit(freedom, (1 + CONFIDENCE) / 2)) * error
    p_value = 2 * float(stdtr(freedom, -abs(value) / error))
    count = int(one.freedom + other.freedom) + 2
    return Estimate(value=value, low=value - half, high=value + half, n=count), p_value


def _around(value: float, left_out: Array, num_units: int) -> Estimate:
    error, freedom = jackknife(left_out)
    if not math.isfinite(error) or error == 0:
        reason = "without some of the texts there is nothing to measure"
        if num_units < 2:
            reason = "one unit has no interval"
        elif error == 0:
            reason = "leaving texts out changes nothing, so nothing says how far chance would move it"
        return Estimate(value=value, low=math.nan, high=math.nan, n=num_units, reason=reason)
    half = float(stdtrit(freedom, (1 + CONFIDENCE) / 2)) * error
    return Estimate(value=value, low=value - half, high=value + half, n=num_units)
