"""Contexts, a compressor and the comparison as stages of a recipe."""

from __future__ import annotations

import json

import pytest

from rlhf.config.recipe import RecipeConfig
from rlhf.errors import ConfigError, DataError, ModelError
from rlhf.models.context_compressor import ContextCompressor
from rlhf.models.policy import PolicyModel
from rlhf.pipeline.run import Pipeline

pytestmark = pytest.mark.usefixtures("plots_are_drawn")


def recipe_of(tmp_path, **changes):
    stages = {
        "contexts": {"kind": "contexts", "num_claims": 3, "num_rows": 16, "num_test_rows": 4},
        "compressor": {
            "kind": "compressor", "model": "embedded", "data": "stage:contexts/contexts.jsonl", "num_vectors": 2,
            "lora": {"rank": 2}, "max_steps": 2, "batch_size": 4, "eval_data": "stage:contexts/test_contexts.jsonl",
        },
        "compare": {
            "kind": "context_compare", "policy": "embedded", "data": "stage:contexts/test_contexts.jsonl",
            "compressors": ["stage:compressor/compressor"], "num_vectors": [1, 2, 4], "extractive_tokens": [8],
            "max_new_tokens": 6,
        },
    }  # fmt: skip
    for name, change in changes.items():
        stages[name] |= change
    return RecipeConfig.of({"name": "short", "output_dir": str(tmp_path), "threads": 1, "stages": stages})


def test_a_recipe_leaves_a_compressor_numbers_answers_and_a_section(tmp_path):
    outcome = Pipeline(recipe_of(tmp_path)).run()
    folder = tmp_path / "short"
    part = json.loads((folder / "compare" / "evaluation.json").read_text())["contexts"]
    ways = {way["title"]: way for way in part["ways"]}
    assert list(ways) == ["whole context", "no context", "extractive 8", "vectors 1", "vectors 2"]
    assert ways["whole context"]["difference"]["value"] == 0
    assert ways["whole context"]["saved_frac"] == 0
    assert ways["no context"]["context_tokens"] == 0
    assert 0 < ways["extractive 8"]["context_tokens"] <= 8
    assert (ways["vectors 1"]["context_tokens"], ways["vectors 2"]["context_tokens"]) == (1, 2)
    assert [way["for_question"] for way in part["ways"]] == [False, False, True, False, False]
    answers = [json.loads(line) for line in (folder / "compare" / "answers.jsonl").read_text().splitlines()]
    assert [row["answers"].keys() == ways.keys() for row in answers] == [True] * 4
    right = sum(row["answers"]["whole context"].strip() == row["completion"].strip() for row in answers)
    assert ways["whole context"]["accuracy"]["value"] == right / 4
    assert ContextCompressor.from_pretrained(folder / "compressor" / "compressor").num_vectors == 2
    assert "extractive 8" in (folder / "report.html").read_text()
    assert outcome is not None
    events = (folder / "events.jsonl").read_text()
    assert "eval/full_loss" in events


def test_a_compressor_of_another_model_is_refused(tmp_path):
    Pipeline(recipe_of(tmp_path)).run(until="compressor")
    other = PolicyModel.from_pretrained("embedded")
    other.model.get_input_embeddings().weight.data[5] += 1
    other.save_pretrained(tmp_path / "other")
    with pytest.raises(ModelError, match="weights"):
        Pipeline(recipe_of(tmp_path, compare={"policy": str(tmp_path / "other")})).run()


def test_a_question_without_context_is_named(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a", "completion": "b"}\n')
    stages = {"compare": {"kind": "context_compare", "policy": "embedded", "data": str(tmp_path / "rows.jsonl")}}
    recipe = RecipeConfig.of({"name": "short", "output_dir": str(tmp_path), "stages": stages})
    with pytest.raises(DataError, match=r"rows\.jsonl:1"):
        Pipeline(recipe).run()


def test_a_stream_and_more_claims_than_facts_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="streaming"):
        recipe_of(tmp_path, compressor={"streaming": True})
    with pytest.raises(ConfigError, match="num_claims"):
        recipe_of(tmp_path, contexts={"num_claims": 105})
