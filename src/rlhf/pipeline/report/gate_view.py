"""The report's section on gates: each requirement with its numbers, what was decided and why, and the registry's history."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rlhf.formatting import mapping, number
from rlhf.pipeline.report.run_data import StageRecord

TONES = {"pass": "good", "fail": "bad", "undecided": "unknown"}
TITLES = {
    "pass": "passed",
    "fail": "failed",
    "undecided": "was not decided about, which is no pass",
}
NOT_COMPARED = "no_champion"
"""As in ``rlhf.evaluation.gates.gate``, which imports numpy."""


def gate_view(stage: StageRecord) -> dict[str, Any]:
    """Decision, and one row for each requirement."""
    record = mapping(stage.gate)
    decision = _decision(record.get("decision"))
    champion = mapping(record.get("champion"))
    return {
        "stage": stage,
        "tone": TONES[decision],
        "candidate": str(mapping(record.get("candidate")).get("name") or "the candidate"),
        "heading": TITLES[decision],
        "champion": f"{champion.get('alias')}, version {champion.get('version')}" if champion else "",
        "alias": str(record.get("alias") or ""),
        "rows": [_row(str(name), mapping(ruling)) for name, ruling in mapping(record.get("rulings")).items()],
    }


def registry_views(stages: Iterable[StageRecord]) -> list[dict[str, Any]]:
    """Of each registry and alias the newest history that a gate left, oldest line first."""
    newest: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for stage in stages:
        record = mapping(stage.releases)
        key = str(record.get("folder") or ""), str(record.get("alias") or "")
        events = [mapping(event) for event in record.get("history") or []]
        if len(events) >= len(newest.get(key, [])) and events:
            newest[key] = events
    return [{"folder": folder, "alias": alias, "events": events} for (folder, alias), events in newest.items()]


def _row(name: str, ruling: Mapping[str, Any]) -> dict[str, Any]:
    evidence = mapping(ruling.get("evidence"))
    decision = _decision(ruling.get("decision"))
    value = number(evidence.get("value"))
    is_change = value is None
    estimate = {
        "value": number(evidence.get("difference")) if is_change else value,
        "low": number(evidence.get("low")),
        "high": number(evidence.get("high")),
        "n": evidence.get("n"),
        "reason": str(ruling.get("reason") or ""),
    }
    not_compared = bool(evidence.get(NOT_COMPARED))
    return {
        "name": name,
        "estimate": estimate,
        "has_number": estimate["value"] is not None,
        "is_change": is_change,
        "bound": number(evidence.get("bound")),
        "decision": "not compared" if not_compared else decision,
        "tone": TONES[decision],
        "reason": estimate["reason"],
    }


def _decision(value: Any) -> str:
    """Anything that is no decision decides nothing."""
    return str(value) if value in TITLES else "undecided"
