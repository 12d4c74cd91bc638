"""Verdicts that may be looked at any time: trap 3, peeking at a fixed-n interval."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rlhf.evaluation.comparison import Answer, compare_completions
from rlhf.evaluation.intervals import share_interval
from rlhf.evaluation.sequential_comparison import sequential_rate

LOOKS = range(50, 401, 10)


def outcomes(rng, rate, n=400):
    return rng.choice([1.0, 0.5, 0.0], size=n, p=[rate * 0.8, 0.2, 0.8 - rate * 0.8])


def test_trap_03_equal_systems_looked_at_often_are_rarely_called_different():
    peeking = sequential = 0
    for seed in range(100):
        y = outcomes(np.random.default_rng(seed), 0.5)
        fixed = [share_interval(y[:n]) for n in LOOKS]
        peeking += any(not each.low <= 0.5 <= each.high for each in fixed)
        rate = sequential_rate(y)
        sequential += rate.above or rate.below
    assert peeking >= 12, "what a naive caller gets: 5 % would be 5"
    assert sequential <= 9, "P(Bin(100, .05) > 9) = 2.8 %"


def test_a_difference_is_found_and_the_number_of_prompts_that_it_takes_is_about_right():
    found_at = []
    for seed in range(20):
        y = outcomes(np.random.default_rng(seed), 0.7)
        found_at.append(next(n for n in range(10, 401, 5) if sequential_rate(y[:n]).above))
    assert np.median(found_at) < 150
    y = outcomes(np.random.default_rng(0), 0.6, n=60)
    rate = sequential_rate(y)
    if not rate.above:
        assert rate.more > 0


def test_what_was_shown_stays_shown_and_the_interval_covers_the_mean():
    y = np.concatenate([np.ones(40), np.zeros(40)])
    rate = sequential_rate(y)
    assert rate.above
    assert not rate.below
    assert rate.estimate.low <= 0.5 <= rate.estimate.high


def test_without_outcomes_nothing_is_said():
    rate = sequential_rate([])
    assert (rate.above, rate.below, rate.more) == (False, False, None)
    assert math.isnan(rate.estimate.value)


@pytest.mark.parametrize("any_time", [True, False])
def test_a_comparison_takes_it(any_time):
    def longer(prompts, completions):
        return [float(len(text)) for text in completions]

    prompts = [f"p{n}" for n in range(60)]
    comparison = compare_completions(prompts, ["aa"] * 60, ["a"] * 60, longer, any_time=any_time, length_control=False)
    assert comparison.verdict is Answer.BETTER
    assert comparison.any_time is any_time
    assert bool(comparison.win_rate.high - comparison.win_rate.low > 0.1) is any_time
    assert comparison.win_rate.high <= 1
