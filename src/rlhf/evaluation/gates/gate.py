"""Requirements together: what a gate decides."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlhf.config.requirements import Requirement
from rlhf.errors import ConfigError
from rlhf.evaluation.decision import Decision, Ruling, combined
from rlhf.evaluation.gates.measurements import Measurements
from rlhf.evaluation.intervals import CONFIDENCE
from rlhf.evaluation.paired_tests import holm

NO_CHAMPION = "There is no champion yet, so there is nothing to compare with; the other requirements decide."
ONLY_COMPARISONS = (
    "There is no champion to compare with, and nothing that the candidate must reach by itself is required, so nothing is known of it. "
    "Begin with a model that you have by `rlhf registry promote MODEL`, or require something of the first candidate, such as `at_least`."
)
NOT_COMPARED = "no_champion"
"""Key in the evidence of a requirement that had nothing to compare with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GateDecision:
    """What a gate decided, and why."""

    decision: Decision
    reason: str
    """For people: what failed or is not known, or that all passed."""
    rulings: Mapping[str, Ruling]
    """By requirement."""

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "decision": str(self.decision),
            "reason": self.reason,
            "rulings": {name: ruling.to_dict() for name, ruling in self.rulings.items()},
        }


def decide(
    requirements: Sequence[Requirement], measurements: Measurements, *, confidence: float = CONFIDENCE
) -> GateDecision:
    """PASS if every requirement passes, FAIL if one fails, else UNDECIDED, which is no pass.

    A pass is an intersection-union test (Berger 1982): each requirement is tested at the full level. A failure must survive Holm's
    correction for the number of requirements that can fail by chance; otherwise a candidate that meets twenty is failed in most runs.
    Where there is no champion yet, comparisons are left out, and say so; without another requirement that is UNDECIDED.

    Args:
        requirements: Of ``rlhf.config.requirements``.
        measurements: What they read.
        confidence: A candidate that misses a requirement passes it in at most 1 - confidence of runs; one that meets all of them
            fails any in at most as many.

    Raises:
        ConfigError: There is no requirement, or one of the user's own can't be asked.
    """
    if not requirements:
        raise ConfigError("A gate without requirements decides nothing; name at least one.")
    rulings: dict[str, Ruling] = {}
    for requirement in requirements:
        if requirement.compares and not measurements.has_champion:
            rulings[requirement.label] = Ruling(
                decision=Decision.UNDECIDED, reason=NO_CHAMPION, evidence={NOT_COMPARED: True}
            )
        else:
            rulings[requirement.label] = _decider(requirement)(requirement, measurements, confidence)
    rulings = _corrected(rulings, confidence)
    counted = {name: ruling for name, ruling in rulings.items() if not ruling.evidence.get(NOT_COMPARED)}
    decision = combined(counted)
    return GateDecision(decision=decision, reason=_reason(decision, counted, measurements), rulings=rulings)


def _decider(requirement: Requirement) -> Any:
    module, _, name = requirement.decides.partition(":")
    return getattr(importlib.import_module(f"{__package__}.{module}"), name)


def _corrected(rulings: Mapping[str, Ruling], confidence: float) -> dict[str, Ruling]:
    """Failures that are left after Holm; those that no chance is in, such as an alarm, stay."""
    tested = [name for name, ruling in rulings.items() if ruling.evidence.get("p_beyond") is not None]
    adjusted = dict(zip(tested, holm([rulings[name].evidence["p_beyond"] for name in tested]).tolist(), strict=True))
    corrected = dict(rulings)
    for name, p in adjusted.items():
        ruling = rulings[name]
        decision, reason = ruling.decision, ruling.reason
        limit = 1 - float(ruling.evidence.get("confidence", confidence))
        if decision is Decision.FAIL and p >= limit:
            decision = Decision.UNDECIDED
            reason += f" Among {len(tested)} requirements that happens by chance (Holm: p = {p:.3g}), so it fails none."
        corrected[name] = Ruling(decision=decision, reason=reason, evidence={**ruling.evidence, "p_beyond_holm": p})
    return corrected


def _numbers(ruling: Ruling) -> str:
    """`` (0.72 [0.68, 0.76])``, or `` (difference +0.22 [+0.18, +0.26])``; empty where there are none."""
    evidence = ruling.evidence
    is_level = evidence.get("value") is not None
    numbers = [evidence.get("value" if is_level else "difference"), evidence.get("low"), evidence.get("high")]
    form = " ({:.3g} [{:.3g}, {:.3g}])" if is_level else " (difference {:+.3g} [{:+.3g}, {:+.3g}])"
    return "" if None in numbers else form.format(*numbers)


def _reason(decision: Decision, counted: Mapping[str, Ruling], measurements: Measurements) -> str:
    if not counted:
        return ONLY_COMPARISONS
    if decision is Decision.PASS:
        first = "" if measurements.has_champion else " It is the first champion: there was none to compare with."
        names = ", ".join(f"{name}{_numbers(ruling)}" for name, ruling in counted.items())
        return f"Met: {names}.{first}"
    return " ".join(f"{name}: {ruling.reason}" for name, ruling in counted.items() if ruling.decision is decision)
