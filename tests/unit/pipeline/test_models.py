"""Models of a run folder, for who named the folder and meant a model."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlhf.errors import ModelError
from rlhf.files import write_json, write_text
from rlhf.pipeline.models import models_in, named_model, where_models_are


def add(run: Path, stage: str, kind: str | None, finished: str = "") -> None:
    write_json(run / stage / "model" / "config.json", {})
    if kind is not None:
        write_json(run / stage / "artifact.json", {"kind": kind, "finished": finished})


def test_the_newest_policy_comes_first_and_reward_models_last(tmp_path):
    add(tmp_path, "ppo", "ppo", "2026-01-03T00:00:00+00:00")
    add(tmp_path, "sft", "sft", "2026-01-01T00:00:00+00:00")
    add(tmp_path, "reward", "reward", "2026-01-04T00:00:00+00:00")
    add(tmp_path, "adapter", "dpo", "2026-01-02T00:00:00+00:00")
    write_json(tmp_path / "adapter" / "model" / "adapter_config.json", {})
    assert [(folder.parent.name, kind) for folder, kind in models_in(tmp_path)] == [
        ("ppo", "ppo"), ("adapter", "dpo"), ("sft", "sft"), ("reward", "reward"),
    ]  # fmt: skip
    assert where_models_are(tmp_path).startswith(
        f"Its models, the newest policy first: {tmp_path / 'ppo' / 'model'} (ppo), {tmp_path / 'adapter' / 'model'} (dpo), "
    )


def test_one_model_none_and_a_damaged_record(tmp_path):
    assert where_models_are(tmp_path) == ""
    add(tmp_path, "sft", None)
    write_text(tmp_path / "sft" / "artifact.json", "[1")
    assert where_models_are(tmp_path) == f"Its model is {tmp_path / 'sft' / 'model'} (unfinished)."


def test_the_folder_of_a_stage_stands_for_its_model_and_that_of_a_run_for_none(tmp_path):
    add(tmp_path, "sft", "sft")
    write_json(tmp_path / "dpo" / "model" / "adapter_config.json", {})
    assert named_model(str(tmp_path / "sft")) == str(tmp_path / "sft" / "model")
    assert named_model(str(tmp_path / "dpo")) == str(tmp_path / "dpo" / "model")
    assert named_model(str(tmp_path / "sft" / "model")) == str(tmp_path / "sft" / "model")
    assert named_model("org/name") == "org/name"
    with pytest.raises(ModelError, match="sft"):
        named_model(str(tmp_path))
