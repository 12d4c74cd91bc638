"""`ptx` in a recipe: stages that learn from rewards go on predicting other rows."""

from __future__ import annotations

import pytest

from rlhf.config.schema import stage_classes
from rlhf.errors import ConfigError
from rlhf.files import write_jsonl
from rlhf.pipeline.validate import find_problems
from tests.fixtures.cheap_stages import plain_report
from tests.unit.pipeline.test_ewc import recipe_of, run, stage


def with_ptx(kind, folder, **ptx):
    tree = stage(kind, folder)
    held = tree.pop("ewc")
    return {**tree, "ptx": {"data": held["data"], **ptx}}


@pytest.mark.parametrize("kind", ["ppo", "grpo", "online_dpo"])
def test_a_stage_reads_the_rows_and_logs_their_loss(kind, tmp_path, monkeypatch):
    monkeypatch.setattr("rlhf.pipeline.run.write_report", plain_report)
    events = run(with_ptx(kind, tmp_path, coef=0.5, batch_size=2), tmp_path)
    metrics = [event["metrics"] for event in events if event["event"] == "metrics"]
    assert metrics
    assert all(actual["loss/ptx"] > 0 for actual in metrics)
    assert any("ptx.data: 4 rows" in event.get("message", "") for event in events)


def test_a_file_of_prompts_is_found_out_beforehand(tmp_path):
    tree = with_ptx("grpo", tmp_path, data=str(tmp_path / "kept.jsonl"))
    write_jsonl(tmp_path / "kept.jsonl", [{"prompt": "a"}])
    problems = [problem for problem in find_problems(recipe_of(tree, tmp_path)) if problem.level == "error"]
    assert [problem.key for problem in problems] == ["ptx.data"]


def test_trpo_refuses_it(tmp_path):
    with pytest.raises(ConfigError, match=r"ptx .*TRPO"):
        recipe_of(with_ptx("trpo", tmp_path), tmp_path)


def test_stages_without_rewards_have_no_such_key():
    classes = stage_classes()
    assert "ptx" in classes["dapo"].model_fields
    assert not any("ptx" in classes[kind].model_fields for kind in ("sft", "dpo", "reward", "distill"))
