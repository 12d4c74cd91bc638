"""What a stage asks for that several ranks can't do."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rlhf.config.rank_limits import refused_in_one_process, refused_of_stage
from rlhf.config.recipe import RecipeConfig
from rlhf.config.stages import BY_KIND
from rlhf.distributed.ranks import Ranks
from rlhf.errors import ConfigError
from rlhf.pipeline.recipe_over_ranks import check_recipe, check_stages, not_started
from tests.fixtures import toy

SFT = {"model": "embedded", "data": "rows.jsonl"}
ONLINE = {"model": "embedded", "prompts": "rows.jsonl", "reward": "length.py:reward"}


def stage(kind: str, **settings: Any) -> Any:
    inputs = SFT if kind in ("sft", "dpo", "kto", "reward", "prm") else ONLINE
    return BY_KIND[kind].of({"kind": kind, **inputs, **settings})


@pytest.mark.parametrize(
    "kind", ["sft", "dpo", "kto", "reward", "prm", "ppo", "vapo", "grpo", "rloo", "online_dpo", "trpo"]
)
def test_most_kinds_train_over_ranks(kind):
    assert refused_of_stage(stage(kind)) == []


@pytest.mark.parametrize(
    ("kind", "settings", "refused"),
    [
        ("sft", {"compiled": True}, "compiled"),
        ("prm", {"lm_coef": 0.5}, "lm_coef"),
        ("grpo", {"async_rollouts": {"max_staleness": 2}}, "async_rollouts"),
        ("trpo", {"fsdp": {"vocab_parallel": True}}, "vocab_parallel"),
        ("grpo", {"fsdp": {"vocab_parallel": True}, "kl": {"estimator": "exact", "where": "loss"}}, "exact"),
        ("grpo", {"engine": "vllm", "environment": "game.py:Game"}, "environment"),
    ],
)
def test_what_is_refused_is_named(kind, settings, refused):
    (problem,) = refused_of_stage(stage(kind, **settings))
    assert refused in problem


def test_a_stage_that_trains_nothing_is_that_of_rank_0():
    world = BY_KIND["world"].of({"kind": "world"})
    assert refused_of_stage(world) == []


def test_deepspeed_is_for_ranks_and_one_process_says_so(tmp_path):
    asked = stage("sft", deepspeed="zero.json")
    assert "deepspeed is for several ranks" in (refused_in_one_process(asked) or "")
    assert refused_in_one_process(stage("sft")) is None
    recipe = RecipeConfig.of({"name": "run", "stages": {"sft": {"kind": "sft", **SFT, "deepspeed": "zero.json"}}})
    with pytest.raises(ConfigError, match=r"stages\.sft\.deepspeed"):
        check_stages(recipe, ["sft"], Ranks())
    with pytest.raises(ConfigError, match="deepspeed"):
        toy.build_trainer("sft", deepspeed=str(tmp_path / "zero.json")).train()


def test_over_ranks_only_engines_may_be_in_actors_and_not_with_an_environment(tmp_path):
    ranks = Ranks()
    ranks.size = 2
    grpo = {"kind": "grpo", **ONLINE, "learning_rate": 1e-4, "environment": "game.py:Game"}
    launch = {"launcher": "ray", "pools": {"engines": {}, "reference": {}}}
    tree = {"name": "run", "device": "cpu", "launch": launch, "stages": {"grpo": grpo}}
    with pytest.raises(ConfigError) as refused:
        check_recipe(RecipeConfig.of(tree), tmp_path, ranks, until=None)
    assert "launch.pools.reference" in str(refused.value)
    assert "launch.pools.engines" not in str(refused.value)
    assert "stages.grpo: an environment" in str(refused.value)
    del grpo["environment"], launch["pools"]["reference"]
    check_recipe(RecipeConfig.of(tree), tmp_path, ranks, until=None)


@pytest.mark.parametrize(
    ("launch", "size", "asked"),
    [
        ({"launcher": "ray", "nodes": 2, "processes_per_node": 4}, 1, "8 ranks"),
        ({"launcher": "torchrun", "processes": 2}, 1, "2 ranks"),
        ({"launcher": "torchrun", "processes": 2}, 4, None),
        ({"launcher": "ray"}, 1, None),
        ("local", 1, None),
    ],
)
def test_a_process_that_is_alone_where_ranks_are_asked_for_says_so(launch, size, asked):
    recipe = RecipeConfig.of({"name": "run", "launch": launch, "stages": {"a": {"kind": "sft", **SFT}}})
    said = not_started(recipe, SimpleNamespace(size=size))
    assert said is None if asked is None else asked in said
