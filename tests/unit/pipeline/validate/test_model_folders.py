"""Model folders that are damaged, incomplete or not there."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from rlhf.config.recipe import RecipeConfig
from rlhf.errors import ModelError
from rlhf.pipeline.validate import validate_recipe
from tests.fixtures import tiny
from tests.unit.pipeline.validate.helpers import (
    changed,
    only_problem,
    problems_of,
)


@pytest.mark.parametrize("deep", [False, True])
def test_a_weight_file_that_was_cut_short_is_found_by_its_header(tree, own_model, deep):
    weights = own_model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    problem = only_problem(changed(tree, "sft", model=str(own_model)), deep=deep)
    assert (problem.key, problem.kind) == ("model", ModelError)
    assert str(weights) in problem.message
    assert "opy or download" in problem.message


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize(("dtype", "called"), [(torch.int8, "I8"), (torch.float8_e4m3fn, "F8_E4M3")])
def test_quantized_weights_are_found_by_their_header(tree, own_model, dtype, called, deep):
    weights = load_file(own_model / "model.safetensors")
    name = min(weights)
    save_file({**weights, name: weights[name].to(dtype)}, own_model / "model.safetensors", metadata={"format": "pt"})
    problem = only_problem(changed(tree, "sft", model=str(own_model)), deep=deep)
    assert (problem.key, problem.kind) == ("model", ModelError)
    assert all(word in problem.message for word in (str(own_model / "model.safetensors"), name, called))


def test_a_folder_without_weights_or_with_pickles_only_is_told_apart(tree, own_model):
    (own_model / "model.safetensors").unlink()
    assert "holds no weights" in only_problem(changed(tree, "sft", model=str(own_model))).message
    (own_model / "pytorch_model.bin").write_bytes(b"")
    assert "pytorch_model.bin, a pickle" in only_problem(changed(tree, "sft", model=str(own_model))).message
    assert problems_of(changed(tree, "sft", model={"path": str(own_model), "allow_pickle": True}), deep=False) == []


def test_a_missing_shard_is_named(tree, own_model):
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (own_model / "model.safetensors").rename(own_model / "model-00001-of-00002.safetensors")
    (own_model / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    problem = only_problem(changed(tree, "sft", model=str(own_model)))
    assert "lacks the shard model-00002-of-00002.safetensors" in problem.message


def test_a_folder_without_config_or_tokenizer_is_told(tree, own_model):
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (own_model / name).unlink()
    assert "holds no tokenizer" in only_problem(changed(tree, "sft", model=str(own_model))).message
    (own_model / "config.json").unlink()
    messages = [problem.message for problem in problems_of(changed(tree, "sft", model=str(own_model)), deep=False)]
    assert any("is not a model folder: it has no config.json" in message for message in messages)


def test_a_tokenizer_with_more_tokens_than_the_model_has_is_told(tree, tmp_path, tiny_tokenizer):
    small = tmp_path / "small"
    tiny.build_llama(vocab_size=len(tiny_tokenizer) - 5).save_pretrained(small)
    problem = only_problem(changed(tree, "sft", model={"path": str(small), "tokenizer": "model"}), deep=True)
    assert problem.kind is ModelError
    assert f"tokens up to number {len(tiny_tokenizer) - 1}" in problem.message
    assert f"only {len(tiny_tokenizer) - 5} embeddings" in problem.message


def test_a_tokenizer_without_an_end_is_told(tree, own_model):
    for name in ("config.json", "generation_config.json"):
        path = own_model / name
        path.write_text(json.dumps({**json.loads(path.read_text()), "eos_token_id": None}), encoding="utf-8")
    path = own_model / "tokenizer_config.json"
    settings = {key: value for key, value in json.loads(path.read_text()).items() if key != "eos_token"}
    path.write_text(json.dumps(settings), encoding="utf-8")
    problems = problems_of(changed(tree, "sft", model=str(own_model)))
    assert {problem.key for problem in problems} <= {"model", "policy", "baseline"}
    assert "set `eos_token` in tokenizer_config.json" in problems[0].message
    (own_model / "generation_config.json").unlink()
    config = json.loads((own_model / "config.json").read_text())
    del config["eos_token_id"]  # now transformers fills in Llama's
    (own_model / "config.json").write_text(json.dumps(config), encoding="utf-8")
    problem = only_problem(changed(tree, "sft", model=str(own_model)), deep=True)
    assert (problem.key, problem.level) == ("model", "warning")
    assert "(number 2), transformers' default for llama" in problem.message


def test_a_hub_name_is_not_checked_and_said_so(tree, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    review = validate_recipe(RecipeConfig.of(changed(tree, "sft", model="someone/no-such-model")), deep=False)
    (problem,) = review.problems
    assert (problem.level, problem.key) == ("warning", "model")
    assert "was not checked" in problem.message
    assert "model someone/no-such-model of the hub" in review.unchecked
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert only_problem(changed(tree, "sft", model="someone/no-such-model")).level == "error"


@pytest.mark.parametrize("offline", ["0", "1"])
def test_the_embedded_model_misspelled_is_told_what_is_near(tree, monkeypatch, offline):
    monkeypatch.setenv("HF_HUB_OFFLINE", offline)
    problem = only_problem(changed(tree, "sft", model="embeded"))
    assert problem.key == "model"
    assert "Did you mean 'embedded'?" in problem.message
