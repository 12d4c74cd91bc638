"""Rewards less what length explains: by hand where the regression is known exactly."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rlhf.errors import ConfigError, RewardError
from rlhf.rewards.factory import build_reward
from rlhf.rewards.functions import FunctionReward
from rlhf.rewards.length_debias import MIN_COMPLETIONS, LengthDebiasedReward, length_debiased
from tests.unit.rewards.helpers import samples

LENGTHS = 2.0 ** np.arange(16)


def test_a_score_that_is_a_line_in_log_length_becomes_its_mean():
    scores = 3.0 + 2.0 * np.arange(16)  # of log2, mean 3 + 2 * 7.5
    assert length_debiased(scores, LENGTHS) == pytest.approx(np.full(16, 18.0))
    assert length_debiased(-scores, LENGTHS) == pytest.approx(np.full(16, -18.0))


def test_what_it_says_at_one_length_stays():
    # Eight completions of each of two lengths, means 0 and 10: each loses its own mean and gets that of all, 5.
    at_one = np.array([-2.0, -1.0, -1.0, 0.0, 0.0, 1.0, 1.0, 2.0])
    scores, lengths = np.concatenate([at_one, 10 + at_one]), np.repeat([10.0, 1000.0], 8)
    assert length_debiased(scores, lengths) == pytest.approx(np.concatenate([at_one, at_one]) + 5)


def test_where_most_lengths_are_equal_one_line_is_taken_out():
    # 15 completions of one length, scores 0 to 14, and one far longer: the line goes through the mean 7 and through 50.
    scores = np.array([*range(15), 50.0])
    debiased = length_debiased(scores, [10.0] * 15 + [10000.0])
    mean = (15 * 7 + 50) / 16
    assert debiased == pytest.approx([*(np.arange(15) - 7 + mean), mean])
    assert length_debiased(scores[::-1], [10000.0] + [10.0] * 15) == pytest.approx(debiased[::-1])


def test_equal_lengths_explain_nothing():
    scores = [float(k % 5) for k in range(16)]
    assert length_debiased(scores, [7.0] * 16).tolist() == scores


def test_the_unit_of_length_does_not_matter():
    scores = np.random.default_rng(0).normal(size=16)
    lengths = np.random.default_rng(1).integers(5, 500, size=16)
    assert length_debiased(scores, lengths) == pytest.approx(length_debiased(scores, 4.5 * lengths))


@pytest.mark.parametrize(
    ("scores", "lengths"),
    [([0.0] * 15, [1.0] * 15), ([0.0] * 16, [1.0] * 17), ([0.0] * 16, [0.0, *[1.0] * 15]), ([], [])],
)
def test_what_has_no_regression_is_refused(scores, lengths):
    with pytest.raises(ConfigError, match=str(MIN_COMPLETIONS)):
        length_debiased(scores, lengths)


def longer_is_better(prompts, completions):
    """log2 of the characters, and no number for a question mark."""
    return [math.nan if text == "?" else math.log2(len(text)) for text in completions]


def test_the_reward_leaves_out_what_has_no_score_and_keeps_the_raw_scores():
    texts = ["?", *("x" * int(length) for length in LENGTHS)]
    reward = LengthDebiasedReward(FunctionReward(longer_is_better, name="long", in_process=True, on_error="report"))
    result = reward.score(*samples(*texts))
    assert list(result.errors) == [0]
    assert math.isnan(result.scores[0])
    assert result.scores[1:] == pytest.approx([7.5] * 16)
    assert result.per_component["long"] == [None, *range(16)]
    assert result.per_component["long_debiased"][0] is None
    assert result.per_component["long_debiased"][1:] == result.scores[1:]


def test_too_few_completions_are_an_error_of_the_reward():
    reward = LengthDebiasedReward(FunctionReward(longer_is_better, name="long", in_process=True))
    with pytest.raises(RewardError, match=r"long_debiased.*15 completions"):
        reward.score(*samples(*["x" * k for k in range(1, 16)]))


def test_a_recipe_asks_for_it_and_its_weight_counts_after_it():
    spec = {"kind": "function", "function": f"{__name__}:longer_is_better", "length_debias": True, "weight": 2.0}
    reward = build_reward(spec)
    try:
        scores = reward.score(*samples(*("x" * int(length) for length in LENGTHS))).scores
    finally:
        reward.close()
    assert scores == pytest.approx([15.0] * 16)
