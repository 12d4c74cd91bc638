"""The candidate is better than the champion."""

from __future__ import annotations

from rlhf.config.requirements import Better
from rlhf.evaluation.decision import Ruling
from rlhf.evaluation.gates.intervals_of_metrics import interval_above
from rlhf.evaluation.gates.measurements import Measurements, MetricMeasurement, minus_neutral, undecided
from rlhf.evaluation.noninferiority import mean_above


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
        return interval_above(measured.name, gain, measured.neutral + sign * requirement.by, sign=sign)
    if isinstance(measured, MetricMeasurement) and measured.compares:
        pairs = measured.pairs(compared=False)
        if pairs.obstacle:
            return undecided(pairs.obstacle)
        gains = sign * (pairs.candidate - measured.neutral)
        return minus_neutral(mean_above(gains, requirement.by, confidence=level, largest=pairs.largest), measured)
    pairs = measured.pairs(compared=True)
    if pairs.obstacle:
        return undecided(pairs.obstacle)
    gains = sign * (pairs.candidate - pairs.champion)
    return mean_above(gains, requirement.by, confidence=level, largest=pairs.largest)
