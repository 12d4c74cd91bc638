"""The candidate's mean is above a value."""

from __future__ import annotations

from rlhf.config.requirements import BoundedRequirement
from rlhf.evaluation.decision import Ruling
from rlhf.evaluation.gates.intervals_of_metrics import interval_above
from rlhf.evaluation.gates.measurements import Measurements, MetricMeasurement, undecided
from rlhf.evaluation.noninferiority import mean_above


def at_least(requirement: BoundedRequirement, measurements: Measurements, confidence: float) -> Ruling:
    """PASS if the lower end of the one-sided interval of the mean is above the value, FAIL if the upper end is below.

    A candidate whose true mean is exactly the value passes in at most 1 - confidence of runs, and fails in as many.
    """
    return above(requirement, measurements, confidence, sign=1)


def above(requirement: BoundedRequirement, measurements: Measurements, confidence: float, *, sign: int) -> Ruling:
    """``at_least``, or with sign -1 ``at_most``."""
    suite = None if requirement.metric is not None else requirement.about
    measured = measurements.of(metric=requirement.metric, suite=suite)
    if isinstance(measured, str):
        return undecided(measured)
    if isinstance(measured, MetricMeasurement) and not measured.candidate:
        return interval_above(measured.name, measured.estimate, requirement.value, sign=sign, confidence=confidence)
    pairs = measured.pairs(compared=False)
    if pairs.obstacle:
        return undecided(pairs.obstacle)
    ruling = mean_above(sign * pairs.candidate, sign * requirement.value, confidence=confidence, largest=pairs.largest)
    return (
        _in_its_units(ruling, requirement.about, sign, is_share=pairs.largest is not None)
        if "low" in ruling.evidence
        else ruling
    )


def _in_its_units(ruling: Ruling, name: str, sign: int, *, is_share: bool) -> Ruling:
    """The same decision, in terms of the metric and not of its negative."""
    given = dict(ruling.evidence)
    ends = sorted(sign * given.pop(end) for end in ("low", "high"))
    ends = [min(max(end, 0.0), 1.0) for end in ends] if is_share else ends
    evidence = {
        "value": sign * given.pop("difference"),
        "low": ends[0],
        "high": ends[1],
        **given,
        "bound": sign * given["bound"],
    }
    measured = f"{name} is {evidence['value']:.4g} [{ends[0]:.4g}, {ends[1]:.4g}] over {evidence['n']:,} prompts"
    wanted = f"at {'least' if sign > 0 else 'most'} {evidence['bound']:g} is required"
    more = evidence.get("num_more")
    unclear = f" About {more:,} more prompts would probably decide, on a fresh set." if more is not None else ""
    return Ruling(decision=ruling.decision, reason=f"{measured}; {wanted}.{unclear}", evidence=evidence)
