from __future__ import annotations

import pytest

import rlhf
from rlhf.config.presets import PRESETS, preset
from rlhf.config.recipe import RecipeConfig
from rlhf.errors import UnknownNameError

# The table at the top of rlhf/config/presets.py: smallest and largest value.
GUIDANCE = {
    "1b": {"learning_rate": (5e-6, 1e-5), "prompts_per_rollout": (128, 256), "minibatch_size": (16, 32),
           "epochs_per_rollout": (4, 8), "kl": (0.05, 0.2), "clip": (0.2, 0.2), "entropy_coef": (0.01, 0.01)},
    "7b": {"learning_rate": (1e-6, 5e-6), "prompts_per_rollout": (64, 128), "minibatch_size": (8, 16),
           "epochs_per_rollout": (2, 4), "kl": (0.1, 0.3), "clip": (0.2, 0.2), "entropy_coef": (0.01, 0.01)},
    "70b": {"learning_rate": (5e-7, 1e-6), "prompts_per_rollout": (32, 64), "minibatch_size": (4, 8),
            "epochs_per_rollout": (1, 2), "kl": (0.2, 0.5), "clip": (0.1, 0.2), "entropy_coef": (0, 0)},
}  # fmt: skip


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_a_whole_recipe(name):
    recipe = preset(name)
    assert [stage.kind for stage in recipe.stages.values()] == ["sft", "reward", "ppo"]
    assert RecipeConfig.of(recipe.model_dump(mode="json")) == recipe


@pytest.mark.parametrize("name", GUIDANCE)
def test_a_preset_follows_the_guidance_for_its_size(name):
    ppo = preset(name).stages["ppo"]
    values = {**dict(ppo), "kl": ppo.kl.coef, "clip": ppo.clip_high}
    for setting, (low, high) in GUIDANCE[name].items():
        assert low <= values[setting] <= high, f"{setting} is {values[setting]}, the guidance says {low} to {high}"
    assert (ppo.clip_low, ppo.gae_lambda, ppo.value_coef, ppo.group_size) == (ppo.clip_high, 0.95, 0.5, 1)


def test_large_models_get_adapters_and_the_small_world_all_weights():
    assert [preset(name).stages["sft"].model.lora is not None for name in ("embedded", "1b", "7b", "70b")] == [
        False, False, True, True,
    ]  # fmt: skip


def test_a_preset_can_be_changed_and_an_unknown_one_is_answered_with_the_nearest():
    assert preset("7b", ["stages.sft.model.path=my/model"]).stages["sft"].model.path == "my/model"
    with pytest.raises(UnknownNameError, match=r"'70'.*'70b'"):
        preset("70")


def test_the_functions_of_the_package_give_the_presets():
    assert rlhf.get_7b_model_config() == preset("7b")
    assert rlhf.get_70b_model_config(name="big", seed=3).name == "big"
    assert rlhf.get_70b_model_config(seed=3).stages["ppo"].seed == 3
