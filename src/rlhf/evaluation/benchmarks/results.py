"""What a benchmark measured."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rlhf.evaluation.intervals import Estimate
from rlhf.files import write_json


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkResult:
    """One benchmark of one model."""

    name: str
    scores: Mapping[str, Estimate]
    """Metric -> value with its interval over items; the first is the headline."""
    settings: Mapping[str, Any]
    """What decided it: files with hashes, prompt, judge, versions."""
    items: Sequence[Mapping[str, Any]] = ()
    """One for each item, so that two models can be compared in pairs; each has ``id``."""
    notes: Sequence[str] = ()
    """What a reader must know to read the number, such as how it differs from the published one."""
    missing: Mapping[str, str] = field(default_factory=dict)
    """Metric or item -> why there is none."""
    undecided: str = ""
    """Why the scores decide nothing, such as too few readable verdicts; empty where they do. They then have no interval."""

    def __str__(self) -> str:
        lines = [f"{self.name}: not decided, {self.undecided}." if self.undecided else f"{self.name}:"]
        lines += [f"  {name}: {_shown(score)}" for name, score in self.scores.items()]
        return "\n".join([*lines, *(f"  {note}" for note in self.notes)])

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "name": self.name,
            "undecided": self.undecided,
            "scores": {name: score.to_dict() for name, score in self.scores.items()},
            "settings": dict(self.settings),
            "notes": list(self.notes),
            "missing": dict(self.missing),
            "items": [dict(item) for item in self.items],
        }

    def write(self, folder: Path) -> Path:
        """``NAME.json`` in a folder."""
        path = folder / f"{self.name}.json"
        write_json(path, self.to_dict())
        return path


def not_decided(scores: Mapping[str, Estimate], why: str) -> dict[str, Estimate]:
    """The same numbers without intervals, each with the reason; as they are where there is none."""
    if not why:
        return dict(scores)
    return {
        name: replace(score, low=math.nan, high=math.nan, reason=f"not decided: {why}") if score.measured else score
        for name, score in scores.items()
    }


def _shown(score: Estimate) -> str:
    if not score.measured:
        return f"not measured: {score.reason}"
    if not math.isfinite(score.low):
        return f"{score.value:.3f} ({score.reason})"
    return f"{score.value:.3f} [{score.low:.3f}, {score.high:.3f}] of {score.n:,}"
