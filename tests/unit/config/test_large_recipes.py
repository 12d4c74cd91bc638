from __future__ import annotations

from pathlib import Path

import pytest

from rlhf.config.presets import preset
from rlhf.config.recipe import RecipeConfig, load_recipe
from rlhf.config.yaml_text import read_yaml
from rlhf.pipeline.run import Pipeline
from rlhf.pipeline.validate import validate_file

LARGE = Path(__file__).resolve().parents[3] / "recipes" / "large"
SIZES = ("7b", "70b")
FEWER = {
    "world": {"num_documents": 0, "vocab_size": None},
    "sft": {"max_steps": 2, "epochs": None},
    "preferences": {"num_pairs": 40},
    "reward": {"max_steps": 2, "epochs": None},
    "ppo": {"rollouts": 1, "prompts_per_rollout": 4, "minibatch_size": 4, "sampling": {"max_new_tokens": 8}},
}


@pytest.mark.parametrize("size", SIZES)
def test_a_recipe_of_a_large_model_has_the_settings_of_the_preset_of_its_size(size):
    recipe, wanted = load_recipe(LARGE / f"ppo_{size}.yaml"), preset(size)
    files = {"data", "prompts", "model"}
    for name in ("sft", "reward", "ppo"):
        ours, theirs = (dict(each.stages[name]) for each in (recipe, wanted))
        own = {key for key in theirs if ours[key] != theirs[key]} - files - {"seed"}
        assert not own, f"{name}: {own}"
        assert ours["model"].updated(path="x") == theirs["model"].updated(path="x")


@pytest.mark.parametrize("size", SIZES)
def test_it_is_valid_without_its_model(size, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")  # validate only says then that the hub must have it, and asks nobody
    assert validate_file(LARGE / f"ppo_{size}.yaml", []).exit_code == 0


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
def test_it_runs_on_a_small_model(size, tmp_path):
    tree = read_yaml(LARGE / f"ppo_{size}.yaml")
    for stage in tree["stages"].values():
        stage |= {key: value for key, value in FEWER[stage["kind"]].items() if value is not None}
        for key in [key for key, value in FEWER[stage["kind"]].items() if value is None]:
            stage.pop(key, None)
    tree["stages"]["sft"]["model"]["path"] = "embedded"
    recipe = RecipeConfig.of({**tree, "output_dir": str(tmp_path), "threads": 1}, source="test")
    Pipeline(recipe).run()
    assert (tmp_path / recipe.name / "ppo" / "artifact.json").is_file()
