"""A policy that talks with tools in a chat template is killed while it trains: it ends with the same bits."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlhf.config.recipe import RecipeConfig
from rlhf.files import sha256
from rlhf.pipeline.run import Pipeline
from tests.fixtures import chat_tools

ROOT = Path(__file__).parents[2]


def recipe_of(folder: Path, **stages: Any) -> dict[str, Any]:
    return {"name": "run", "seed": 1, "output_dir": str(folder), "threads": 1, "stages": stages}


def rollouts(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "run" / "grpo" / "rollouts.jsonl").read_text().splitlines()]


def weights(folder: Path) -> str:
    return sha256(folder / "run" / "grpo" / "model" / "model.safetensors")


def num_checkpoints(folder: Path) -> int:
    """The newest step that is saved."""
    steps = (folder / "run" / "grpo").glob("checkpoint-*")
    return max((int(path.name.partition("-")[2]) for path in steps if path.name[11:].isdigit()), default=0)


@pytest.mark.slow
def test_a_conversation_with_tools_learns_and_ends_with_the_same_bits_after_kill_9(tmp_path):
    chat_tools.write(tmp_path)
    Pipeline(RecipeConfig.of(recipe_of(tmp_path / "taught", sft=chat_tools.sft_stage(tmp_path)))).run()
    grpo = chat_tools.grpo_stage(tmp_path, tmp_path / "taught" / "run" / "sft" / "model")
    Pipeline(RecipeConfig.of(recipe_of(tmp_path / "whole", grpo=grpo))).run()
    rows = rollouts(tmp_path / "whole")
    assert sum("<tool_response>\nsum " in row["completion"] for row in rows) > 20, "tools were called, and answered"
    assert any('{"error": ' in row["completion"] for row in rows), "and not always well"
    assert len({row["score"] for row in rows}) > 2

    file = tmp_path / "recipe.yaml"
    file.write_text(yaml.safe_dump(recipe_of(tmp_path / "killed", grpo=grpo), sort_keys=False))
    for killed_after in (2, None):
        run = subprocess.Popen(
            [sys.executable, "-m", "rlhf", "run", str(file), "--quiet"],
            cwd=ROOT,
            env=os.environ,
            start_new_session=True,
        )
        while killed_after is not None and num_checkpoints(tmp_path / "killed") < killed_after and run.poll() is None:
            time.sleep(0.002)
        if killed_after is not None:
            os.killpg(run.pid, signal.SIGKILL)
        assert run.wait(timeout=300) == (0 if killed_after is None else -signal.SIGKILL)
    assert weights(tmp_path / "killed") == weights(tmp_path / "whole")
    assert rollouts(tmp_path / "killed") == rows
