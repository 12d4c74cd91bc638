"""`ewc` in a recipe: every stage that trains a policy holds it to what it knew of other rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rlhf.config.recipe import RecipeConfig
from rlhf.config.schema import stage_classes
from rlhf.files import write_jsonl
from rlhf.pipeline.run import Pipeline
from rlhf.pipeline.validate import find_problems
from tests.fixtures.cheap_stages import plain_report

POLICY_STAGES = {kind: cls for kind, cls in stage_classes().items() if "ewc" in cls.model_fields}
ONE_OF_EACH = {cls.trainer: kind for kind, cls in reversed(POLICY_STAGES.items())}.values()
"""Kinds that share their trainer are tried once."""
OFFLINE = {"max_steps": 1, "batch_size": 4}
ONLINE = {"rollouts": 1, "prompts_per_rollout": 4, "sampling": {"max_new_tokens": 4}}


def stage(kind: str, folder: Path, **ewc: Any) -> dict[str, Any]:
    """One step on four rows."""
    prompts = [f"Name a number after {n}." for n in range(4)]
    rows = {
        "sft": [{"prompt": p, "completion": f" {n}"} for n, p in enumerate(prompts)],
        "kto": [{"prompt": p, "completion": f" {n}", "label": n % 2 == 0} for n, p in enumerate(prompts)],
        "pairs": [{"prompt": p, "chosen": " one", "rejected": " two"} for p in prompts],
        "prompts": [{"prompt": p} for p in prompts],
        "memory": [{"prompt": p, "completion": " I know."} for p in prompts],
    }
    for name, content in rows.items():
        write_jsonl(folder / f"{name}.jsonl", content)
    held = {"data": str(folder / "memory.jsonl"), "rows": 3, **ewc}
    common: dict[str, Any] = {"kind": kind, "model": "embedded", "ewc": held}
    fields = POLICY_STAGES[kind].model_fields
    if "prompts" not in fields:
        data = kind if kind in rows else "pairs"
        return {**common, **OFFLINE, "data": str(folder / f"{data}.jsonl")}
    common |= {"teacher": "embedded"} if "teacher" in fields else {}
    common |= {"reward": {"kind": "pattern", "pattern": "e"}} if "reward" in fields else {}
    common |= {"group_size": 2} if "group_size" in fields and fields["group_size"].default != 1 else {}
    common |= {"value_warmup_rollouts": 0} if "value_warmup_rollouts" in fields else {}
    sequences = 4 * common.get("group_size", 1)
    return {**common, **ONLINE, "minibatch_size": sequences, "prompts": str(folder / "prompts.jsonl")}


def recipe_of(tree: dict[str, Any], folder: Path) -> RecipeConfig:
    where = {"name": "held", "output_dir": str(folder / "runs"), "threads": 1}
    return RecipeConfig.of({**where, "stages": {"trained": tree}})


def run(tree: dict[str, Any], folder: Path) -> list[dict[str, Any]]:
    """Events of the run."""
    Pipeline(recipe_of(tree, folder)).run()
    lines = (folder / "runs" / "held" / "events.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize("kind", ONE_OF_EACH)
def test_every_stage_that_trains_a_policy_takes_it(kind, tmp_path, monkeypatch):
    monkeypatch.setattr("rlhf.pipeline.run.write_report", plain_report)
    events = run(stage(kind, tmp_path), tmp_path)
    metrics = [event["metrics"] for event in events if event["event"] == "metrics"]
    assert metrics
    assert all("loss/ewc" in actual for actual in metrics)
    assert metrics[0]["loss/ewc"] == 0, "the policy stands where it came from"
    assert any("ewc.data: 3 rows" in event.get("message", "") for event in events), "so many rows were measured"


def test_a_reward_model_has_no_such_key():
    assert "ewc" not in stage_classes()["reward"].model_fields


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        (None, "There is no file"),
        ([{"prompt": "a", "completion": 3}], "column 'completion' is a number"),
        ([{"prompt": "a"}], "this is a row of kind prompt"),
    ],
    ids=["no file", "a bad row", "prompts"],
)
def test_what_holds_no_demonstrations_is_told_beforehand(rows, says, tmp_path):
    tree = stage("sft", tmp_path, data=str(tmp_path / "kept.jsonl"))
    if rows is not None:
        write_jsonl(tmp_path / "kept.jsonl", rows)
    problems = [problem for problem in find_problems(recipe_of(tree, tmp_path)) if problem.level == "error"]
    assert [problem.key for problem in problems] == ["ewc.data"]
    assert says in problems[0].message


def test_what_is_kept_is_not_taken_for_held_out_rows(tmp_path):
    # the same file to learn from and to keep: nothing leaks, as nothing is measured on it
    tree = stage("sft", tmp_path, data=str(tmp_path / "sft.jsonl"))
    assert [problem for problem in find_problems(recipe_of(tree, tmp_path)) if "learns from" in problem.message] == []
