"""Confidence intervals that are valid with ties, clusters and few samples.

The unit of an interval is whatever was drawn independently, which in evaluation is the *prompt*. Several samples of one
prompt resemble each other, so they are averaged first (``unit_means``) and count once. With 150 prompts of eight
samples each, a Wilson interval over the 1,200 samples holds the truth in 69 % of runs instead of 95 %
(research/evaluation.md, section 1).

A number that could not be measured is NaN with a reason; it is never 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtrit

from rlhf.errors import ConfigError

Array = NDArray[np.float64]
CONFIDENCE = 0.95
RESAMPLES = 4000
"""Bootstrap resamples: the ends of a 95 % interval then lie within about a fortieth of its width of their limit."""
RESAMPLE_CELLS = 2_000_000
"""Numbers held at once while resampling."""
MIN_RESAMPLED = 5
"""Of three units, the bootstrap of a mean holds the truth in three of four runs, whatever one does with its percentiles."""
MIN_CHANGED = 10
"""Units with a difference that Student's interval of shares needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A number with its interval."""

    value: float
    low: float
    high: float
    n: int
    """Independent units behind it."""
    confidence: float = CONFIDENCE
    reason: str = ""
    """Why value or interval is NaN."""

    @classmethod
    def missing(cls, reason: str, *, n: int = 0) -> Estimate:
        """A number that could not be measured."""
        return cls(value=math.nan, low=math.nan, high=math.nan, n=n, reason=reason)

    @property
    def measured(self) -> bool:
        """Whether there is a value."""
        return math.isfinite(self.value)

    def to_dict(self) -> dict[str, Any]:
        """For JSON: NaN becomes null, and then there is a reason."""
        fields: dict[str, Any] = {
            "value": finite_or_none(self.value),
            "low": finite_or_none(self.low),
            "high": finite_or_none(self.high),
            "n": self.n,
            "confidence": self.confidence,
        }
        return fields | ({"reason": self.reason} if self.reason else {})


def finite_or_none(value: float) -> float | None:
    """What JSON can hold: the number, or null."""
    return float(value) if math.isfinite(value) else None


def wilson_interval(successes: float, n: int, *, confidence: float = CONFIDENCE) -> Estimate:
    """Share of successes among independent trials, each of which succeeds or fails.

        center     = (p + z^2 / 2n) / (1 + z^2 / n)
        half-width = z sqrt(p (1 - p) / n + z^2 / 4n^2) / (1 + z^2 / n)

    Source: Wilson 1927, "Probable inference, the law of succession, and statistical inference", JASA 22. Not for ties
    or clusters: see ``share_interval``.

    Args:
        successes: How many succeeded, 0 to n.
        n: Trials.
        confidence: Share of such intervals that hold the truth.

    Returns:
        The share; missing where there was no trial.
    """
    check_confidence(confidence)
    if n == 0:
        return Estimate.missing("there was nothing to count")
    if not 0 <= successes <= n:
        raise ConfigError(f"{successes} successes in {n} trials can't be; give 0 to {n}.")
    low, high = _wilson_ends(successes / n, n, confidence)
    return Estimate(value=successes / n, low=low, high=high, n=n, confidence=confidence)


def share_interval(outcomes: ArrayLike, *, confidence: float = CONFIDENCE) -> Estimate:
    """Mean of outcomes that lie between 0 and 1, such as win 1, tie 1/2, loss 0, or their mean over a prompt's samples.

    Wilson's interval with the number of all-or-nothing trials that would vary as much as these outcomes do:

        n_eff = n m (1 - m) / v,   m = (sum y + 1) / (n + 2),   v = (sum y^2 + 1) / (n + 2) - m^2

    One win and one loss are added in m and v, so that it does not shrink to a point when all outcomes are equal. With
    half of 200 outcomes tied, plain Wilson covers 99.4 % and is half again as wide as it need be; this covers 95.0 %.
    For outcomes of 0 and 1 only, it is Wilson's interval.

    Sources: Wilson 1927; measured in research/evaluation.md, section 1, and again in tests/unit/evaluation.

    Args:
        outcomes: [n] one for each independent unit, in [0, 1].
        confidence: Share of such intervals that hold the truth.

    Returns:
        The mean; missing where there are no outcomes or one is not finite.
    """
    check_confidence(confidence)
    y = np.asarray(outcomes, dtype=np.float64)
    if (problem := _unusable(y)) is not None:
        return problem
    if y.min() < 0 or y.max() > 1:
        raise ConfigError(f"An outcome is {y[(y < 0) | (y > 1)][0]:g}; shares are taken of outcomes from 0 to 1.")
    n = y.size
    middle = (y.sum() + 1) / (n + 2)
    spread = (np.square(y).sum() + 1) / (n + 2) - middle**2
    share = float(y.mean())
    low, high = _wilson_ends(share, n * middle * (1 - middle) / spread, confidence)
    return Estimate(value=share, low=low, high=high, n=n, confidence=confidence)


def share_with_ties_interval(
    outcomes: ArrayLike, *, num_tied: int, num_open: int, confidence: float = CONFIDENCE
) -> Estimate:
    """Mean outcome over all units, of which some are known to be ties and a part of the others was judged.

        share = (1 - s) mean(y) + s / 2,    s = num_tied / N,    N = num_tied + num_open
        n_eff = m (1 - m) / V,              V = ((1 - t) v n_o / n + t (1 - t) (m_y - 1/2)^2) / N
        t = num_tied / (N + 2),   m = (1 - t) m_y + t / 2,   m_y and v: as m and v of ``share_interval``, over y

    The first term of V is the noise of the outcomes, of which n of n_o = ``num_open`` are there. The second is that another
    draw of units would hold another share of ties: with half of 200 tied and a rate of 0.95 among the rest, an interval
    without it holds the truth in 70 % of runs. With all judged it is ``share_interval`` of the outcomes and the ties together.

    Args:
        outcomes: [n] one for each unit that was judged, in [0, 1].
        num_tied: Units that are ties without being judged.
        num_open: Units that are to be judged, those of ``outcomes`` among them.
        confidence: Share of such intervals that hold the truth.

    Returns:
        The mean over all units; missing where some are to be judged and none is.
    """
    y = np.asarray(outcomes, dtype=np.float64)
    num_all = num_tied + num_open
    if num_open == 0 or y.size == num_open:
        return share_interval(np.concatenate([y, np.full(num_tied, 0.5)]), confidence=confidence)
    judged = share_interval(y, confidence=confidence)
    if not judged.measured:
        return judged
    if y.size > num_open:
        raise ConfigError(f"{y.size} outcomes of {num_open} units can't be; give one for each unit at most.")
    tied = num_tied / (num_all + 2)
    middle = (y.sum() + 1) / (y.size + 2)
    noise = ((np.square(y).sum() + 1) / (y.size + 2) - middle**2) * num_open / y.size
    spread = ((1 - tied) * noise + tied * (1 - tied) * (middle - 0.5) ** 2) / num_all
    middle = (1 - tied) * middle + tied / 2
    share = (num_open * judged.value + num_tied / 2) / num_all
    low, high = _wilson_ends(share, middle * (1 - middle) / spread, confidence)
    return Estimate(value=share, low=low, high=high, n=y.size, confidence=confidence)


def mean_interval(values: ArrayLike, *, confidence: float = CONFIDENCE) -> Estimate:
    """Mean of independent values with Student's t interval.

        mean +- t_{n-1} sd / sqrt(n),   sd with n - 1

    Source: Student 1908, "The probable error of a mean", Biometrika 6.

    Args:
        values: [n] one for each independent unit.
        confidence: Share of such intervals that hold the truth.

    Returns:
        The mean; its interval is NaN for a single value, whose noise is unknown.
    """
    check_confidence(confidence)
    x = np.asarray(values, dtype=np.float64)
    if (problem := _unusable(x)) is not None:
        return problem
    mean = float(x.mean())
    if x.size == 1:
        return _without_ends(mean, 1, confidence, "one value has no interval")
    half = float(stdtrit(x.size - 1, (1 + confidence) / 2) * x.std(ddof=1) / math.sqrt(x.size))
    return Estimate(value=mean, low=mean - half, high=mean + half, n=x.size, confidence=confidence)


def clustered_interval(values: ArrayLike, units: Sequence[Hashable], *, confidence: float = CONFIDENCE) -> Estimate:
    """Mean over all values, where those of a unit resemble each other.

        mean +- t_{C-1} se,   se = sqrt(C / (C - 1) sum_c (sum_{i in c} (y_i - mean))^2) / N

    Units with more values weigh more. Where each unit is to weigh the same, take ``mean_interval`` of ``unit_means``; with equally
    many values in each unit they are the same but for rounding.

    Sources: Miller 2024, "Adding Error Bars to Evals", appendix A, arXiv:2411.00640; C / (C - 1) as for any variance.

    Args:
        values: [N].
        units: [N] which unit each value belongs to.
        confidence: Share of such intervals that hold the truth.

    Returns:
        The mean, n counting units; its interval is NaN for a single unit, whose noise is unknown.
    """
    check_confidence(confidence)
    y = np.asarray(values, dtype=np.float64)
    unit = _unit_numbers(y, units)
    if (problem := _unusable(y)) is not None:
        return problem
    num, mean = int(unit.max()) + 1, float(y.mean())
    if num == 1:
        return _without_ends(mean, 1, confidence, "one unit has no interval")
    sums = np.bincount(unit, weights=y - mean)
    error = math.sqrt(num / (num - 1) * float(np.square(sums).sum())) / y.size
    half = float(stdtrit(num - 1, (1 + confidence) / 2)) * error
    return Estimate(value=mean, low=mean - half, high=mean + half, n=num, confidence=confidence)


def bootstrap_interval(
    units: ArrayLike,
    statistic: Callable[[Array], Array],
    *,
    seed: int,
    num_resamples: int = RESAMPLES,
    confidence: float = CONFIDENCE,
) -> Estimate:
    """Bootstrap of any smooth statistic: units are drawn again with replacement, all of a unit's columns together.

    Percentiles, moved outwards as far as few units want it (``bootstrap_tail``). Not for quantiles far from the middle, which no draw of
    the units goes beyond: see ``rlhf.evaluation.metrics.quantiles``. For means ``mean_interval`` is better.

    Source: Efron and Tibshirani 1993, "An Introduction to the Bootstrap", section 13.3.

    Args:
        units: [n, k] one row for each independent unit.
        statistic: [R, n, k] -> [R], for R resamples at once.
        seed: A named seed (``rlhf.seeds.derive_seed``).
        num_resamples: R in all.
        confidence: Share of such intervals that hold the truth.

    Returns:
        The statistic of the units as they are; its interval is NaN where they are fewer than ``MIN_RESAMPLED``.
    """
    check_confidence(confidence)
    rows = np.asarray(units, dtype=np.float64)
    assert rows.ndim == 2, f"units are [n, k], got {rows.shape}"
    if (problem := _unusable(rows)) is not None:
        return problem
    value = float(statistic(rows[None])[0])
    n = len(rows)
    if n < MIN_RESAMPLED:
        reason = (
            f"{n} of them are too few to draw from; an interval takes {MIN_RESAMPLED}"
            if n > 1
            else "one unit has no interval"
        )
        return _without_ends(value, n, confidence, reason)
    rng = np.random.default_rng(seed)
    at_once = max(1, RESAMPLE_CELLS // rows.size)
    statistics = []
    for start in range(0, num_resamples, at_once):
        draws = rng.integers(0, n, size=(min(at_once, num_resamples - start), n))
        statistics.append(statistic(rows[draws]))
    tail = bootstrap_tail(n, confidence)
    low, high = np.quantile(np.concatenate(statistics), [tail, 1 - tail])
    return Estimate(value=value, low=float(low), high=float(high), n=n, confidence=confidence)


def bootstrap_tail(n: int, confidence: float) -> float:
    """Share of a bootstrap's draws on each side of an interval of n units.

        tail = Phi(-sqrt(n / (n - 1)) t_{n-1})      in place of (1 - confidence) / 2

    Source: Hesterberg 2015, "What teachers should know about the bootstrap", section 5.3 (expanded percentiles), arXiv:1411.5279.

    Args:
        n: Units, at least 2.
        confidence: Of the interval.
    """
    return NormalDist().cdf(-math.sqrt(n / (n - 1)) * float(stdtrit(n - 1, (1 + confidence) / 2)))


def paired_difference(
    before: ArrayLike,
    after: ArrayLike,
    *,
    units: Sequence[Hashable] | None = None,
    shares: bool = False,
    confidence: float = CONFIDENCE,
) -> Estimate:
    """Mean of ``after - before`` where both were measured on the same prompts.

    What two systems share (a hard prompt is hard for both) leaves the difference, so this is narrower than two intervals side by side,
    and their overlap is not informative. Student's interval of the differences. Where both are shares and fewer than ``MIN_CHANGED``
    prompts differ, these show too little of the spread (of 10 prompts of which 15 % change, a bootstrap holds the truth in 65 % of
    runs); then that of ``share_interval`` for (difference + 1) / 2, which adds one prompt that won and one that lost.

    Args:
        before: [n].
        after: [n] the same prompts and samples in the same order.
        units: [n] which prompt each value belongs to; None where each is its own.
        shares: Both lie between 0 and 1.
        confidence: Share of such intervals that hold the truth.

    Returns:
        The mean difference; units weigh the same however many values they have. Its interval is NaN for a single unit, and where
        differences without bounds are all the same, which shows no spread.
    """
    first, second = np.asarray(before, dtype=np.float64), np.asarray(after, dtype=np.float64)
    if first.shape != second.shape:
        raise ConfigError(
            f"A paired comparison needs as many values before as after; got {first.size} and {second.size}."
        )
    difference = unit_means(second - first, units)
    if (problem := _unusable(difference)) is not None:
        return problem
    if shares and difference.size > 1 and np.count_nonzero(difference) < MIN_CHANGED:
        share = share_interval((difference + 1) / 2, confidence=confidence)
        value = float(difference.mean())
        return replace(share, value=value, low=min(value, 2 * share.low - 1), high=max(value, 2 * share.high - 1))
    if difference.size > 1 and np.ptp(difference) == 0:
        return _without_ends(
            float(difference[0]), difference.size, confidence, "all differ by the same, which shows no spread"
        )
    return mean_interval(difference, confidence=confidence)


def unit_means(values: ArrayLike, units: Sequence[Hashable] | None = None) -> Array:
    """Mean of the values of each unit, in the order in which units first appear.

    Args:
        values: [n].
        units: [n] which unit each value belongs to; None where each is its own.

    Returns:
        [C] one for each unit.
    """
    x = np.asarray(values, dtype=np.float64)
    if units is None:
        return x
    at = _unit_numbers(x, units)
    means: Array = np.bincount(at, weights=x) / np.bincount(at) if len(x) else x
    return means


def check_confidence(confidence: float) -> None:
    """Refuse a confidence that is not a share."""
    if not 0 < confidence < 1:
        raise ConfigError(f"The confidence is {confidence}; an interval needs one between 0 and 1, such as 0.95.")


def _wilson_ends(share: float, n: float, confidence: float) -> tuple[float, float]:
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    stretch = 1 + z * z / n
    center = (share + z * z / (2 * n)) / stretch
    half = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n)) / stretch
    # At a share of 0 or 1 one end is that share exactly; rounding must not put it outside.
    return max(0.0, min(share, center - half)), min(1.0, max(share, center + half))


def _unit_numbers(values: Array, units: Sequence[Hashable]) -> NDArray[np.int64]:
    """[n] numbers of units in the order in which they first appear."""
    if len(units) != len(values):
        raise ConfigError(f"There are {len(units)} cluster names for {len(values)} values; give one for each.")
    number: dict[Hashable, int] = {}
    return np.array([number.setdefault(unit, len(number)) for unit in units], dtype=np.int64)


def _without_ends(value: float, n: int, confidence: float, reason: str) -> Estimate:
    return Estimate(value=value, low=math.nan, high=math.nan, n=n, confidence=confidence, reason=reason)


def _unusable(values: Array) -> Estimate | None:
    if values.size == 0:
        return Estimate.missing("there was nothing to measure")
    bad = int((~np.isfinite(values)).sum())
    return Estimate.missing(f"{bad} of {values.size} values are not finite", n=len(values)) if bad else None
