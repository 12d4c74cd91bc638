"""Every kind of mistake a user can make in a recipe, and the line that answers it."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from rlhf.config.error_messages import A_REWARD
from rlhf.config.grpo_settings import GRPOConfig
from rlhf.config.kl import KLConfig
from rlhf.config.policy import PPOConfig
from rlhf.config.preference import DPOConfig
from rlhf.config.recipe import RecipeConfig
from rlhf.config.reward_model import RewardModelConfig
from rlhf.config.schema import stage_classes
from rlhf.errors import ConfigError

RECIPE: dict[str, Any] = {
    "name": "mine",
    "stages": {
        "sft": {"kind": "sft", "model": "base", "data": "sft.jsonl"},
        "reward": {"kind": "reward", "model": "stage:sft", "data": "pairs.jsonl"},
        "ppo": {"kind": "ppo", "model": "stage:sft", "prompts": "prompts.jsonl", "reward": "stage:reward"},
    },
}


KINDS = ", ".join(sorted(stage_classes()))


def with_values(**values: Any) -> dict[str, Any]:
    """The recipe with some values at dotted places (``__`` for the dot)."""
    tree = copy.deepcopy(RECIPE)
    for place, value in values.items():
        *parents, leaf = place.split("__")
        node = tree
        for key in parents:
            node = node[key]
        node[leaf] = value
    return tree


def complaints_about(tree: dict[str, Any]) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        RecipeConfig.of(tree, source="run.yaml")
    first, *lines = str(caught.value).splitlines()
    assert first == "run.yaml is not valid:"
    return [line.strip() for line in lines]


def test_the_recipe_itself_is_fine():
    assert list(RecipeConfig.of(RECIPE).stages) == ["sft", "reward", "ppo"]


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"stagez": {}}, "stagez: unknown key. Did you mean 'stages'?"),
        ({"stages__ppo__klx": 1}, "stages.ppo.klx: unknown key. Did you mean 'kl'?"),
        ({"stages__ppo__kl": {"coff": 1}}, "stages.ppo.kl.coff: unknown key. Did you mean 'coef'?"),
        # a key that is also the stage's kind, and the name of the stage
        ({"stages__reward__reward": 1}, "stages.reward.reward: unknown key. Did you mean 'head'?"),
        ({"stages__ppo__max_steps": 9}, "stages.ppo.max_steps: unknown key."),
        (
            {"stages__ppo__model": {"path": "x", "lora": {"rnk": 8}}},
            "stages.ppo.model.lora.rnk: unknown key. Did you mean 'rank'?",
        ),
        (
            {"stages__ppo__reward": [{"kind": "rules", "target_wrds": 3}, "rules"]},
            "stages.ppo.reward.0.target_wrds: unknown key. Did you mean 'target_words'?",
        ),
        (
            {"stages__ppo__kind": "ipo"},
            "stages.ppo.kind: unknown kind 'ipo'. The method 'ipo' is `kind: dpo, loss: ipo`. Known: " + KINDS + ".",
        ),
        (
            {"stages__ppo__kind": "Dr.GRPO"},
            "stages.ppo.kind: unknown kind 'Dr.GRPO'. The method 'dr_grpo' is `kind: dr_grpo`. Known: " + KINDS + ".",
        ),
        (
            {"stages__ppo__kind": "Reward-Model"},
            "stages.ppo.kind: unknown kind 'Reward-Model'. Did you mean 'reward'? Known: " + KINDS + ".",
        ),
        (
            {"stages__ppo__reward": {"kind": "ensemble", "sources": ["a"]}},
            "stages.ppo.reward.sources: should have at least 2 items, and has 1",
        ),
        (
            {"stages__ppo__reward": None},
            f"stages.ppo.reward: this key is required; give {A_REWARD}.",
        ),
        ({"stages__sft__data": 3}, "stages.sft.data: should be a valid string or should be a valid list (got 3)"),
        ({"stages__sft__data": ["a", 3]}, "stages.sft.data.1: should be a valid string (got 3)"),
        ({"stages__sft__model": ["a"]}, "stages.sft.model: should hold keys and values (got a list)"),
        ({"stages__sft": 3}, "stages.sft: should hold keys and values (got 3)"),
        ({"stages": None}, "stages: should hold keys and values (got None)"),
        ({"stages__ppo__clip_low": -0.5}, "stages.ppo.clip_low: should be greater than or equal to 0 (got -0.5)"),
        ({"stages__ppo__learning_rate": 0}, "stages.ppo.learning_rate: should be greater than 0 (got 0)"),
        (
            {"stages__ppo__learning_rate": float("inf")},
            "stages.ppo.learning_rate: should be a finite number (got inf)",
        ),
        ({"stages__sft__betas": [0.9, 1.0]}, "stages.sft.betas.1: should be less than 1 (got 1.0)"),
        (
            {"stages__sft__batch_size": "many"},
            "stages.sft.batch_size: should be a valid integer, unable to parse string as an integer (got 'many')",
        ),
        (
            {"stages__sft__schedule": "cosin"},
            "stages.sft.schedule: should be 'cosine', 'linear' or 'constant' (got 'cosin')",
        ),
        (
            {"stages__sft__kind": "sftt"},
            f"stages.sft.kind: unknown kind 'sftt'. Did you mean 'sft'? Known: {', '.join(sorted(stage_classes()))}.",
        ),
        (
            {"stages__ppo__reward": {"kind": "learnd"}},
            "stages.ppo.reward.kind: unknown kind 'learnd'. Did you mean 'learned'? Known: ",
        ),
        ({"stages__sft": {"model": "m"}}, "stages.sft.kind: missing `kind`, which says what the section is."),
        (
            {"stages__sft": {"kind": "sft", "model": "m"}},
            "stages.sft.data: this key is required.",
        ),
        ({"name": "a/b"}, "name: a name holds letters, digits, '.', '_' and '-' and starts with a letter or digit"),
    ],
)
def test_a_mistake_is_named_by_the_place_where_the_user_made_it(values, line):
    (actual,) = complaints_about(with_values(**values))
    assert actual.startswith(line)


def test_all_mistakes_are_told_at_once():
    tree = with_values(
        seed=-1,
        stages__sft__dota="x",
        stages__reward__heads=1,
        stages__ppo__kl={"coef": -1},
        stages__ppo__sampling={"top_p": 2, "temprature": 1},
    )
    del tree["name"]
    places = [line.partition(":")[0] for line in complaints_about(tree)]
    assert sorted(places) == [
        "name",
        "seed",
        "stages.ppo.kl.coef",
        "stages.ppo.sampling.temprature",
        "stages.ppo.sampling.top_p",
        "stages.reward.heads",
        "stages.sft.dota",
    ]


def test_a_key_of_another_kind_of_stage_is_not_suggested():
    (line,) = complaints_about(with_values(stages__sft__rollout=3))
    assert "rollouts" not in line


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (lambda: PPOConfig(clip_hihg=0.3), "clip_hihg: unknown key. Did you mean 'clip_high'"),
        (lambda: PPOConfig(kl={"coef": -1}), "kl.coef: should be greater than or equal to 0 (got -1)"),
        (
            lambda: PPOConfig(kl=KLConfig(coef=1)).updated(gae_lambda=2),
            "gae_lambda: should be less than or equal to 1 (got 2)",
        ),
        (lambda: KLConfig(where="loss"), "k1 pulls nowhere as a loss"),
        (lambda: GRPOConfig(minibatch_size=12), "minibatch_size (12) must be a multiple of group_size (8)"),
        (lambda: PPOConfig(sampling={"temperature": 0}), "sampling.temperature is 0"),
        (lambda: DPOConfig(loss="hinge", label_smoothing=0.1), "label_smoothing belongs to the loss `sigmoid`"),
        (lambda: DPOConfig(ipo_per_token=True), "ipo_per_token belongs to the loss `ipo`"),
        (lambda: DPOConfig(epochs=None), "give `epochs` or `max_steps`"),
    ],
)
def test_settings_made_in_python_are_answered_in_the_same_words(make, line):
    with pytest.raises(ConfigError) as caught:
        make()
    first, *lines = str(caught.value).splitlines()
    assert first.endswith("Config is not valid:")
    assert len(lines) == 1
    assert line in lines[0]


def test_settings_inside_settings_may_be_objects_or_mappings():
    assert PPOConfig(kl=KLConfig(coef=0.3)) == PPOConfig(kl={"coef": 0.3})


def test_settings_cannot_be_changed_in_place():
    config = PPOConfig()
    with pytest.raises(ValueError, match="frozen"):
        config.gamma = 0.5  # type: ignore[misc]


def test_the_old_key_of_soft_labels_is_answered_with_the_new_one():
    with pytest.raises(ConfigError, match=r"use_confidence.*use_label_probability"):
        RewardModelConfig.of({"use_confidence": True})
