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
    each = {"learning_rate": 1e-3, "batch_size": 8}
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
    for step, metrics in mine.items():  # not the weights: AdamW takes whole steps on gradients that are rounding alone
        assert theirs[step] == pytest.approx(metrics, rel=1e-3, abs=1e-5)
    written, other = (
        sorted(p.name for p in (folder / "dpo" / "model").iterdir()) for folder in (tmp_path / "one" / "run", run)
    )
    assert written == other


@pytest.mark.slow
def test_what_ranks_cannot_do_is_refused_before_anything_is_written(tmp_path):
    (tmp_path / "length.py").write_text(
        "def reward(prompts, completions):\n    return [float(len(text)) for text in completions]\n"
    )
    grpo = {
        "kind": "grpo",
        "model": "stage:sft",
        "prompts": str(tmp_path / "rows.jsonl"),
        "reward": f"{tmp_path}/length.py:reward",
    }
    recipe = write_recipe(tmp_path, grpo=grpo)
    code, output = finished(start(recipe, tmp_path / "two", ranks=2))
    assert code != 0
    assert output.count("stages.grpo: kind: grpo") == 1, output
    assert not (tmp_path / "two").exists()
