"""The arithmetic of each loop, held against what the loops do."""

from __future__ import annotations

import math

import pytest

from rlhf.config.recipe import RecipeConfig
from rlhf.scale.work import asks_policy_again, not_foreseen, offline_work, online_work, steps_of_run
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


ONE_STEP = {"minibatch_size": 12, "epochs_per_rollout": 1}


@pytest.mark.parametrize(
    ("settings", "again"),
    [
        ({}, False),
        ({"autocast": "bfloat16"}, True),
        ({"autocast": "bfloat16", **ONE_STEP}, False),
        ({"autocast": "bfloat16", **ONE_STEP, "kl": {"where": "reward", "estimator": "k1"}}, True),
        ({"engine": {"kind": "local", "weights": "bfloat16"}}, True),
    ],
)
def test_a_rollout_is_scored_again_exactly_where_the_trainer_does_so(settings, again):
    stage = stage_of("grpo", **settings)
    assert asks_policy_again(stage) == again
    spent = told_by(toy.build_trainer("grpo", **settings)).spent
    every_rollout = spent["reference"].tokens
    assert (spent["scoring"].tokens == every_rollout) == again  # else only the first rollout is, to compare
    work = online_work(stage, tokens=9.0, reward_models=[])
    assert [one.whose for one in work.read if one.activity == "scoring"] == ["policy"] * again
    assert [one.whose for one in work.once if one.activity == "scoring"] == ["policy"] * (not again)


@pytest.mark.parametrize(("measure_every", "asked"), [(1, 4), (2, 2), (None, 1)])
def test_a_reference_without_weight_is_asked_as_often_as_it_is_measured(measure_every, asked):
    settings = {"rollouts": 4, "kl": {"where": "none", "measure_every": measure_every}}
    stage = stage_of("grpo", **settings)
    assert told_by(toy.build_trainer("grpo", **settings)).spent["reference"].count == asked
    work = online_work(stage, tokens=9.0, reward_models=[])
    planned = sum(one.times for one in work.read if one.activity == "reference") * stage.rollouts
    planned += sum(one.times for one in work.once if one.activity == "reference")
    assert planned == asked


def test_an_exact_kl_in_the_loss_asks_the_reference_while_the_policy_learns():
    work = online_work(stage_of("grpo", kl={"where": "loss", "estimator": "exact"}), tokens=12.0, reward_models=[])
    [beside] = [one for one in work.read if one.activity == "forward"]
    assert (beside.whose, beside.tokens * beside.times) == ("reference", 12.0 * 2)  # two epochs


def test_what_can_not_be_foreseen_is_said():
    plain = list(not_foreseen(stage_of("grpo", reward="length")))
    assert any("keep their assumed lengths" in sentence for sentence in plain)
    assert not any("async_rollouts" in sentence for sentence in plain)
    more = list(not_foreseen(stage_of("grpo", async_rollouts={"max_staleness": 1})))
    assert plain == list(not_foreseen(stage_of("grpo", reward="length", async_rollouts={"max_staleness": 0})))
    assert any("sampling in a separate process (async_rollouts)" in sentence for sentence in more)


def test_a_step_of_tokens_holds_as_many_rows_as_fit():
    stage = stage_of("sft", batch_tokens=600, max_steps=None, epochs=2)
    work = offline_work(stage, tokens_per_row=30.0, num_rows=1000)
    assert work.learned[0].tokens == pytest.approx(600)
    assert steps_of_run(stage, 1000, 30.0) == 2 * math.ceil(1000 / 20)


def test_rows_that_nobody_counted_leave_the_length_of_the_run_open():
    assert steps_of_run(stage_of("sft", max_steps=None, epochs=1), None, 30.0) is None
