"""A recipe whose chat template leaves out a field of its data: found before the run, refused by it, allowed by name."""

from __future__ import annotations

import json

import pytest

from rlhf.config.recipe import RecipeConfig
from rlhf.data.contracts import RowError
from rlhf.errors import ConfigError, DataError
from rlhf.pipeline.run import Pipeline
from rlhf.pipeline.validate import find_problems

ROW = {
    "messages": [
        {"role": "user", "content": "Where is Rome?"},
        {"role": "assistant", "content": "In Italy.", "reasoning": "Rome is Italian."},
    ]
}


def recipe(folder, **stage):
    (folder / "rows.jsonl").write_text((json.dumps(ROW) + "\n") * 8)
    sft = {
        "kind": "sft",
        "model": "embedded",
        "data": str(folder / "rows.jsonl"),
        "max_steps": 1,
        "epochs": None,
        **stage,
    }
    return RecipeConfig.of({"name": "run", "output_dir": str(folder), "threads": 1, "stages": {"sft": sft}})


def test_validation_finds_it_and_the_run_refuses_it(tmp_path):
    (problem,) = [p for p in find_problems(recipe(tmp_path)) if p.level == "error"]
    assert (problem.stage, problem.key, problem.kind) == ("sft", "data", DataError)
    assert "rows.jsonl:1: the chat template leaves out reasoning of message 2" in problem.message
    assert "8 of 8 rows" in problem.message
    with pytest.raises(RowError, match=r"allow_lost_fields: \[reasoning\]"):
        Pipeline(recipe(tmp_path)).run()


def test_a_stage_allows_it_by_name_and_says_so(tmp_path):
    allowed = recipe(tmp_path, allow_lost_fields=["reasoning"])
    assert not [p for p in find_problems(allowed) if p.level == "error"]
    Pipeline(allowed).run()
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    assert any("8 lost fields" in event.get("message", "") for event in events)
    with pytest.raises(ConfigError, match="allow_lost_fields"):
        recipe(tmp_path, allow_lost_fields=["thoughts"])


def test_a_run_that_skips_bad_rows_leaves_such_rows_out_and_stops_where_none_is_left(tmp_path):
    with pytest.raises(DataError, match="no row of the data is left"):
        Pipeline(recipe(tmp_path, on_bad_row="skip")).run()
