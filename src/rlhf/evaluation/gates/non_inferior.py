"""The candidate loses no more than a margin against the champion."""

from __future__ import annotations

from functools import partial

from rlhf.config.requirements import NonInferior
from rlhf.evaluation.decision import Decision, Ruling
from rlhf.evaluation.gates.intervals_of_metrics import interval_above
from rlhf.evaluation.gates.measurements import Measurements, MetricMeasurement, minus_neutral, undecided
from rlhf.evaluation.noninferiority import mean_above, no_room_to_lose, noninferiority


def non_inferior(requirement: NonInferior, measurements: Measurements, confidence: float) -> Ruling:
    """``rlhf.evaluation.noninferiority.noninferiority`` of the differences of the same prompts or items.

    A candidate that lost exactly the margin passes in about 1 - confidence of runs. Where the champion's shares leave no room for such a
    loss, nothing is decided. A pass of bounded numbers must also hold with the worst in place of what the candidate lacks: what could not be
    measured is rarely a random part.
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
            gain = measured.estimate if measured.compares else measured.gain
            return interval_above(
                measured.name, gain, measured.neutral - sign * margin, sign=sign, confidence=confidence
            )
        if measured.compares:
            pairs = measured.pairs(compared=False)
            if pairs.obstacle:
                return undecided(pairs.obstacle)
            gains = sign * (pairs.candidate - measured.neutral)
            above_neutral = mean_above(gains, -margin, confidence=confidence, largest=pairs.largest)
            return minus_neutral(above_neutral, measured, is_share=pairs.largest is not None)
    pairs = measured.pairs(compared=True)
    if pairs.obstacle:
        return undecided(pairs.obstacle)
    if pairs.largest is not None:
        blind = no_room_to_lose(pairs.champion, margin, lower_is_better=requirement.lower_is_better)
        if blind is not None:
            return blind
    decide = partial(noninferiority, margin=margin, confidence=confidence, largest=pairs.largest)
    ruling = decide(sign * (pairs.candidate - pairs.champion))
    if ruling.decision is not Decision.PASS or pairs.largest is None:
        return ruling
    worst = 1.0 if requirement.lower_is_better else 0.0
    filled = measured.pairs(compared=True, in_place_of_missing=worst)
    harsh = decide(sign * (filled.candidate - filled.champion))
    if harsh.decision is Decision.PASS:
        return ruling
    return Ruling(
        decision=Decision.UNDECIDED,
        reason=f"{ruling.reason} But the candidate lacks numbers that the champion has, and with {worst:g} for each of them: "
        f"{harsh.reason}",
        evidence={**ruling.evidence, "with_missing_as_worst": dict(harsh.evidence)},
    )
