"""What training saw of the judge and the prompts that measure it, and how that is said."""

from __future__ import annotations

import pytest

from rlhf.config.recipe import RecipeConfig
from rlhf.pipeline.validate.independence import Seen, seen_by_training, seen_in_recipe

PAIRS = "pairs.jsonl"


def recipe_of(**evaluation):
    reward_model = {"kind": "learned", "source": "stage:reward"}
    return {
        "name": "seen",
        "stages": {
            "sft": {"kind": "sft", "model": "embedded", "data": "sft.jsonl"},
            "reward": {"kind": "reward", "model": "stage:sft", "data": PAIRS},
            "ppo": {
                "kind": "ppo", "model": "stage:sft", "prompts": PAIRS, "reward": [{**reward_model, "weight": 2.0}, "rules"],
            },
            "dpo": {"kind": "dpo", "model": "stage:ppo", "data": ["more.jsonl", PAIRS]},
            "evaluate": {
                "kind": "evaluate", "policy": "stage:ppo", "baseline": "stage:sft", "prompts": "new.jsonl", "judge": "mine.py:judge",
                **evaluation,
            },
        },
    }  # fmt: skip


def seen(**evaluation):
    recipe = RecipeConfig.of(recipe_of(**evaluation))
    return seen_by_training(recipe.stages, recipe.stages["evaluate"])


def test_an_independent_evaluation_has_nothing_to_confess():
    found = seen()
    assert found == Seen()
    assert found.warnings == []
    assert found.about_prompts == "prompts of a file that no stage learned from"
    assert found.about_judge == "which no policy was trained against"


@pytest.mark.parametrize(
    "judge", ["stage:reward", "rules", {"kind": "learned", "source": "stage:reward", "name": "other"}]
)
def test_a_judge_that_is_a_part_of_the_reward_is_told_whatever_its_weight_and_name(judge):
    found = seen(judge=judge)
    assert found.judge == ("ppo",)
    [warning] = found.warnings
    assert "The judge is the reward that stage ppo trained against" in warning
    assert "Judge by something that no stage has seen" in warning
    assert found.about_judge == "which is what stage ppo trained against"


def test_prompts_of_every_stage_behind_the_policy_are_told_by_name():
    found = seen(policy="stage:dpo", prompts=["new.jsonl", PAIRS])
    assert found.prompts == ("dpo", "ppo")
    [warning] = found.warnings
    assert "The prompts are those that stages dpo and ppo learned from" in warning
    assert "Hold prompts out" in warning
    assert found.about_prompts == "prompts that stages dpo and ppo learned from"


def test_a_reward_model_trained_on_the_pairs_that_the_policy_learned_from_is_no_independent_judge():
    found = seen(policy="stage:dpo", judge="stage:reward")
    assert (found.judge, found.judge_rows) == (("ppo",), ("dpo",))
    assert "shares their mistakes" in found.warnings[1]
    assert seen(judge="other/model").warnings == []


def test_a_written_recipe_says_the_same_and_half_of_one_says_nothing():
    written = recipe_of(judge="stage:reward")
    assert seen_in_recipe(written, "evaluate").judge == ("ppo",)
    assert seen_in_recipe(written, "ppo") is None
    assert seen_in_recipe({}, "evaluate") is None
    written["stages"]["ppo"]["of_another_version"] = 1
    assert seen_in_recipe(written, "evaluate") is None, "what the stage that can't be read trained on is not known"
