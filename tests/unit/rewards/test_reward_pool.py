"""Rewards in actors give what they give in one process, also when actors are lost; the cluster is simulated in this process."""

from __future__ import annotations

import functools
import math
from pathlib import Path

import pytest

from rlhf.config.launch import RewardPoolConfig
from rlhf.config.rewards import REWARD_KINDS
from rlhf.data.contracts import Prompt
from rlhf.data.datasets import GRPODataset
from rlhf.errors import ConfigError, RewardError, TrainingError
from rlhf.models.reward import RewardModel
from rlhf.rewards.composite import CompositeReward
from rlhf.rewards.factory import build_reward
from rlhf.rewards.reward_pool import PooledReward, pooled_rewards, units_of
from rlhf.rewards.types import Abstaining, TextCompletion, ask_scorer
from tests.fixtures import toy
from tests.fixtures.actors import DIE, HANG, FakeCluster

FUNCTIONS = Path(__file__).parents[2] / "fixtures" / "pooled_functions.py"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("reward")
    RewardModel.from_policy(toy.build_policy(), num_models=2, seed=1).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def samples():
    texts = [f"Once upon {number // 3}" for number in range(30)]
    prompts = list(GRPODataset([{"prompt": text, "wanted": len(text)} for text in texts], toy.TOKENIZER))
    prompts = [Prompt(f"p{number // 3}", one.ids, one.text, one.columns) for number, one in enumerate(prompts)]
    return prompts, [TextCompletion(" the cow eats" * (1 + number % 5), sample=number % 3) for number in range(30)]


def pooled(specs, cluster=None, *, on_error="raise", **settings):
    settings = RewardPoolConfig(**{"replicas": 2, "completions_per_unit": 6, **settings})
    pool = functools.partial(pooled_rewards, cluster or FakeCluster(), settings)
    return build_reward(specs, tokenizer=toy.TOKENIZER, on_error=on_error, pool=pool)


def function(name, **changes):
    return {"kind": "function", "function": f"{FUNCTIONS}:{name}", **changes}


def test_units_are_whole_prompts():
    prompts = [Prompt(name, [1], name) for name in "aaabbbccd"]
    cut = [(unit.start, unit.stop) for unit in units_of(prompts, size=4)]
    assert cut == [(0, 3), (3, 6), (6, 9)]
    assert [(unit.start, unit.stop) for unit in units_of(prompts, size=1)] == [(0, 3), (3, 6), (6, 8), (8, 9)]
    assert [(unit.start, unit.stop) for unit in units_of(prompts, size=99)] == [(0, 9)]
    assert not list(units_of([], size=4))


def test_a_reward_models_scores_are_those_of_one_process(folder, samples):
    local = build_reward({"kind": "learned", "source": folder}, tokenizer=toy.TOKENIZER).score(*samples)
    cluster = FakeCluster()
    scorer = pooled({"kind": "learned", "source": folder}, cluster)
    result = scorer.score(*samples)
    assert isinstance(scorer, PooledReward)
    assert scorer.name == "learned"
    assert result.scores == pytest.approx(local.scores, rel=1e-5, abs=1e-6)
    assert result.per_component.keys() == local.per_component.keys() == {"learned", "learned_std"}
    assert {replica for replica, _, method, _ in cluster.asked if method == "score"} == {0, 1}


def test_one_unit_gives_the_bits_of_one_process(folder, samples):
    local = build_reward({"kind": "learned", "source": folder}, tokenizer=toy.TOKENIZER).score(*samples)
    assert pooled({"kind": "learned", "source": folder}, completions_per_unit=99).score(*samples) == local


def test_who_computes_a_unit_and_who_is_lost_or_hangs_changes_no_bit(folder, samples):
    spec = {"kind": "learned", "source": folder}

    def lost(fate):
        return FakeCluster(lambda replica, life, method, _: fate if method == "score" and life == 0 else None)

    peaceful = pooled(spec).score(*samples)
    assert pooled(spec, replicas=5).score(*samples) == peaceful
    assert pooled(spec, lost(DIE)).score(*samples) == peaceful
    assert pooled(spec, lost(HANG), timeout_seconds=0.2).score(*samples) == peaceful


def test_an_actor_that_is_lost_too_often_ends_the_run_with_the_cause(folder, samples):
    cluster = FakeCluster(lambda replica, life, method, arguments: DIE if method == "score" else None)
    with pytest.raises(TrainingError, match="pool `reward` ended"):
        pooled({"kind": "learned", "source": folder}, cluster, max_restarts=1).score(*samples)


def test_weights_and_normalization_are_over_the_whole_rollout(folder, samples):
    specs = [
        {"kind": "learned", "source": folder, "normalize": True, "weight": 2.0},
        function("wanted_length", normalize=True),
        {"kind": "rules"},
    ]
    local, spread = build_reward(specs, tokenizer=toy.TOKENIZER), pooled(specs)
    assert isinstance(spread, CompositeReward)
    kinds = [isinstance(component.scorer, PooledReward) for component in spread.components]
    assert kinds == [True, True, False], "rules take no time"
    ours, theirs = spread.score(*samples), local.score(*samples)
    assert ours.scores == pytest.approx(theirs.scores, rel=1e-5, abs=1e-5)
    assert ours.per_component.keys() == theirs.per_component.keys()
    assert spread.names == local.names


@pytest.mark.parametrize("kind", ["code", "math"])
def test_programs_and_expressions_are_judged_by_all_actors_as_in_one_process(kind):
    if kind == "math":
        pytest.importorskip("math_verify")
    spec = {"kind": "code", "isolation": "available", "unfenced": True, "workers": 1} if kind == "code" else "math"
    prompts = [Prompt(f"p{n}", [1], "?", {"tests": f"assert f() == {n}", "answer": str(n)}) for n in range(4)]
    said = [TextCompletion("def f():\n    return 1" if kind == "code" else "It is $2/2$", sample=n) for n in range(4)]
    cluster = FakeCluster()
    ours = pooled(spec, cluster, completions_per_unit=2).score(prompts, said)
    assert ours == build_reward(spec, tokenizer=toy.TOKENIZER).score(prompts, said)
    assert ours.scores == [0.0, 1.0, 0.0, 0.0]
    asked = {replica for replica, _, method, _ in cluster.asked if method in ("score", "checked_verdicts")}
    assert asked == {0, 1}


def test_a_function_that_abstains_does_so_in_an_actor(samples):
    scorer = pooled(function("only_short"), on_error="report")
    assert isinstance(scorer, Abstaining)
    local = build_reward(function("only_short"), on_error="report")
    assert scorer.checked_verdicts(*samples) == local.checked_verdicts(*samples)
    assert None in scorer.checked_verdicts(*samples)[0]


def test_failures_are_told_of_the_right_samples(samples):
    ours, theirs = (
        ask_scorer(scorer, *samples)
        for scorer in (
            pooled(function("fails_on_some"), on_error="report"),
            build_reward(function("fails_on_some"), on_error="report"),
        )
    )
    assert ours.errors == theirs.errors != {}
    assert [math.isnan(score) for score in ours.scores] == [math.isnan(score) for score in theirs.scores]
    with pytest.raises(RewardError, match="fails_on_some"):
        pooled(function("fails_on_some")).score(*samples)


def test_a_reward_that_can_not_be_built_is_refused_when_it_is_built(tmp_path):
    with pytest.raises(ConfigError, match="no file"):
        pooled({"kind": "function", "function": f"{tmp_path}/nowhere.py:reward"})


def test_a_function_that_wants_this_process_stays_here(samples):
    cluster = FakeCluster()
    pooled(function("wanted_length", in_process=True), cluster).score(*samples)
    assert not cluster.asked


def test_what_keeps_files_in_the_stage_is_never_sent_away():
    kept = {kind.kind_name() for kind in REWARD_KINDS} & {"judge", "constitution", "service"}
    assert kept == {"judge", "constitution", "service"}
    assert not any(kind.in_actors.fget(None) for kind in REWARD_KINDS if kind.kind_name() in kept)
