"""FSDP2's settings: once for a recipe, or for each stage."""

from __future__ import annotations

import pytest

from rlhf.config.recipe import RecipeConfig
from rlhf.errors import ConfigError

SFT = {"kind": "sft", "model": "embedded", "data": "rows.jsonl"}


def recipe(stages, **settings):
    return RecipeConfig.of({"name": "run", "stages": stages, **settings})


def test_a_recipe_says_it_once_for_the_stages_that_train():
    own = SFT | {"fsdp": {"replicate": 4}}
    stages = recipe({"world": {"kind": "world"}, "one": SFT, "two": own}, fsdp={"replicate": 2}).stages
    assert (stages["one"].fsdp.replicate, stages["two"].fsdp.replicate) == (2, 4)


def test_a_wrong_setting_is_complained_about_where_it_stands():
    with pytest.raises(ConfigError, match=r"fsdp\.replicas") as caught:
        recipe({"one": SFT, "two": SFT}, fsdp={"replicas": 2})
    assert "stages" not in str(caught.value).split("is not valid")[-1]
