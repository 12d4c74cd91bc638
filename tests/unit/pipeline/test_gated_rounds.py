"""recipes/gated_rounds.yaml, smaller: a good round, a round on swapped columns, a good round."""

from __future__ import annotations

import pytest

from rlhf.config.recipe import RecipeConfig
from rlhf.config.yaml_text import read_yaml
from rlhf.evaluation.gates.gate_file import read_evidence, replay
from rlhf.pipeline.run import Pipeline
from rlhf.registry.registry import Registry
from tests.fixtures.source import ROOT

SMALLER = {
    "sft": {"max_steps": 60},
    "preferences": {"num_pairs": 320, "num_test_pairs": 20},
    "dpo": {"epochs": 1, "learning_rate": 6e-4},
    "gate": {"limit": 150},
}


@pytest.mark.slow
def test_bad_data_in_round_two_is_caught_and_rolled_back(tmp_path):
    tree = read_yaml(ROOT / "recipes" / "gated_rounds.yaml")
    for stage in tree["stages"].values():
        stage.update(SMALLER.get(stage["kind"], {}))
        if stage["kind"] == "gate":
            stage["registry"] = str(tmp_path / "registry")
            stage["require"] = [{**each, "value": 0.4} if "value" in each else each for each in stage["require"]]
    Pipeline(RecipeConfig.of({**tree, "output_dir": str(tmp_path / "runs")})).run()
    registry, run = Registry(tmp_path / "registry"), tmp_path / "runs" / "gated_rounds"
    assert [(event.action, event.version) for event in registry.history()] == [
        ("promote", 1),
        ("refuse", 1),
        ("promote", 2),
    ]
    lineage = [version.lineage["stage"] for version in registry.versions()]
    assert lineage == ["dpo_1", "dpo_3"]
    for name in ("gate_1", "gate_2", "gate_3"):
        document = read_evidence(run / name / "gate.json")
        assert replay(document).decision == document["decision"]
    assert "win_rate" in registry.history()[1].reason
