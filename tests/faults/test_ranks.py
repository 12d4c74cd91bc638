"""A recipe that torchrun starts: the whole of it, a signal in its middle, and what it may not do."""

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

from rlhf.files import write_jsonl
from tests.fixtures.two_ranks import free_port

STEPS = 12


def write_recipe(folder: Path, **stages: Any) -> Path:
    rows = [{"prompt": f"Question {n}?", "completion": f"{n} times {n} is {n * n}."} for n in range(40)]
    pairs = [{"prompt": f"Is it {n}?", "chosen": f"Yes, {n}.", "rejected": f"No, {n + 1}."} for n in range(20)]
    write_jsonl(folder / "rows.jsonl", rows)
    write_jsonl(folder / "pairs.jsonl", pairs)
    # With AdamW's usual eps a gradient that is rounding alone becomes a whole step, another one on another processor.
    each = {"learning_rate": 1e-3, "batch_size": 8, "eps": 1e-3}
    sft = {"kind": "sft", "model": "embedded", "data": str(folder / "rows.jsonl"), "max_steps": STEPS, "save_every": 2}
    dpo = {"kind": "dpo", "model": "stage:sft", "data": str(folder / "pairs.jsonl"), "max_steps": 3}
    recipe = {"name": "run", "seed": 3, "device": "cpu", "stages": {"sft": sft | each, "dpo": dpo | each, **stages}}
    (folder / "recipe.yaml").write_text(json.dumps(recipe))
    return folder / "recipe.yaml"


def start(recipe: Path, output: Path, *, ranks: int) -> subprocess.Popen[str]:
    rendezvous = ["-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--master-port", str(free_port())]
    launcher = rendezvous if ranks > 1 else []
    command = [sys.executable, *launcher, "-m", "rlhf", "run", str(recipe), f"output_dir={output}"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=dict(os.environ))


def finished(process: subprocess.Popen[str]) -> tuple[int, str]:
    output, _ = process.communicate(timeout=600)
    return process.returncode, output


def metrics_of(run: Path) -> dict[tuple[str, int], dict[str, float]]:
    """(stage, step) -> what was logged of it."""
    events = map(json.loads, (run / "events.jsonl").read_text().splitlines())
    return {(event["stage"], event["step"]): event["metrics"] for event in events if event["event"] == "metrics"}


@pytest.mark.slow
def test_a_recipe_over_ranks_is_that_of_one_process_and_survives_a_signal(tmp_path):
    recipe = write_recipe(tmp_path)
    code, output = finished(start(recipe, tmp_path / "one", ranks=1))
    assert code == 0, output
    process = start(recipe, tmp_path / "two", ranks=2)
    run = tmp_path / "two" / "run"
    while not list((run / "sft").glob("checkpoint-*")) and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    code, output = finished(process)
    assert code != 0
    assert output.count("all of it is saved") == 1, output  # only rank 0 prints
    code, output = finished(start(recipe, tmp_path / "two", ranks=2))
    assert code == 0, output
    assert "resumed from step" in output
    mine, theirs = metrics_of(tmp_path / "one" / "run"), metrics_of(run)
    assert (
        mine.keys() == theirs.keys() == {*(("sft", n + 1) for n in range(STEPS)), *(("dpo", n + 1) for n in range(3))}
    )
    for step, metrics in mine.items():
        if step == ("dpo", 1):  # policy and reference are one: margins are rounding, whose signs are counted
            assert abs(metrics["dpo/reward_margin"]) < 1e-5
            del metrics["dpo/accuracy"], theirs[step]["dpo/accuracy"]
        assert theirs[step] == pytest.approx(metrics, rel=1e-3, abs=1e-5)
    written, other = (
        sorted(p.name for p in (folder / "dpo" / "model").iterdir()) for folder in (tmp_path / "one" / "run", run)
    )
    assert written == other


@pytest.mark.slow
def test_policies_that_sample_learn_over_ranks_as_in_one_process(tmp_path):
    stages = {kind: online(tmp_path, kind) for kind in ("ppo", "grpo")}
    recipe = write_recipe(tmp_path, **stages)
    for ranks, output in ((1, tmp_path / "one"), (2, tmp_path / "two")):
        code, printed = finished(start(recipe, output, ranks=ranks))
        assert code == 0, printed
    for stage in stages:
        mine, theirs = (rollouts_of(folder / "run" / stage) for folder in (tmp_path / "one", tmp_path / "two"))
        assert len(mine) == len(theirs) == 2 * 8, "rank 0 writes every completion once"
        first = [row for row in mine if row["step"] == 1]
        assert [(row["prompt_id"], row["sample"], row["completion_ids"], row["score"]) for row in first] == [
            (row["prompt_id"], row["sample"], row["completion_ids"], row["score"]) for row in theirs if row["step"] == 1
        ]
        assert (tmp_path / "two" / "run" / stage / "model").is_dir()
    assert sorted(metrics_of(tmp_path / "one" / "run")) == sorted(metrics_of(tmp_path / "two" / "run"))


@pytest.mark.slow
def test_a_reward_that_fails_on_one_rank_ends_all_with_its_message(tmp_path):
    (tmp_path / "rows_of_rank.py").write_text(
        "import os\n"
        "def reward(prompts, completions):\n"
        "    if os.environ['RANK'] == '1':\n"
        "        raise ValueError('the verifier is out of paper')\n"
        "    return [float(len(text)) for text in completions]\n"
    )
    grpo = online(tmp_path, "grpo") | {"reward": f"{tmp_path}/rows_of_rank.py:reward"}
    began = time.monotonic()
    code, output = finished(start(write_recipe(tmp_path, grpo=grpo), tmp_path / "two", ranks=2))
    assert code != 0
    assert "out of paper" in output, output
    assert time.monotonic() - began < 300


def online(folder: Path, kind: str) -> dict[str, Any]:
    """A stage that learns from completions, by their lengths."""
    (folder / "length.py").write_text(
        "def reward(prompts, completions):\n    return [float(len(text)) for text in completions]\n"
    )
    return {
        "kind": kind,
        "model": "stage:sft",
        "prompts": str(folder / "rows.jsonl"),
        "reward": f"{folder}/length.py:reward",
        "rollouts": 2,
        "prompts_per_rollout": 4 if kind == "grpo" else 8,
        "minibatch_size": 4,
        "sampling": {"max_new_tokens": 8},
        **({"group_size": 2} if kind == "grpo" else {}),
    }


def rollouts_of(stage: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (stage / "rollouts.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_what_ranks_cannot_do_is_refused_before_anything_is_written(tmp_path):
    trpo = online(tmp_path, "trpo")
    grpo = online(tmp_path, "grpo") | {"async_rollouts": {"max_staleness": 1}}
    recipe = write_recipe(tmp_path, trpo=trpo, grpo=grpo)
    code, output = finished(start(recipe, tmp_path / "two", ranks=2))
    assert code != 0
    assert output.count("stages.trpo: kind: trpo") == 1, output
    assert output.count("stages.grpo: async_rollouts") == 1, output
    assert not (tmp_path / "two").exists()


@pytest.mark.slow
def test_a_recipe_starts_its_ranks_itself_and_ends_as_they_do(tmp_path):
    recipe, launch = write_recipe(tmp_path), tmp_path / "launch.yaml"
    launch.write_text("launcher: torchrun\nprocesses: 2\n")

    def run(*more: str) -> tuple[int, str]:
        command = [
            sys.executable,
            "-m",
            "rlhf",
            "run",
            str(recipe),
            "--launch",
            str(launch),
            f"output_dir={tmp_path}",
            *more,
        ]
        return finished(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))

    code, output = run("--until", "sft")
    assert code == 0, output
    assert len(metrics_of(tmp_path / "run")) == STEPS
    assert json.loads((tmp_path / "run" / "manifest.json").read_text())["launch"] == {
        "launcher": "torchrun",
        "processes": 2,
    }
    code, output = run("stages.dpo.compiled=true")
    assert code == 2, output
    assert output.count("compiled") == 1, "one error, of rank 0 or before any rank was started"
