"""The candidate is better than the champion."""

from __future__ import annotations

from rlhf.config.requirements import Better
from rlhf.evaluation.decision import Ruling
from rlhf.evaluation.gates.intervals_of_metrics import interval_above
from rlhf.evaluation.gates.measurements import Measurements, MetricMeasurement, minus_neutral, undecided
from rlhf.evaluation.noninferiority import mean_above

MIN_PROMPTS = 6
"""n prompts that all agree come by chance in 2^-n of runs: 6.3 % at 4, 3.1 % at 5, and only from 6 on fewer than the 2.5 % of a gate at
95 %."""


def better(requirement: Better, measurements: Measurements, confidence: float) -> Ruling:
    """PASS if the two-sided interval of the mean gain lies above ``by``, FAIL if it lies below.

    The gain is candidate - champion of the same prompts; of a metric that compares, such as ``win_rate``, outcome - 1/2. A candidate
    that is no better passes in at most (1 - confidence) / 2 of runs.
    """
    suite = None if requirement.metric is not None else requirement.about
    measured = measurements.of(metric=requirement.metric, suite=suite)
    if isinstance(measured, str):
        return undecided(measured)
    sign = -1 if requirement.lower_is_better else 1
    level = (1 + confidence) / 2
    if isinstance(measured, MetricMeasurement) and not measured.candidate:
        gain = measured.estimate if measured.compares else measured.gain
        bound = measured.neutral + sign * requirement.by
        return interval_above(measured.name, gain, bound, sign=sign, confidence=level)
    compares = isinstance(measured, MetricMeasurement) and measured.compares
    pairs = measured.pairs(compared=not compares)
    if pairs.obstacle:
        return undecided(pairs.obstacle)
    if (n := pairs.candidate.size) < MIN_PROMPTS:
        return undecided(
            f"{n} prompts are too few for a gain: all agree by chance too often; give at least {MIN_PROMPTS}"
        )
    if isinstance(measured, MetricMeasurement) and compares:
        gains = sign * (pairs.candidate - measured.neutral)
        ruling = mean_above(gains, requirement.by, confidence=level, largest=pairs.largest)
        return minus_neutral(ruling, measured, is_share=pairs.largest is not None)
    gains = sign * (pairs.candidate - pairs.champion)
    return mean_above(gains, requirement.by, confidence=level, largest=pairs.largest)
