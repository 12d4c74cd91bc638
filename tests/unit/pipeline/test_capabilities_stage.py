"""The stage that asks suites before and after: its file, its summary, and suites that training data holds."""

from __future__ import annotations

import json

import pytest

from rlhf.config.capabilities import CapabilitiesStage
from rlhf.config.recipe import RecipeConfig
from rlhf.errors import ConfigError
from rlhf.models.policy import PolicyModel
from rlhf.pipeline.run import Pipeline
from rlhf.pipeline.stages.capabilities import run_capabilities
from rlhf.pipeline.stages.context import StageContext
from rlhf.training.log import TrainingLogger
from tests.fixtures import tiny

ASKED = "What does the brown cow eat on the green hill in the morning?"
ITEMS = [
    {"id": "cow", "prompt": ASKED, "answer": "grass"},
    {"id": "dog", "prompt": "Where do dogs sleep?", "answer": "here"},
]
SUITE = {"name": "farm", "scorer": "exact", "sampling": {"temperature": 0, "max_new_tokens": 4}, "items": ITEMS}


@pytest.fixture(scope="module")
def model(tmp_path_factory, tiny_tokenizer):
    policy = PolicyModel(tiny.build_llama(vocab_size=len(tiny_tokenizer)), tiny_tokenizer)
    folder = tmp_path_factory.mktemp("models") / "policy"
    policy.save_pretrained(folder)
    return folder


def test_the_file_holds_each_suite_paired_and_the_decision(model, tmp_path):
    at = StageContext("capabilities", tmp_path, TrainingLogger())
    at.folder.mkdir()
    stage = CapabilitiesStage.of(
        {"kind": "capabilities", "policy": str(model), "baseline": str(model), "suites": [SUITE]}
    )
    outcome = run_capabilities(stage, at)
    document = json.loads((at.folder / "capabilities.json").read_text())
    assert document["decision"] == outcome.metrics["decision"] == "undecided"
    assert document["suites"]["farm"]["per_unit"].keys() == {"cow", "dog"}
    assert outcome.metrics["farm_gain"] == 0.0
    assert "farm" in outcome.headline


def test_a_suite_that_was_trained_on_is_named(model, tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text(
        "".join(
            json.dumps({"prompt": p, "completion": "grass"}) + "\n" for p in ("Who?", ASKED.upper(), "When?", "Why?")
        )
    )
    recipe = RecipeConfig.of(
        {
            "name": "r",
            "output_dir": str(tmp_path / "runs"),
            "stages": {
                "sft": {"kind": "sft", "model": str(model), "data": str(rows), "max_steps": 1, "batch_size": 2},
                "test": {"kind": "capabilities", "policy": "stage:sft", "baseline": str(model), "suites": [SUITE]},
            },
        }
    )
    pipeline = Pipeline(recipe)
    pipeline.run()
    contamination = json.loads((tmp_path / "runs" / "r" / "test" / "capabilities.json").read_text())["contamination"]
    assert contamination["suites"]["farm"]["num_items"] == 1
    assert contamination["suites"]["farm"]["items"][0]["item"] == "cow"
    assert "stage sft, row 2" in contamination["suites"]["farm"]["items"][0]["place"]
    assert any(str(model) in each for each in contamination["unread"]), "what no run recorded is said"
    assert contamination["too_short"] == {"farm": ["dog"]}
    assert any("dog" in each for each in contamination["unread"]), "what was not looked for is said"


def test_an_unknown_suite_is_refused_with_the_known_ones(model, tmp_path):
    at = StageContext("capabilities", tmp_path, TrainingLogger())
    at.folder.mkdir()
    stage = CapabilitiesStage.of(
        {"kind": "capabilities", "policy": str(model), "baseline": str(model), "suites": "generl"}
    )
    with pytest.raises(ConfigError, match="general"):
        run_capabilities(stage, at)
