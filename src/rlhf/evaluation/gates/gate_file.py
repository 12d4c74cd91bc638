"""The file of a gate: measurements, requirements and the decision, from which anybody can make the decision again."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from rlhf.config.requirements import RequirementSpec
from rlhf.errors import DataError
from rlhf.evaluation.gates.gate import GateDecision, decide
from rlhf.evaluation.gates.measurements import Measurements

SCHEMA = 1
FILE = "gate.json"
SEAL = "sha256"
"""Key of the hash of everything else in the file."""
PARTS = frozenset({"requirements", "measurements", "decision", "rulings", "confidence"})
TOLERANCE = 1e-6
"""Relative, of numbers that another processor may round another way."""


def sealed(document: Mapping[str, Any]) -> dict[str, Any]:
    """The same with a hash over all of it, so that an edit anywhere shows. No signature: who edits can hash again, and the line in the
    registry's history, which has the hash of the whole file, then differs."""
    plain = json.loads(json.dumps(document))  # as it will be read: keys are texts then, tuples lists
    return {**plain, SEAL: _hash_of(plain)}


def _hash_of(document: Mapping[str, Any]) -> str:
    told = {key: value for key, value in document.items() if key != SEAL}
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


def is_evidence(path: Path | str) -> bool:
    """Whether a file is, or was before somebody edited it, what a gate wrote."""
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(document, dict) and document.keys() >= PARTS


def read_evidence(path: Path | str) -> dict[str, Any]:
    """What a gate wrote.

    Raises:
        DataError: It can't be read, no gate wrote it, or it was changed since.
    """
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as err:
        raise DataError(f"{path} can't be read as the evidence of a gate: {err}.") from err
    if not isinstance(document, dict) or not document.keys() >= PARTS:
        raise DataError(f"{path} is no evidence of a gate; give the {FILE} that a gate wrote.")
    if document.get("schema") != SCHEMA:
        raise DataError(
            f"{path} has schema {document.get('schema')!r}, and this version reads {SCHEMA}; use the version that wrote it."
        )
    if document.get(SEAL) != _hash_of(document):
        raise DataError(
            f"{path} was changed since a gate wrote it: the {SEAL} in it is not that of the rest. Restore it, or let the gate decide again."
        )
    return document


def replay(document: Mapping[str, Any], *, source: str = "The evidence") -> GateDecision:
    """Decide again from what was measured.

    Args:
        document: As of ``read_evidence``.
        source: What errors call it.

    Raises:
        DataError: Its requirements or measurements can't be read, or decide otherwise than was written.
    """
    try:
        requirements = [TypeAdapter(RequirementSpec).validate_python(each) for each in document["requirements"]]
    except (ValidationError, TypeError) as err:
        raise DataError(f"{source}: its requirements can't be read by this version: {err}") from err
    replayed = decide(
        requirements, Measurements.from_dict(document["measurements"]), confidence=float(document["confidence"])
    )
    if (other := _difference(json.loads(json.dumps(replayed.to_dict())), document)) is not None:
        raise DataError(
            f"{source} does not give the decision that was written ({document['decision']}): {other}. It was changed, or another version "
            "of the library or of a requirement of your own decides otherwise."
        )
    return replayed


def _difference(replayed: Mapping[str, Any], written: Mapping[str, Any]) -> str | None:
    """The first thing that is not as it was written; reasons are words and may differ."""
    if replayed["decision"] != written["decision"]:
        return f"it gives {replayed['decision']}"
    if replayed["rulings"].keys() != written["rulings"].keys():
        return "it has other requirements"
    for name, ruling in replayed["rulings"].items():
        before = written["rulings"][name]
        if ruling["decision"] != before["decision"]:
            return f"{name} gives {ruling['decision']} and not {before['decision']}"
        for key, value in ruling["evidence"].items():
            old = before["evidence"].get(key)
            if not _is_same(value, old):
                return f"{name} gives {key} {value} and not {old}"
    return None


def _is_same(new: Any, old: Any) -> bool:
    if isinstance(new, float) and isinstance(old, int | float):
        return math.isclose(new, old, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    return bool(new == old)
