"""One file for each row, named by the row and keyed by everything it was made from: a run that broke off goes on where it was."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.peer.cases import Case

MEASURING = (
    "agreement.py", "cases.py", "channel.py", "driver.py", "models.py", "side_generate.py", "side_rlhf.py", "side_trl.py",
    "side_trl_ppo.py", "work.py", "../requirements-trl.txt", "../requirements-trl-ppo.txt",
    "../requirements-trl-gpu.txt",
)  # fmt: skip
"""Files of the comparison that decide what a row says; the rest only writes about it."""


NOT_MEASURED = ("cli", "evaluation", "feedback", "pipeline", "scale")
"""Rooms of the library that no step of a trainer runs through (tests/architecture lets ``training`` import none of them)."""


def code_hash(root: Path) -> str:
    """Of the library's source, as far as it can run in a step, and of what measures it."""
    digest = hashlib.sha256()
    source = root / "src" / "rlhf"
    files = [
        *(
            file
            for file in sorted(source.rglob("*"))
            if file.suffix in (".py", ".c", ".h") and file.relative_to(source).parts[0] not in NOT_MEASURED
        ),
        *(root / "benchmarks" / "peer" / name for name in MEASURING),
    ]
    for file in files:
        digest.update(str(file.relative_to(root)).encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()


def row_key(code: str, case: Case, plan: dict[str, Any]) -> str:
    """Of a row: its code, its case and how it was measured."""
    told = json.dumps([code, case.to_json(), plan], sort_keys=True)
    return hashlib.sha256(told.encode()).hexdigest()[:16]


class Rows:
    """The rows' folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, case: Case) -> Path:
        """Where a row lies."""
        return self.folder / f"{case.name}.json"

    def find(self, case: Case, key: str | None = None) -> dict[str, Any] | None:
        """A row, if it is there and made from this; with no key, whatever it was made from."""
        path = self.path(case)
        if not path.exists():
            return None
        row: dict[str, Any] = json.loads(path.read_text())
        return row if key is None or row.get("key") == key else None

    def keep(self, case: Case, row: dict[str, Any]) -> None:
        """Write aside and rename."""
        self.folder.mkdir(parents=True, exist_ok=True)
        aside = self.path(case).with_suffix(".partial")
        aside.write_text(json.dumps(row, indent=1))
        aside.replace(self.path(case))

    def all(self, cases: Iterable[Case]) -> dict[str, dict[str, Any]]:
        """Those that are there, by name."""
        by_case = {case.name: self.find(case) for case in cases}
        return {name: row for name, row in by_case.items() if row is not None}
