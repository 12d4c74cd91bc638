"""DeepSpeed's ZeRO at two ranks is FSDP2: weights, checkpoints, left-out steps, and the folder that a recipe leaves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.faults.test_ranks import finished, start, write_recipe
from tests.fixtures import deepspeed_over_ranks as cases
from tests.fixtures.two_ranks import free_port, run_over_ranks
from tests.invariants.test_ranks import furthest

pytest.importorskip("deepspeed", reason="needs the extra `deepspeed` (docs/ranks.md says how these tests are run)")
pytestmark = pytest.mark.slow


def over_two_ranks(work: Any, *args: Any, folder: Path) -> list[Any]:
    found = run_over_ranks(work, folder, *args, folder=folder)
    assert not any(isinstance(of_rank, BaseException) for of_rank in found), found
    return found


def test_each_stage_gives_the_weights_of_fsdp2(tmp_path):
    found, other = over_two_ranks(cases.everything, [1, 2, 3], list(cases.CASES), folder=tmp_path)
    for (case, stage), (weights, norms) in found.items():
        expected, expected_norms = found[case, None]
        assert furthest(expected, weights) < 1e-4, (case, stage)
        assert furthest(weights, other[case, stage][0]) == 0, "ranks hold different weights"
        assert norms == pytest.approx(expected_norms, rel=1e-4)


@pytest.mark.parametrize("stage", [1, 3])
def test_a_killed_run_goes_on_from_its_checkpoint_and_from_one_of_fsdp2(stage, tmp_path):
    found, _ = over_two_ranks(cases.resumed, stage, folder=tmp_path)
    uninterrupted = found["uninterrupted"]
    assert all(torch.equal(value, found["deepspeed"][name]) for name, value in uninterrupted.items())
    assert furthest(uninterrupted, found["from FSDP2"]) < 1e-4
    assert furthest(uninterrupted, found["to FSDP2"]) < 1e-4


@pytest.mark.parametrize("stage", [2, 3])
def test_a_step_that_is_not_finite_leaves_nothing_behind(stage, tmp_path):
    (weights, left_out), _ = over_two_ranks(cases.spoiled, stage, folder=tmp_path)
    expected, none_left_out = cases.spoiled(tmp_path, None)
    assert left_out == none_left_out == [2]
    assert furthest(expected, weights) < 1e-4


def test_the_launcher_runs_a_recipe_that_names_the_file(tmp_path):
    recipe = write_recipe(tmp_path)
    code, output = finished(start(recipe, tmp_path / "one", ranks=1))
    assert code == 0, output
    tree = json.loads(recipe.read_text()) | {"deepspeed": cases.settings_file(tmp_path, stage=2)}
    recipe.write_text(json.dumps(tree))
    run = [sys.executable, "-m", "deepspeed.launcher.runner", "--num_gpus=2", f"--master_port={free_port()}"]
    command = [*run, "--module", "rlhf", "run", str(recipe), f"output_dir={tmp_path / 'two'}"]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env={**os.environ, "PATH": path})
    assert done.returncode == 0, done.stdout + done.stderr
    for stage in ("sft", "dpo"):
        one, two = (tmp_path / run / "run" / stage / "model" for run in ("one", "two"))
        assert sorted(file.name for file in one.iterdir()) == sorted(file.name for file in two.iterdir())
        assert furthest(*(load_file(folder / "model.safetensors") for folder in (one, two))) < 1e-3
