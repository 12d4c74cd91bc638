from __future__ import annotations

from rlhf.config.recipe import RecipeConfig
from rlhf.scale.plan import plan_recipe
from tests.unit.scale.test_plan import REWARD, SFT


def plan_of(tmp_path, **engine):
    grpo = {
        "kind": "grpo", "model": "stage:sft", "prompts": "stage:world/prompts.jsonl", "reward": "stage:reward", "rollouts": 4,
        "prompts_per_rollout": 8, "group_size": 2, "minibatch_size": 4, "engine": {"kind": "local", **engine},
    }  # fmt: skip
    stages = {"world": {"kind": "world"}, "sft": SFT, "reward": REWARD, "grpo": grpo}
    recipe = RecipeConfig.of({"name": "it", "output_dir": str(tmp_path), "stages": stages}, source="test")
    [plan] = plan_recipe(recipe, gpu_name="H100", only="grpo").stages
    return plan


def test_a_copy_of_the_weights_is_counted_by_its_precision(tmp_path):
    same, half, eighth = (plan_of(tmp_path, weights=w).memory for w in ("same", "bfloat16", "int8"))
    assert "weights for sampling" not in same
    assert half["weights for sampling"] == 2 * eighth["weights for sampling"] > 0
    # the embedded model: 2 bytes for each of its weights but the embeddings', which are looked up
    assert half["weights for sampling"] <= same["weights"] / 2
