"""DeepSpeed's JSON file next to a recipe: filled in where it says auto, refused where it says something else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rlhf.config.deepspeed import deepspeed_settings
from rlhf.config.rank_limits import refused_of_stage
from rlhf.config.sft import SFTConfig
from rlhf.config.stages import BY_KIND
from rlhf.errors import ConfigError

ZERO: dict[str, Any] = {"stage": 2, "reduce_bucket_size": "auto", "offload_optimizer": {"device": "cpu"}}
CONFIG = SFTConfig(learning_rate=1e-4, batch_size=8, max_grad_norm=0.5)


def settings(folder: Path, **tree: Any) -> dict[str, Any]:
    path = folder / "ds_config.json"
    path.write_text(json.dumps({"zero_optimization": ZERO, **tree}))
    return deepspeed_settings(str(path), CONFIG)


def test_auto_is_filled_in_from_the_recipe(tmp_path):
    common = {
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
        "optimizer": {
            "type": "AdamW",
            "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"},
        },
        "scheduler": {"type": "auto"},
        "bf16": {"enabled": "auto"},
        "steps_per_print": 100,
    }
    found = settings(tmp_path, **common)
    assert found["gradient_clipping"] == 0.5
    assert found["steps_per_print"] == 100
    assert found["zero_optimization"] == {"stage": 2, "offload_optimizer": {"device": "cpu"}}
    assert "auto" not in json.dumps(found)
    assert found.keys().isdisjoint({"optimizer", "scheduler", "bf16"})


def test_what_the_recipe_says_too_may_be_there(tmp_path):
    assert settings(tmp_path, train_batch_size=8, gradient_clipping=0.5, optimizer={"params": {"lr": 1e-4}})


@pytest.mark.parametrize(
    ("tree", "named"),
    [
        ({"train_batch_size": 16}, ["train_batch_size"]),
        ({"gradient_clipping": 1.0}, ["max_grad_norm"]),
        ({"train_micro_batch_size_per_gpu": 4}, ["microbatch_tokens"]),
        ({"optimizer": {"type": "Lion"}}, ["optimizer.type"]),
        ({"optimizer": {"type": "Adam", "params": {"lr": 1e-3, "momentum": 0.9}}}, ["params.lr", "params.momentum"]),
        ({"scheduler": {"type": "WarmupLR"}}, ["schedule"]),
        ({"fp16": {"enabled": True}, "bf16": {"enabled": True}}, ["fp16.enabled", "bf16.enabled"]),
        ({"zero_optimization": {"stage": 0}}, ["zero_optimization.stage"]),
    ],
)
def test_contradictions_are_one_error_that_names_each(tree, named, tmp_path):
    with pytest.raises(ConfigError) as caught:
        settings(tmp_path, **tree)
    assert all(name in str(caught.value) for name in named)


@pytest.mark.parametrize("text", ["", "{", "[]"])
def test_a_file_that_is_none_is_named(text, tmp_path):
    path = tmp_path / "ds_config.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"ds_config\.json"):
        deepspeed_settings(str(path), CONFIG)
    with pytest.raises(ConfigError, match=r"missing\.json"):
        deepspeed_settings(str(tmp_path / "missing.json"), CONFIG)


def test_what_deepspeed_cannot_do_is_named():
    stage = {"kind": "sft", "model": "embedded", "data": "rows.jsonl", "deepspeed": "ds_config.json"}
    assert refused_of_stage(BY_KIND["sft"].of(stage)) == []
    for key, value in {"ema_decay": 0.9, "l2_coef": 0.1, "lr_find": "use", "fsdp": {"replicate": 2}}.items():
        (refused,) = refused_of_stage(BY_KIND["sft"].of({**stage, key: value}))
        assert key in refused
    ppo = {"kind": "ppo", "model": "embedded", "prompts": "rows.jsonl", "reward": "length.py:reward"}
    assert "a critic with deepspeed" in refused_of_stage(BY_KIND["ppo"].of({**ppo, "deepspeed": "ds_config.json"}))
