from __future__ import annotations

from typing import Any

import pytest
import torch

from rlhf.config.recipe import RecipeConfig
from rlhf.pipeline.doctor import probes
from rlhf.pipeline.validate.resources import _uses_gpu, memory_needed
from rlhf.pipeline.validate.review import Review

PAIRS = {"model": "embedded", "data": "pairs.jsonl"}
LORA = {"path": "embedded", "lora": {"rank": 4}}


def models_in_memory(**stage: Any) -> float:
    """Bytes that a stage needs, in weights of the embedded model; training one takes four: gradient and two averages."""
    recipe = RecipeConfig.of(
        {"name": "mine", "stages": {"one": stage, "sft": {"kind": "sft", **PAIRS, "max_steps": 1}}}
    )
    review = Review(recipe)
    needed, trained = memory_needed(review, recipe.stages["one"]), memory_needed(review, recipe.stages["sft"])
    assert needed is not None
    assert trained is not None
    return 4 * needed / trained


@pytest.mark.parametrize(
    ("stage", "weights"),
    [
        ({"kind": "dpo", **PAIRS}, 4),
        ({"kind": "dpo", **PAIRS, "reference": "embedded"}, 5),
        ({"kind": "simpo", **PAIRS}, 4),
        ({"kind": "kto", **PAIRS}, 5),
        ({"kind": "kto", **PAIRS, "reference_point": "running"}, 4),
        ({"kind": "kto", **PAIRS, "loss": "bco"}, 4),
        ({"kind": "kto", **PAIRS, "model": LORA}, 1),
        ({"kind": "kto", **PAIRS, "model": LORA, "reference": "embedded"}, 2),
    ],
    ids=str,
)
def test_a_second_model_is_counted_where_there_is_one(stage, weights):
    assert models_in_memory(**stage) == pytest.approx(weights)


@pytest.mark.parametrize(("on_gpu", "weights"), [(True, 5), (False, 7)])
def test_models_that_wait_on_the_cpu_are_counted_one_at_a_time_where_there_is_a_gpu(monkeypatch, on_gpu, weights):
    monkeypatch.setattr("rlhf.pipeline.validate.resources._uses_gpu", lambda review: on_gpu)
    stage = {"kind": "grpo", "model": "embedded", "prompts": "prompts.jsonl", "reward": ["embedded", "embedded"]}
    assert models_in_memory(**stage, offload=["reference", "reward"]) == pytest.approx(weights)


@pytest.mark.parametrize("seen", [False, True])
def test_torch_is_asked_about_a_gpu_only_where_the_system_shows_one(monkeypatch, seen):
    asked = []
    monkeypatch.setattr(probes, "may_have_gpu", lambda: seen)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: asked.append(1) or True)
    recipe = RecipeConfig.of({"name": "mine", "stages": {"sft": {"kind": "sft", **PAIRS}}})
    assert _uses_gpu(Review(recipe, deep=True)) == seen
    assert bool(asked) == seen
    assert not _uses_gpu(Review(recipe.updated(device="cpu"), deep=True))
