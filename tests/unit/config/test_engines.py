"""Who samples: what a recipe may say, and what of it decides a result."""

from __future__ import annotations

import pytest

from rlhf.config.engines import ENGINE_KINDS, LocalEngineConfig, VLLMEngineConfig, engines_of
from rlhf.config.grpo_settings import GRPOConfig
from rlhf.config.methods.grpo import GRPOStage
from rlhf.config.recipe import RecipeConfig
from rlhf.config.training import FREE_TO_CHANGE
from rlhf.errors import ConfigError
from rlhf.pipeline.code_hash import code_of_stage
from rlhf.pipeline.validate.own_code import check_own_code, name_problem
from rlhf.pipeline.validate.review import Review


def test_a_word_stands_for_an_engine_with_defaults():
    assert GRPOConfig().engine == LocalEngineConfig()
    assert GRPOConfig.of({"engine": "local"}).engine == LocalEngineConfig()
    assert GRPOConfig.of({"engine": "vllm"}).engine == VLLMEngineConfig()
    with pytest.raises(ConfigError, match="engine"):
        GRPOConfig.of({"engine": "sglang"})


@pytest.mark.parametrize("settings", [{"weights": "int8"}, {"speculate": "prompt_lookup"}, {"compiled": True}, {}])
def test_settings_without_a_kind_are_those_of_the_local_engine(settings):
    stage = GRPOConfig.of({"engine": settings})
    assert stage.engine == LocalEngineConfig(**settings)
    assert stage == GRPOConfig.of({"engine": {"kind": "local", **settings}})


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        (
            {"python": "/opt/vllm/bin/python", "weights": "int8"},
            r"engine: python is a setting of `vllm`, and no kind is named; add `kind: vllm`, or leave it out",
        ),
        ({"max_model_len": 512}, r"engine: max_model_len is a setting of `vllm`"),
        ({"weigths": "int8"}, r"engine\.weigths: unknown key\. Did you mean 'weights'\?"),
        ({"weights": "int7"}, r"engine\.weights: .*'int7'"),
    ],
)
def test_settings_without_a_kind_that_the_local_engine_has_not_are_named(settings, wanted):
    with pytest.raises(ConfigError, match=wanted) as caught:
        GRPOConfig.of({"engine": settings})
    assert "this key is required" not in str(caught.value)


@pytest.mark.parametrize(
    ("sampling", "wanted"),
    [
        ({"top_p": 0.9}, "sampling.top_p is 0.9, but vLLM reports one log-probability for a token"),
        ({"min_p": 0.1}, "leave min_p out, or take `engine: local`"),
        ({"temperature": 0.005}, "sampling.temperature is 0.005, and vLLM samples at 0.01 at least"),
    ],
)
def test_a_way_of_sampling_that_vllm_can_not_account_for_is_refused_when_the_recipe_is_read(sampling, wanted):
    with pytest.raises(ConfigError, match=wanted):
        GRPOConfig.of({"engine": "vllm", "sampling": sampling})
    assert GRPOConfig.of({"engine": "local", "sampling": sampling})


def test_two_ways_of_sampling_elsewhere_exclude_each_other():
    with pytest.raises(ConfigError, match=r"async_rollouts.*`vllm`"):
        GRPOConfig.of({"engine": "vllm", "async_rollouts": {"max_staleness": 1}})


def test_where_vllm_lives_decides_nothing_and_what_it_computes_in_does():
    def identity(**engine):
        return GRPOConfig.of({"engine": {"kind": "vllm", **engine}}).model_dump(mode="json", exclude=FREE_TO_CHANGE)

    before = identity()
    assert (
        identity(python="/opt/vllm/bin/python", timeout_seconds=5, mismatch={"stop_at": None}, kv_cache_gib=4) == before
    )
    assert identity(dtype="bfloat16") != before
    assert identity(options={"quantization": "fp8"}) != before
    assert GRPOConfig().model_dump(mode="json", exclude=FREE_TO_CHANGE) != before
    assert "save_every" not in before


def test_every_engine_is_declared_whole_and_only_the_chosen_one_is_in_a_stages_code():
    for kind in ENGINE_KINDS:
        assert name_problem(kind.builds.removeprefix("rlhf.")) is None
        assert kind.free_to_change <= kind.model_fields.keys()
        assert "mismatch" in kind.model_fields
    stage = {"kind": "grpo", "model": "m", "prompts": "p.jsonl", "reward": "rules"}
    local, vllm = (GRPOStage.of({**stage, "engine": engine}) for engine in ("local", "vllm"))
    assert list(engines_of(local)) == ["engine"]
    assert "rollout/vllm.py" in code_of_stage("grpo", vllm)
    assert "rollout/vllm.py" not in code_of_stage("grpo", local)
    assert "rollout/local.py" in code_of_stage("grpo", local)


def test_an_engine_whose_builder_is_missing_is_told_with_its_key(monkeypatch):
    monkeypatch.setattr(LocalEngineConfig, "builds", "rlhf.rollout.local:build_locl")
    review = Review(
        RecipeConfig.of(
            {"name": "r", "stages": {"rl": {"kind": "grpo", "model": "m", "prompts": "p.jsonl", "reward": "rules"}}}
        )
    )
    check_own_code(review)
    (problem,) = review.problems
    assert (problem.stage, problem.key, problem.level) == ("rl", "engine", "error")
