"""The report's section on capability suites."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlhf.evaluation.decision import Decision
from rlhf.formatting import mapping, number
from rlhf.pipeline.report.plots import ALARM, MUTED, ONE, ForestRow, Panel, forest_panel
from rlhf.pipeline.report.run_data import StageRecord

TONES = {Decision.PASS: "good", Decision.FAIL: "bad", Decision.UNDECIDED: "unknown"}
COLORS = {Decision.PASS: ONE, Decision.FAIL: ALARM, Decision.UNDECIDED: MUTED}
TITLES = {
    Decision.PASS: "No suite lost more than its margin",
    Decision.FAIL: "Capabilities were lost",
    Decision.UNDECIDED: "Whether capabilities were kept is not decided",
}


def capabilities_view(stage: StageRecord) -> dict[str, Any]:
    """Decision, one row for each suite, the forest plot, and items that training data holds."""
    record = mapping(stage.capabilities)
    decision = _decision(record.get("decision"))
    rows = [_row(name, mapping(suite)) for name, suite in mapping(record.get("suites")).items()]
    contamination = mapping(record.get("contamination"))
    return {
        "stage": stage,
        "settings": mapping(record.get("settings")),
        "tone": TONES[decision],
        "heading": TITLES[decision],
        "rows": rows,
        "panels": _panels(mapping(record.get("suites"))),
        "contaminated": [(name, mapping(each)) for name, each in mapping(contamination.get("suites")).items()],
        "unread": contamination.get("unread") or [],
    }


def _row(name: str, suite: Mapping[str, Any]) -> dict[str, Any]:
    ruling, repeat = mapping(suite.get("ruling")), mapping(suite.get("repeat"))
    decision = _decision(ruling.get("decision"))
    return {
        "name": name,
        "before": mapping(suite.get("before")),
        "after": mapping(suite.get("after")),
        "gain": mapping(suite.get("gain")),
        "margin": number(suite.get("margin")),
        "decision": str(decision),
        "tone": TONES[decision],
        "reason": str(ruling.get("reason") or ""),
        "flipped": number(repeat.get("flipped_frac")),
        "pairs": [_pair(mapping(each)) for each in suite.get("group_differences") or []],
    }


def _pair(record: Mapping[str, Any]) -> dict[str, Any]:
    p_value = number(record.get("p_value"))
    return {
        "groups": [str(group) for group in record.get("groups") or []],
        "difference": mapping(record.get("difference")),
        "p_value": p_value,
        "is_shown": p_value is not None and p_value < 0.05,
    }


def _panels(suites: Mapping[str, Any]) -> list[Panel]:
    rows = []
    for name, suite in suites.items():
        gain, margin = mapping(mapping(suite).get("gain")), number(mapping(suite).get("margin"))
        value, low, high = (number(gain.get(part)) for part in ("value", "low", "high"))
        if value is None or low is None or high is None:
            continue
        decision = _decision(mapping(mapping(suite).get("ruling")).get("decision"))
        rows.append(ForestRow(name, value, low, high, None if margin is None else -margin, COLORS[decision]))
    note = "After minus before with 95 % intervals; the red tick is the largest loss that is accepted."
    return [forest_panel("Change of each suite", rows, unit="mean score", note=note)] if rows else []


def _decision(value: Any) -> Decision:
    """Anything that is no decision decides nothing."""
    return Decision(value) if value in set(Decision) else Decision.UNDECIDED
