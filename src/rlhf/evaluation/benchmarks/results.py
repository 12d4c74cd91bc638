"""What a benchmark measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "name": self.name,
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
