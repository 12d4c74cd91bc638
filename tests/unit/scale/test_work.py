"""The arithmetic of each loop, held against what the loops do."""

from __future__ import annotations

import math

import pytest

from rlhf.config.recipe import RecipeConfig
from rlhf.scale.work import offline_work, online_work, steps_of_run
from rlhf.training.profile import profiled
from tests.fixtures import toy


def stage_of(kind, **settings):
    inputs = {"model": "embedded", "prompts": "p.jsonl", "reward": "length"} if kind in toy.SHORT and "rollouts" in toy.SHORT[kind] else {
        "model": "embedded", "data": "d.jsonl"
    }  # fmt: skip
    tree = {"name": "x", "stages": {"it": {"kind": kind, **inputs, **toy.SHORT[kind], **settings}}}
    return RecipeConfig.of(tree, source="test").stages["it"]


def told_by(trainer):
    with profiled(None) as profile:
        trainer.train()
    return profile


@pytest.mark.parametrize("kind", ["sft", "dpo", "reward"])
def test_an_offline_run_takes_the_steps_and_tokens_that_are_planned(kind):
    stage = stage_of(kind)
    rows = toy.rows(10) if kind == "sft" else toy.pairs(10)
    mean = sum(row.num_tokens for row in rows) / len(rows)
    profile = told_by(toy.build_trainer(kind))
    steps = steps_of_run(stage, len(rows), mean)
    assert profile.steps == steps
    planned = offline_work(stage, tokens_per_row=mean, num_rows=len(rows))
    [learned] = planned.learned
    assert learned.times * learned.tokens * steps == pytest.approx(profile.spent["backward"].tokens, rel=0.25)
    asked = sum(one.tokens for one in planned.once)
    assert asked == pytest.approx(profile.spent["reference"].tokens if kind == "dpo" else 0)


@pytest.mark.parametrize("kind", ["ppo", "grpo"])
def test_a_policy_run_takes_the_steps_and_passes_that_are_planned(kind):
    stage = stage_of(kind)
    profile = told_by(toy.build_trainer(kind))
    assert profile.steps == steps_of_run(stage, None, 1)
    tokens = profile.spent["reference"].tokens / stage.rollouts
    work = online_work(stage, tokens=tokens, reward_models=[("reward 1", "scalar")])
    of_policy = work.learned[0]
    assert of_policy.tokens * of_policy.times * stage.rollouts == pytest.approx(profile.spent["backward"].tokens)
    assert len(work.learned) == (2 if kind == "ppo" else 1)
    read = {(one.activity, one.whose) for one in work.read}
    assert ("reward", "reward 1") in read
    assert (("scoring", "critic") in read) == (kind == "ppo")


def test_old_log_probabilities_are_asked_for_again_only_where_sampling_is_not_exact():
    exact, half = stage_of("grpo"), stage_of("grpo", autocast="bfloat16")
    asks = [
        any(
            (one.activity, one.whose) == ("scoring", "policy")
            for one in online_work(stage, tokens=9.0, reward_models=[]).read
        )
        for stage in (exact, half)
    ]
    assert asks == [False, True]


def test_a_step_of_tokens_holds_as_many_rows_as_fit():
    stage = stage_of("sft", tokens_per_step=600, max_steps=None, epochs=2)
    work = offline_work(stage, tokens_per_row=30.0, num_rows=1000)
    assert work.learned[0].tokens == pytest.approx(600)
    assert steps_of_run(stage, 1000, 30.0) == 2 * math.ceil(1000 / 20)


def test_rows_that_nobody_counted_leave_the_length_of_the_run_open():
    assert steps_of_run(stage_of("sft", max_steps=None, epochs=1), None, 30.0) is None
