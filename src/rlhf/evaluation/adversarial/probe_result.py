"""What a probe of a policy found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlhf.evaluation.intervals import Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """Scores of one probe."""

    name: str
    scores: Mapping[str, Estimate]
    """Score -> value with its interval; the first is the headline."""
    items: Sequence[Mapping[str, Any]] = ()
    """One for each thing that was asked, with what came back."""
    notes: Sequence[str] = ()
    """What a reader must know to read the scores."""

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "name": self.name,
            "scores": {name: score.to_dict() for name, score in self.scores.items()},
            "items": [dict(item) for item in self.items],
            "notes": list(self.notes),
        }
