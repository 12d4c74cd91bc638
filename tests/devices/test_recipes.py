"""A recipe whose every model is on a GPU: what one stage leaves, the next one loads there."""

from __future__ import annotations

import json

import pytest

from rlhf.config.recipe import RecipeConfig
from rlhf.models.device import describe_device
from rlhf.pipeline.run import Pipeline

SAMPLING = {"max_new_tokens": 6}
SHORT = {"max_steps": 1, "epochs": None, "limit": 12}
ASKED = {"prompts": "stage:world/prompts.jsonl", "limit": 4, "sampling": SAMPLING}
ONLINE = {**ASKED, "rollouts": 1, "prompts_per_rollout": 2, "minibatch_size": 2}


def stages():
    return {
        "world": {"kind": "world"},
        "sft": {
            "kind": "sft", "model": {"path": "embedded", "gradient_checkpointing": True}, "data": "stage:world/sft.jsonl", **SHORT,
            "ewc": {"data": "stage:world/sft.jsonl", "coef": 1.0, "rows": 2},
        },
        "preferences": {
            "kind": "preferences", "model": "stage:sft", "prompts": "stage:world/prompts.jsonl", "num_pairs": 6,
            "sampling": SAMPLING,
        },
        "reward": {
            "kind": "reward", "model": "stage:sft", "data": "stage:preferences/pairs.jsonl", "eval_frac": 0.3, "num_models": 2,
            **SHORT,
        },
        "dpo": {
            "kind": "dpo", "model": {"path": "stage:sft", "lora": {"rank": 2}}, "data": "stage:preferences/pairs.jsonl", **SHORT,
        },
        "ppo": {
            "kind": "ppo", "model": "stage:sft", "reward": "stage:reward", "value_init": "reward", **ONLINE,
        },
        "grpo": {
            "kind": "grpo", "model": "stage:dpo", "reference": "stage:sft", **ONLINE, "group_size": 2,
            "reward": {"kind": "ensemble", "sources": ["stage:reward", "stage:reward"]},
        },
        "distill": {"kind": "distill", "model": "stage:sft", "teacher": "embedded", **ONLINE},
        "best": {"kind": "best_of_n", "model": "stage:ppo", "reward": "stage:reward", "num_samples": 2, **ASKED},
        "evaluate": {
            "kind": "evaluate", "policy": "stage:grpo", "baseline": "stage:sft", "reward_model": "stage:reward",
            "judge": "stage:reward", "pairs": "stage:preferences/pairs.jsonl", **ASKED,
        },
    }  # fmt: skip


@pytest.mark.slow
def test_a_recipe_runs_to_its_end_with_every_model_on_a_gpu(tmp_path, gpu):
    tree = {"name": "run", "output_dir": str(tmp_path), "threads": 1, "stages": stages()}
    with gpu() as device:
        Pipeline(RecipeConfig.of(tree)).run()
        where = describe_device(device)
    told = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert {artifact["device"] for artifact in told["artifacts"].values()} == {where}
    assert set(told["artifacts"]) == set(stages())
