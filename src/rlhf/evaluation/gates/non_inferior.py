"""The candidate loses no more than a margin against the champion."""

from __future__ import annotations

from rlhf.config.requirements import NonInferior
from rlhf.evaluation.decision import Ruling
from rlhf.evaluation.gates.intervals_of_metrics import interval_above
from rlhf.evaluation.gates.measurements import Measurements, MetricMeasurement, minus_neutral, undecided
from rlhf.evaluation.noninferiority import mean_above, no_room_to_lose, noninferiority


def non_inferior(requirement: NonInferior, measurements: Measurements, confidence: float) -> Ruling:
    """``rlhf.evaluation.noninferiority.noninferiority`` of the differences of the same prompts or items.

    A candidate that lost exactly the margin passes in about 1 - confidence of runs. Where the champion's shares leave no room for such a
    loss, nothing is decided.
    """
    suite = None if requirement.metric is not None else requirement.about
    measured = measurements.of(metric=requirement.metric, suite=suite)
    if isinstance(measured, str):
        return undecided(measured)
    sign = -1 if requirement.lower_is_better else 1
    margin = requirement.margin
    if margin is None:
        assert not isinstance(measured, MetricMeasurement), "a requirement on a metric has a margin"
        margin = measured.margin
    if isinstance(measured, MetricMeasurement):
        if not measured.candidate:
            found_gain = measured.estimate if measured.compares else measured.gain
            return interval_above(
                measured.name, found_gain, measured.neutral - sign * margin, sign=sign, confidence=confidence
            )
        if measured.compares:
            pairs = measured.pairs(compared=False)
            if pairs.obstacle:
                return undecided(pairs.obstacle)
            gains = sign * (pairs.candidate - measured.neutral)
            found = mean_above(gains, -margin, confidence=confidence, largest=pairs.largest)
            return minus_neutral(found, measured, is_share=pairs.largest is not None)
    pairs = measured.pairs(compared=True)
    if pairs.obstacle:
        return undecided(pairs.obstacle)
    if pairs.largest is not None:
        blind = no_room_to_lose(pairs.champion, margin, lower_is_better=requirement.lower_is_better)
        if blind is not None:
            return blind
    return noninferiority(
        sign * (pairs.candidate - pairs.champion), margin, confidence=confidence, largest=pairs.largest
    )
