"""Pass, fail, or undecided: what a comparison with a bound says, and why.

A number that is missing or not finite decides nothing, and nothing that is undecided is ever taken for a pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Decision(StrEnum):
    """What evidence says of a requirement."""

    PASS = "pass"
    FAIL = "fail"
    UNDECIDED = "undecided"
    """The evidence is missing, not finite, or too little. Promotes nothing, exactly as ``FAIL``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruling:
    """A decision with its reason and the numbers behind it."""

    decision: Decision
    reason: str
    """One sentence with the numbers."""
    evidence: Mapping[str, Any] = field(default_factory=dict)
    """What a reader needs to check the decision again; JSON."""

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"decision": str(self.decision), "reason": self.reason, "evidence": dict(self.evidence)}


def combined(rulings: Mapping[str, Ruling]) -> Decision:
    """All must pass; one failure fails; otherwise undecided. No requirement at all decides nothing.

    Each requirement is tested at the full level, since all must pass (intersection-union test, Berger 1982,
    "Multiparameter hypothesis testing and acceptance sampling", Technometrics 24). Whoever lets many requirements fail must
    correct for their number first (``rlhf.evaluation.paired_tests.holm``).
    """
    decisions = {ruling.decision for ruling in rulings.values()}
    if Decision.FAIL in decisions:
        return Decision.FAIL
    return Decision.PASS if decisions == {Decision.PASS} else Decision.UNDECIDED
