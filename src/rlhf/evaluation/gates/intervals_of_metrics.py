"""A metric that is no mean over prompts (a median, distinct words) against a bound, by the interval that came with it."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import NormalDist
from typing import Any

from rlhf.evaluation.decision import Decision, Ruling
from rlhf.evaluation.gates.measurements import estimate_of, undecided
from rlhf.formatting import percentage


def interval_above(
    name: str, interval: Mapping[str, Any] | None, bound: float, *, confidence: float, sign: int = 1
) -> Ruling:
    """PASS where the whole interval is above the bound, FAIL where it is below, else UNDECIDED.

    p-values, which Holm's correction needs, are those of a normal distribution with the interval's width.

    Args:
        name: Of the metric.
        found: ``Estimate.to_dict`` of its number, or of a difference.
        bound: In its units.
        confidence: One-sided, that each end must have at least; an interval that came with less decides nothing.
        sign: -1 where the number should be below.
    """
    estimate = estimate_of(interval)
    if estimate is None:
        why = (interval or {}).get("reason") or "it has no interval"
        return undecided(f"{name} decides nothing: {why}")
    if estimate.high <= estimate.low:
        return undecided(f"the interval of {name} has no width, which shows no spread")
    if (own := (1 + estimate.confidence) / 2) < confidence - 1e-9:
        return undecided(
            f"each end of the interval of {name} holds in {percentage(own)} of cases, and the gate asks for {percentage(confidence)}; "
            "a lower `confidence` decides by it"
        )
    low, high = (estimate.low, estimate.high) if sign > 0 else (-estimate.high, -estimate.low)
    limit = sign * bound
    decision = Decision.PASS if low > limit else Decision.FAIL if high < limit else Decision.UNDECIDED
    error = (high - low) / 2 / NormalDist().inv_cdf((1 + estimate.confidence) / 2)
    p_within = NormalDist().cdf((limit - sign * estimate.value) / error)
    return Ruling(
        decision=decision,
        reason=f"{name} is {estimate.value:.4g} [{estimate.low:.4g}, {estimate.high:.4g}] over {estimate.n:,}, the bound is {bound:g}.",
        evidence={
            **estimate.to_dict(), "bound": bound, "confidence": (1 + estimate.confidence) / 2,
            "p_within": p_within, "p_beyond": 1 - p_within,
        },
    )  # fmt: skip
