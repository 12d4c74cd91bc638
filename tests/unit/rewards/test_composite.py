from __future__ import annotations

import math
import re

import pytest

from rlhf.errors import ConfigError, RewardError
from rlhf.rewards.composite import Component, CompositeReward, standardized
from rlhf.rewards.functions import FunctionReward
from tests.unit.rewards.helpers import length, none_for_short, raise_on_bad, samples


def in_process(function, **options) -> FunctionReward:
    return FunctionReward(function, in_process=True, **options)


def test_the_weighted_sum_by_hand():
    reward = CompositeReward(
        [
            Component(scorer=in_process(length), weight=0.5),
            Component(scorer=in_process(lambda prompts, completions: [1.0, -1.0], name="sign"), weight=-2.0),
        ]
    )
    result = reward.score(*samples("abcd", "ab"))
    assert result.scores == [0.5 * 4 - 2, 0.5 * 2 + 2]
    assert result.per_component == {"length": [4.0, 2.0], "sign": [1.0, -1.0]}  # raw


def test_what_does_not_apply_is_left_out_of_a_samples_sum():
    reward = CompositeReward([Component(scorer=in_process(length)), Component(scorer=in_process(none_for_short))])
    result = reward.score(*samples("abcd", "ab"))
    assert result.scores == [5.0, 2.0]
    assert result.per_component["none_for_short"] == [1.0, None]


def test_a_sample_that_nothing_applies_to_is_named():
    with pytest.raises(RewardError, match=r"'p1' \(completion 0\) .*none_for_short"):
        CompositeReward([Component(scorer=in_process(none_for_short), weight=2.0)]).score(*samples("abcd", "ab"))


def test_a_normalized_component_has_mean_0_and_deviation_1_before_its_weight():
    reward = CompositeReward([Component(scorer=in_process(length), weight=3.0, normalize=True)])
    scores = reward.score(*samples("a", "ab", "abc")).scores
    # lengths 1, 2, 3: mean 2, deviation sqrt(2/3)
    assert scores == pytest.approx([-3 * math.sqrt(1.5), 0.0, 3 * math.sqrt(1.5)])


def test_equal_scores_and_missing_ones_are_normalized_without_harm():
    assert standardized([0.1 + 0.2, 0.3, None]) == [0.0, 0.0, None]
    assert standardized([None, None]) == [None, None]
    assert standardized([1.0, None, 3.0]) == [-1.0, None, 1.0]


def test_a_components_failure_is_the_sums_failure():
    reward = CompositeReward([Component(scorer=in_process(length)), Component(scorer=in_process(raise_on_bad))])
    with pytest.raises(RewardError, match=r"raise_on_bad .*sample 'p1'"):
        reward.score(*samples("good", "bad"))


def test_a_components_reported_failure_leaves_the_sample_without_a_score():
    reward = CompositeReward(
        [Component(scorer=in_process(length)), Component(scorer=in_process(raise_on_bad, on_error="report"))]
    )
    result = reward.score(*samples("good", "bad"))
    assert result.scores[0] == 5.0
    assert math.isnan(result.scores[1])
    assert result.errors[1].startswith("raise_on_bad: it raised KeyError")


def test_scores_beyond_all_squares_are_normalized_too():
    assert standardized([1e200, -1e200, None]) == [1.0, -1.0, None]
    assert standardized([1e308, 1e308]) == [0.0, 0.0]


@pytest.mark.parametrize("on_error", ["raise", "report"])
def test_a_sum_beyond_all_numbers_is_an_error_of_its_sample(on_error):
    huge = in_process(lambda prompts, completions: [1.0, 1e308], name="huge")
    reward = CompositeReward([Component(scorer=huge, weight=1e10)], on_error=on_error)
    message = "the weighted sum is inf (huge gave 1e+308); lower the weights, or bring the scores to a common scale"
    if on_error == "report":
        assert reward.score(*samples("a", "b")).errors == {1: message}
    else:
        with pytest.raises(RewardError, match=rf"'p1' \(completion 0\) .*{re.escape(message)}"):
            reward.score(*samples("a", "b"))


def test_components_of_one_name_are_told_apart():
    reward = CompositeReward([Component(scorer=in_process(length)), Component(scorer=in_process(length), weight=2)])
    assert reward.score(*samples("ab")).per_component == {"length": [2.0], "length_2": [2.0]}


def test_composites_can_be_nested():
    inner = CompositeReward([Component(scorer=in_process(length), weight=2.0)], name="inner")
    assert CompositeReward([Component(scorer=inner, weight=2.0)]).score(*samples("ab")).scores == [8.0]


def test_senseless_sums_are_refused():
    with pytest.raises(ConfigError, match="at least one component"):
        CompositeReward([])
    with pytest.raises(ConfigError, match="'length' is nan"):
        CompositeReward([Component(scorer=in_process(length), weight=math.nan)])
