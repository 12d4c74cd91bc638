from __future__ import annotations

import pytest

from rlhf.config.model import ModelConfig
from rlhf.config.recipe import RecipeConfig
from rlhf.scale.machine import Machine
from rlhf.scale.shape import shape_of
from rlhf.scale.strategy import recommend

GIB = 1 << 30


def machine(gib, *, is_gpu=True):
    return Machine(
        name="it", is_gpu=is_gpu, memory_bytes=int(gib * GIB), matmul_flops={"float32": 1e13},
        copy_bytes_per_second=1e11, source="test",
    )  # fmt: skip


def shape():
    """A billion weights: 4 GB each of weights and gradients, 8 of averages."""
    init = {
        "model_type": "llama", "vocab_size": 32000, "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 22,
        "num_attention_heads": 32, "num_key_value_heads": 4,
    }  # fmt: skip
    return shape_of(ModelConfig.of({"init": init, "tokenizer": "x"}))


def stage(**settings):
    tree = {"name": "x", "stages": {"it": {"kind": "sft", "model": "embedded", "data": "x.jsonl", **settings}}}
    return RecipeConfig.of(tree, source="test").stages["it"]


PARTS = {"weights": 4.0 * GIB, "gradients": 4.0 * GIB, "optimizer": 8.0 * GIB, "activations": 8.0 * GIB}


@pytest.mark.parametrize(
    ("gib", "name"),
    [
        (40, "single"),  # 24 of 40
        (26, "checkpointing"),  # 24 of 26; recomputed 16.7, below 0.7 * 26
        (12, "lora"),  # nothing is spread on a machine without GPUs
        (9.2, "qlora"),
        (2, "none"),
    ],
)
def test_the_first_that_fits_is_recommended(gib, name):
    assert recommend(stage(), shape(), PARTS, machine(gib, is_gpu=False)).name == name


@pytest.mark.parametrize(
    ("gib", "optimizer", "name"),
    [
        (18, 12.0, "zero-1"),  # of 21, 9 stay whole: 12 on 4 GPUs leave 12 of 18
        (20, 8.0, "zero-2"),  # of 24, 12 stay
        (16, 8.0, "zero-3 (FSDP)"),  # 8 stay
    ],
)
def test_on_gpus_what_is_spread_grows_with_the_need(gib, optimizer, name):
    parts = PARTS | {"optimizer": optimizer * GIB, "activations": (8.0 if optimizer == 8.0 else 1.0) * GIB}
    sharded = recommend(stage(), shape(), parts, machine(gib))
    assert sharded.name == name
    assert "GPUs" in sharded.why


def test_settings_that_are_recommended_are_settings_of_the_stage():
    for gib in (26, 12, 9.2):
        sharded = recommend(stage(), shape(), PARTS, machine(gib, is_gpu=False))
        assert sharded.settings
        for setting in sharded.settings:
            key = setting.split("=")[0].split(".")
            assert key[0] in type(stage()).model_fields
            assert len(key) == 1 or key[1] in ModelConfig.model_fields


def test_a_stage_that_recomputes_already_is_not_told_to():
    already = stage(model={"path": "embedded", "gradient_checkpointing": True})
    assert recommend(already, shape(), PARTS, machine(26, is_gpu=False)).name == "single, tight"
