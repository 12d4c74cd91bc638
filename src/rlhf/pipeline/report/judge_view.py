"""The report's section on judges that a policy learned from, and what the first lines and the curve of reward against judge say of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlhf.formatting import mapping, number
from rlhf.pipeline.report.run_data import RunRecord, StageRecord

PROXY = "reward model (the proxy)"
"""What the curve of reward against judge calls the reward where no record says what it was."""


def judge_rewards(stage: StageRecord | None) -> list[Mapping[str, Any]]:
    """Records of the judges that a stage asked."""
    return [] if stage is None else [mapping(each) for each in mapping(stage.judge_rewards).values()]


def judges_view(stage: StageRecord) -> dict[str, Any]:
    """What each judge of a stage was asked, and how its criteria went."""
    return {"stage": stage, "judges": [_row(stage, each) for each in judge_rewards(stage)]}


def _row(stage: StageRecord, record: Mapping[str, Any]) -> dict[str, Any]:
    asked, unread = number(record.get("questions")) or 0, number(record.get("unparsed")) or 0
    name = str(record.get("name") or "judge")
    criteria = [
        {"name": criterion, "weight": weight, "ends": _ends(stage, f"reward/{name}/{criterion}")}
        for criterion, weight in mapping(record.get("criteria")).items()
    ]
    return {
        "judge": str(record.get("judge") or "unknown"),
        "mode": str(record.get("mode") or "unknown"),
        "questions": int(asked),
        "max_requests": number(record.get("max_requests")),
        "cost": number(record.get("cost")),
        "certificate_problem": record.get("certificate_problem") or "",
        "unparsed_frac": unread / asked if asked else None,
        "criteria": criteria,
        "certified": not record.get("certificate_problem"),
    }


def _ends(stage: StageRecord, metric: str) -> tuple[float, float] | None:
    curve = stage.curves.get(metric)
    return (curve[min(curve)], curve[max(curve)]) if curve else None


def proxy_called(run: RunRecord, evaluation: StageRecord) -> tuple[str, str]:
    """What the curve calls the reward of the rollouts that an evaluation judged, and a sentence on what it can't show.

    Args:
        run: Whose manifest says which rollouts they were.
        evaluation: Its stage.
    """
    parents = mapping(mapping(mapping(run.manifest.get("artifacts")).get(evaluation.name)).get("parents"))
    trained = str(parents.get("rollouts", "")).removeprefix("stage:").partition("/")[0]
    records = judge_rewards(run.stages.get(trained))
    if not records:
        return PROXY, ""
    names = ", ".join(dict.fromkeys(str(each.get("judge")) for each in records))
    note = (
        "This reward compares completions of one prompt with each other, so its mean is the same at every step, whatever the policy does: "
        "the curve shows what the held-out judge says, and can't show the reward rise."
        if all(each.get("needs_siblings") for each in records)
        else ""
    )
    return f"judge {names} (the reward)", note
