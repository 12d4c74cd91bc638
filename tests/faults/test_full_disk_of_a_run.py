"""The disk fills up while a run is at work, in each of its stages: one clear error, nothing made before is touched, and once there is
room the same command goes on to the same bits."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from rlhf.config.recipe import RecipeConfig
from rlhf.errors import StorageError
from rlhf.files import sha256
from rlhf.pipeline.artifacts import Artifact
from rlhf.pipeline.run import Pipeline
from tools.kill_proof import bits_of

SAMPLING = {"max_new_tokens": 12}
STAGES: dict[str, dict[str, Any]] = {
    "world": {"kind": "world"},
    "sft": {"kind": "sft", "model": "embedded", "data": "stage:world/sft.jsonl", "limit": 64, "max_steps": 2, "save_every": 1},
    "preferences": {
        "kind": "preferences", "model": "stage:sft", "prompts": "stage:world/prompts.jsonl", "num_pairs": 16,
        "sampling": SAMPLING,
    },
    "reward": {
        "kind": "reward", "model": "stage:sft", "data": "stage:preferences/pairs.jsonl", "max_steps": 2, "batch_size": 8,
        "save_every": 1,
    },
    "ppo": {
        "kind": "ppo", "model": "stage:sft", "prompts": "stage:world/prompts.jsonl",
        "reward": "stage:reward", "rollouts": 2,
        "prompts_per_rollout": 8, "minibatch_size": 8, "epochs_per_rollout": 1, "save_every": 1, "sampling": SAMPLING,
    },
    "evaluate": {
        "kind": "evaluate", "policy": "stage:ppo", "baseline": "stage:sft", "prompts": "stage:world/test_prompts.jsonl",
        "judge": "rlhf.evaluation.judges:world_judge", "limit": 8, "sampling": SAMPLING,
    },
}  # fmt: skip


def recipe_in(folder: Path) -> RecipeConfig:
    return RecipeConfig.of({"name": "run", "seed": 3, "output_dir": str(folder), "threads": 1, "stages": STAGES})


@pytest.fixture
def small_disk(tmp_path):
    """A real file system of 64 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if shutil.which("mount") is None:
        pytest.skip("there is no mount command to make a small file system with")
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(folder)], capture_output=True, text=True
    )
    if done.returncode != 0:
        pytest.skip(f"a small file system can't be mounted here ({done.stderr.strip()}); run as root")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def fill(disk: Path, *, leave: int) -> Path:
    """Take all but so many bytes."""
    ballast = disk / "ballast"
    with ballast.open("wb") as file:
        file.write(bytes(max(0, shutil.disk_usage(disk).free - leave)))
    return ballast


def made_so_far(run_dir: Path) -> dict[str, str]:
    """Every file that a finished stage recorded -> its hash on disk now."""
    files = {}
    for folder in sorted(path for path in run_dir.iterdir() if path.is_dir()):
        artifact = Artifact.read(folder)
        if artifact is not None:
            for name, digest in artifact.files.items():
                assert sha256(folder / name) == digest, f"{folder.name}/{name} is not what was recorded"
                files[f"{folder.name}/{name}"] = digest
    return files


def bits_of_all(run_dir: Path) -> dict[str, str | None]:
    """The same, without the times that a log of an evaluation has."""
    return {name: bits_of(run_dir / name, digest) for name, digest in made_so_far(run_dir).items()}


@pytest.mark.slow
def test_a_disk_that_is_full_in_any_stage_costs_that_stage_only(small_disk, tmp_path):
    run_dir = small_disk / "run"
    names = list(STAGES)
    for number, name in enumerate(names):
        before = made_so_far(run_dir) if run_dir.exists() else {}
        ballast = fill(small_disk, leave=16 * 1024)
        with pytest.raises(StorageError) as caught:
            Pipeline(recipe_in(small_disk)).run(until=name)
        message = str(caught.value)
        assert str(small_disk) in message, name
        assert "free" in message.lower(), name
        assert caught.value.exit_code == 9
        assert made_so_far(run_dir) == before if run_dir.exists() else not before, f"{name} cost what others had made"
        ballast.unlink()
        Pipeline(recipe_in(small_disk)).run(until=name)
        assert len({path.partition("/")[0] for path in made_so_far(run_dir)}) == number + 1
    Pipeline(recipe_in(small_disk)).run()
    Pipeline(recipe_in(tmp_path / "peace")).run()
    assert bits_of_all(run_dir) == bits_of_all(tmp_path / "peace" / "run"), "the same bits as on a disk with room"
    assert not list(run_dir.rglob(".*.tmp")), "nothing half-written is left behind"
