"""Ranks over the nodes of a Ray cluster: the results of torchrun's ranks, and what becomes of them when something dies.

Both nodes are on this machine, each with a raylet and workers of its own.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from tests.faults.test_ranks import finished, online, rollouts_of, start, write_recipe
from tools.ray_drill_runs import MARK, marked
from tools.ray_nodes import RayNodes, ray_nodes

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="pip install ray"),
]
LOST_SECONDS = 60.0
"""For a run to end after a node was killed, on a busy machine."""


@pytest.fixture(scope="module")
def nodes():
    with ray_nodes(2, 2) as cluster:
        yield cluster


def over_nodes(
    cluster: RayNodes, recipe: Path, output: Path, *settings: str, mark: str = "", processes: int = 1
) -> subprocess.Popen[str]:
    command = [
        sys.executable, "-m", "rlhf", "run", str(recipe), f"output_dir={output}", f"launch.address={cluster.address}",
        "launch.launcher=ray", "launch.nodes=2", f"launch.processes_per_node={processes}", "launch.cpus_per_process=0.5", *settings,
    ]  # fmt: skip
    env = {**os.environ, **cluster.variables, MARK: mark}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env)


def files_of(stage: Path) -> dict[str, str]:
    """Hashes of what a stage wrote."""
    files: dict[str, str] = json.loads((stage / "artifact.json").read_text())["files"]
    return files


def wait_for_checkpoint(process: subprocess.Popen[str], stage: Path) -> None:
    while not list(stage.glob("checkpoint-*")) and process.poll() is None:
        time.sleep(0.05)
    assert process.poll() is None, process.communicate()[0]


def ends_within(mark: str, seconds: float) -> bool:
    """Whether no rank and no launcher of a run lives any more, which have its mark from their cluster."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not [title for _, title in marked(mark) if "-m rlhf" in title]:
            return True
        time.sleep(0.1)
    return False


def test_ranks_over_nodes_give_the_bits_of_torchruns_and_share_a_pool_of_engines(nodes, tmp_path, monkeypatch):
    for name, value in nodes.variables.items():
        monkeypatch.setenv(name, value)
    recipe = write_recipe(tmp_path, grpo=online(tmp_path, "grpo"))
    engines = ("launch.pools.engines.cpus=0.5",)
    torchrun = start(
        recipe, tmp_path / "torchrun", "launch.launcher=ray", f"launch.address={nodes.address}", *engines, ranks=2
    )
    code, printed = finished(torchrun)
    assert code == 0, printed
    code, printed = finished(over_nodes(nodes, recipe, tmp_path / "ray", *engines))
    assert code == 0, printed
    assert "[node" not in printed, "only rank 0 prints"
    assert printed.count("sft") >= 1
    mine, theirs = tmp_path / "ray" / "run", tmp_path / "torchrun" / "run"
    for stage in ("sft", "dpo", "grpo"):
        assert files_of(mine / stage) == files_of(theirs / stage), stage
    assert len(rollouts_of(mine / "grpo")) == 2 * 8, "rank 0 writes every completion once"


def test_a_reward_that_fails_on_another_node_ends_all_with_its_message(nodes, tmp_path):
    (tmp_path / "rows_of_rank.py").write_text(
        "import os\n"
        "def reward(prompts, completions):\n"
        "    if os.environ['RANK'] == '3':\n"
        "        raise ValueError('the verifier is out of paper')\n"
        "    return [float(len(text)) for text in completions]\n"
    )
    grpo = online(tmp_path, "grpo") | {"reward": f"{tmp_path}/rows_of_rank.py:reward", "model": "embedded"}
    recipe = write_recipe(tmp_path, grpo=grpo)
    tree = json.loads(recipe.read_text())
    recipe.write_text(json.dumps({**tree, "stages": {"grpo": tree["stages"]["grpo"]}}))
    code, printed = finished(over_nodes(nodes, recipe, tmp_path, processes=2))
    assert code not in (0, 75), printed
    assert "out of paper" in printed, printed


def test_a_request_to_stop_ends_all_ranks_with_a_checkpoint_and_the_same_command_goes_on(nodes, tmp_path):
    recipe = write_recipe(tmp_path)
    process = over_nodes(nodes, recipe, tmp_path, "--until", "sft", "stages.sft.max_steps=40")
    wait_for_checkpoint(process, tmp_path / "run" / "sft")
    process.send_signal(signal.SIGTERM)
    code, printed = finished(process)
    assert code == 75, printed
    assert printed.count("all of it is saved") == 1, printed
    code, printed = finished(over_nodes(nodes, recipe, tmp_path, "--until", "sft", "stages.sft.max_steps=40"))
    assert code == 0, printed
    assert "resumed from step" in printed


@pytest.mark.parametrize("what", ["node", "driver"])
def test_a_node_or_the_command_that_is_killed_ends_all_ranks_within_a_minute(what, tmp_path):
    mark = uuid.uuid4().hex
    with ray_nodes(2, 2, **{MARK: mark}) as cluster:
        process = over_nodes(cluster, write_recipe(tmp_path), tmp_path, "stages.sft.max_steps=100000", mark=mark)
        wait_for_checkpoint(process, tmp_path / "run" / "sft")
        began = time.monotonic()
        if what == "node":
            cluster.tell("kill 1")
            code, printed = finished(process)
            assert code == 6, printed
            assert "The node 1 (" in printed, printed
            assert "was lost" in printed, printed
        else:
            process.kill()
            process.communicate()
        assert ends_within(mark, LOST_SECONDS - (time.monotonic() - began))


def test_more_nodes_than_there_are_is_an_error_with_what_is_free(nodes, tmp_path):
    settings = ("launch.nodes=3", "launch.placement_timeout_seconds=3")
    code, printed = finished(over_nodes(nodes, write_recipe(tmp_path), tmp_path / "out", *settings))
    assert code == 2
    assert "ranks: 3 x (0.5 CPU)" in printed
    assert "each on a node of its own" in printed
    assert not (tmp_path / "out").exists()
