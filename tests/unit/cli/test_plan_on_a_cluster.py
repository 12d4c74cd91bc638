from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rlhf.cli import app
from rlhf.config.recipe import load_recipe
from rlhf.scale.gpus import TABLE
from rlhf.scale.links import LINKS, OF_GPUS

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "planning-clusters.md").read_text(encoding="utf-8")
RECIPE = str(ROOT / "recipes" / "quickstart.yaml")


def run(*arguments):
    return CliRunner().invoke(app, ["plan", *map(str, arguments)])


def test_the_file_of_the_page_is_planned_with_its_price(tmp_path):
    file = tmp_path / "cluster.yaml"
    file.write_text(re.search(r"```yaml\n(accelerator:.*?)```", PAGE, re.DOTALL).group(1))
    result = run(RECIPE, "--cluster", file, "--stage", "ppo")
    assert result.exit_code == 0, result.output
    assert "4x8xH100" in result.output
    assert "25.0 GB/s a GPU between nodes" in result.output
    assert "USD" in result.output
    assert result.output.count("pipeline") > 3


def test_what_a_plan_says_to_type_is_taken_by_the_recipe():
    """A policy of 70 billion on two nodes: engines of several GPUs, and the ranks that torchrun starts."""
    recipe = str(ROOT / "recipes" / "large" / "ppo_70b.yaml")
    result = run(recipe, "--cluster", "2x8xH100", "--stage", "ppo")
    said = dict(re.findall(r"^  (settings|start) +(.*)$", result.output, re.MULTILINE))
    assert "--nnodes 2 --nproc-per-node 8" in said["start"]
    settings = said["settings"].split()
    loaded = load_recipe(recipe, overrides=settings)
    assert loaded.launch.pools.engines.gpus == loaded.stages["ppo"].engine.options["tensor_parallel_size"] > 1
    assert 0 < float(loaded.stages["ppo"].engine.options["gpu_memory_utilization"]) < 1


def test_machines_get_every_layout_as_json():
    result = run(RECIPE, "--cluster", "2xL4", "--json", "--stage", "ppo")
    assert result.exit_code == 0, result.output
    document = json.loads(result.output)
    [stage] = document["stages"]
    assert document["cluster"]["name"] == "2xL4"
    assert stage["verdict"] == "fits"
    assert stage["cheapest"]["seconds_per_step"] == pytest.approx(sum(stage["cheapest"]["seconds"].values()))
    assert {"layout", "memory", "needs", "settings"} <= set(stage["cheapest"])
    assert stage["pipelines"][0]["result"]["kind"] == "synchronous"


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("--cluster", "8xH100", "--gpu", "H100"), "--gpu"),
        (("--rollouts", "rollouts.jsonl"), "--cluster"),
        (("--cluster", "8xH100", "--rollouts", "absent.jsonl"), "absent.jsonl"),
        (("--cluster", "8xH10O"), "H100"),
    ],
)
def test_what_does_not_go_together_or_is_not_there_is_refused(arguments, word):
    result = run(RECIPE, *arguments)
    assert result.exit_code != 0
    assert word in str(result.exception) + result.output


def test_the_tables_of_the_page_are_those_of_the_code():
    rows = [
        [cell.strip() for cell in line.strip("|\n ").split("|")] for line in PAGE.splitlines() if line.startswith("| ")
    ]
    accelerators = {row[0]: row[1:8] for row in rows if row[0] in TABLE and len(row) > 8}
    assert set(accelerators) == set(TABLE)
    for name, row in accelerators.items():
        known, links = TABLE[name], OF_GPUS[name]
        figures = [f"{known.gib:g}", f"{known.bfloat16:,g}", f"{known.float32:g}", f"{known.bandwidth:,g}"]
        assert row == [*figures, links.within_node, links.between_nodes or "-", links.host]
    speeds = {row[0]: row[1] for row in rows if row[0] in LINKS and len(row) == 3}
    assert speeds == {name: f"{link.gb_per_second:g}" for name, link in LINKS.items()}
