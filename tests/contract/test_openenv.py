"""OpenEnv's own example environment, which its `openenv init` writes, served by its own server: a policy learns from it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlhf.config.recipe import RecipeConfig
from rlhf.pipeline.run import Pipeline
from rlhf.pipeline.validate.check import validate_recipe

PYTHON = os.environ.get("RLHF_OPENENV_PYTHON")
READY = "Echo Test environment ready!"
pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(
        not PYTHON,
        reason="RLHF_OPENENV_PYTHON names no interpreter of an environment with openenv-core (0.2.1 was tried)",
    ),
]
SECONDS = 180


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("openenv")
    assert PYTHON is not None
    made = "from openenv.cli.__main__ import app; app()"
    subprocess.run(
        [PYTHON, "-c", made, "init", "echo_test"], cwd=folder, check=True, capture_output=True, timeout=SECONDS
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    served = subprocess.Popen(
        [PYTHON, "-m", "uvicorn", "server.app:app", "--port", str(port), "--log-level", "warning"],
        cwd=folder / "echo_test",
    )
    try:
        await_health(f"http://127.0.0.1:{port}", served)
        yield f"http://127.0.0.1:{port}"
    finally:
        served.terminate()
        served.wait(timeout=30)


def await_health(address: str, served: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        assert served.poll() is None, "the server ended"
        try:
            with urllib.request.urlopen(f"{address}/health", timeout=5):
                return
        except OSError:
            time.sleep(0.2)
    pytest.fail("the server did not begin")


def recipe(folder: Path, server: str) -> RecipeConfig:
    (folder / "prompts.jsonl").write_text("".join(json.dumps({"prompt": f"Say {n}: "}) + "\n" for n in range(2)))
    init = {
        "model_type": "llama", "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
        "num_key_value_heads": 2, "max_position_embeddings": 128,
    }  # fmt: skip
    stage = {
        "kind": "grpo", "model": {"tokenizer": "embedded", "init": init}, "prompts": str(folder / "prompts.jsonl"),
        "environment": {"kind": "openenv", "source": server, "max_turns": 2, "max_turn_tokens": 4},
        "sampling": {"max_new_tokens": 60}, "rollouts": 1, "prompts_per_rollout": 2, "group_size": 2, "minibatch_size": 4,
        "learning_rate": 1e-4,
    }  # fmt: skip
    return RecipeConfig.of({"name": "run", "output_dir": str(folder), "threads": 1, "stages": {"grpo": stage}})


def test_a_policy_learns_from_the_example_environment(server, tmp_path):
    found = validate_recipe(recipe(tmp_path, server), deep=False)
    assert found.errors == []
    assert any("1 session at a time" in note for note in found.notes)
    Pipeline(recipe(tmp_path, server)).run()
    rows = [json.loads(line) for line in (tmp_path / "run" / "grpo" / "rollouts.jsonl").read_text().splitlines()]
    assert len(rows) == 4
    for row in rows:
        assert row["turns"] == 2 or row["finish_reason"] == "eos"
        assert row["environment_reward"] > 0, "a tenth of the letters of each turn"
        assert row["environment_reward"] * 10 == pytest.approx(round(row["environment_reward"] * 10))
        assert False in row["scored"][:3], "what the environment says first is not trained on"
