"""The candidate's mean is below a value."""

from __future__ import annotations

from rlhf.config.requirements import BoundedRequirement
from rlhf.evaluation.decision import Ruling
from rlhf.evaluation.gates.at_least import above
from rlhf.evaluation.gates.measurements import Measurements


def at_most(requirement: BoundedRequirement, measurements: Measurements, confidence: float) -> Ruling:
    """``at_least`` of the negated numbers."""
    return above(requirement, measurements, confidence, sign=-1)
