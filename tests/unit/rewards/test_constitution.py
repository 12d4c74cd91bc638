"""A constitution: its score by hand, what has none, and names."""

from __future__ import annotations

import math

import pytest

from rlhf.errors import ConfigError, RewardError
from rlhf.rewards.constitution import ConstitutionalRewardWrapper, Principle
from rlhf.rewards.factory import build_reward
from rlhf.rewards.functions import FunctionReward
from tests.unit.rewards.helpers import samples


def says(*values, on_error="raise"):
    return FunctionReward(lambda prompts, completions: list(values), name="says", in_process=True, on_error=on_error)


def principles(*verdicts, weights=(2.0, 0.5, -1.0)):
    rows = zip(("kind", "short", "rude"), verdicts, weights, strict=False)
    return [Principle(name=name, scorer=says(*values), weight=weight) for name, values, weight in rows]


VERDICTS = ([1.0, -3.0], [4.0, 2.0], [0.5, -2.0])
# weighted: 2, -6 | 2, 1 | -.5, 2


@pytest.mark.parametrize(
    ("combine", "reward", "expected"),
    [
        ("sum", None, [3.5, -3.0]),
        ("min", None, [-0.5, -6.0]),
        ("sum", [10.0, 20.0], [33.5, 57.0]),  # 3 times the reward
        ("min", [10.0, 20.0], [29.5, 54.0]),
    ],
)
def test_sum_and_min_by_hand(combine, reward, expected):
    wrapper = ConstitutionalRewardWrapper(
        principles(*VERDICTS),
        reward=None if reward is None else says(*reward),
        reward_weight=3.0,
        combine=combine,
    )
    result = wrapper.score(*samples("a", "b"))
    assert result.scores == expected
    raw = {"constitution/kind": [1.0, -3.0], "constitution/short": [4.0, 2.0], "constitution/rude": [0.5, -2.0]}
    assert result.per_component == raw | ({} if reward is None else {"constitution/reward": reward})


@pytest.mark.parametrize(("combine", "expected"), [("sum", [1.5, -5.0]), ("min", [-0.5, -6.0])])
def test_a_principle_that_does_not_apply_is_left_out_of_that_sample(combine, expected):
    # None in the place of 2 of the first sample and of 2 of the second: neither a 0 nor the smallest
    verdicts = ([1.0, -3.0], [None, 2.0], [0.5, None])
    assert (
        ConstitutionalRewardWrapper(principles(*verdicts), combine=combine).score(*samples("a", "b")).scores == expected
    )


@pytest.mark.parametrize("combine", ["sum", "min"])
def test_a_sample_without_a_verdict_or_without_the_reward_has_no_score(combine):
    nothing = [Principle(name="kind", scorer=says(None, 1.0))]
    wrapper = ConstitutionalRewardWrapper(nothing, combine=combine, on_error="report")
    result = wrapper.score(*samples("a", "b"))
    assert math.isnan(result.scores[0])
    assert (result.scores[1], list(result.errors)) == (1.0, [0])
    with pytest.raises(RewardError, match="'p0'"):
        ConstitutionalRewardWrapper(nothing, combine=combine).score(*samples("a", "b"))
    wrapper = ConstitutionalRewardWrapper(
        principles([1.0, 1.0]), reward=says(5.0, None), combine=combine, on_error="report"
    )
    result = wrapper.score(*samples("a", "b"))
    assert (result.scores[0], list(result.errors)) == (7.0, [1])
    assert "reward" in result.errors[1]


def test_a_score_beyond_all_numbers_is_an_error_and_no_infinity():
    wrapper = ConstitutionalRewardWrapper(principles([1e308], weights=(1e10,)), on_error="report")
    result = wrapper.score(*samples("a"))
    assert math.isnan(result.scores[0])
    assert list(result.errors) == [0]


def test_names_differ_from_each_other_and_from_the_reward():
    twice = [Principle(name="kind", scorer=says(1.0)), Principle(name="kind", scorer=says(1.0))]
    for wrong in ([], twice):
        with pytest.raises(ConfigError, match="name"):
            ConstitutionalRewardWrapper(wrong)
    named = [Principle(name="reward", scorer=says(1.0))]
    with pytest.raises(ConfigError, match="reward"):
        ConstitutionalRewardWrapper(named, reward=says(2.0))
    assert ConstitutionalRewardWrapper(named).score(*samples("a")).scores == [1.0], "nothing else has that name"
    settings = {"kind": "constitution", "principles": [{"name": "reward", "judge": "rules"}]}
    build_reward(settings)
    with pytest.raises(ConfigError, match="reward"):
        build_reward({**settings, "reward": "rules"})


def test_weights_are_finite_also_of_a_principle_called_reward():
    for weight in (math.inf, math.nan):
        for name in ("kind", "reward"):
            with pytest.raises(ConfigError, match="finite"):
                ConstitutionalRewardWrapper([Principle(name=name, scorer=says(1.0), weight=weight)])
        with pytest.raises(ConfigError, match="finite"):
            ConstitutionalRewardWrapper(principles([1.0]), reward=says(1.0), reward_weight=weight)


def test_another_way_to_combine_is_refused():
    with pytest.raises(ConfigError, match="max"):
        ConstitutionalRewardWrapper(principles([1.0]), combine="max")
