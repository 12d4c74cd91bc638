from __future__ import annotations

import math

import numpy as np
import pytest

from rlhf.errors import ConfigError, RewardError
from rlhf.evaluation.winrate import WinRateEvaluator, win_rate


def test_ties_count_half():
    rate = win_rate([3.0, 2.0, 1.0, 1.0], [1.0, 2.0, 1.0, 2.0])
    # win, tie, tie, loss
    assert (rate.wins, rate.ties, rate.losses, rate.n) == (1, 2, 1, 4)
    assert rate.rate == 0.5


def test_a_band_makes_near_scores_ties():
    a, b = [1.05, 2.0], [1.0, 1.0]
    assert win_rate(a, b).wins == 2
    banded = win_rate(a, b, tie_band=0.1)
    assert (banded.wins, banded.ties, banded.rate) == (1, 1, 0.75)


def test_the_other_side_sees_the_mirror_image():
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 4, 80), rng.integers(0, 3, 80)
    clusters = (np.arange(80) // 2).tolist()
    one, other = win_rate(a, b, clusters), win_rate(b, a, clusters)
    assert one.rate == pytest.approx(1 - other.rate)
    assert (one.low, one.high) == (pytest.approx(1 - other.high), pytest.approx(1 - other.low))


def test_a_prompt_counts_once_however_many_samples_it_has():
    # prompt x: 1, 1, 1 -> 1; prompt y: 0 -> 0
    rate = win_rate([1, 1, 1, 0], [0, 0, 0, 1], clusters=["x", "x", "x", "y"])
    assert (rate.rate, rate.n, rate.num_prompts) == (0.5, 4, 2)


def test_more_samples_of_the_same_prompts_do_not_narrow_the_interval():
    scores = np.random.default_rng(1).normal(0.3, 1, 60)
    once = win_rate(scores, np.zeros(60))
    eightfold = win_rate(np.repeat(scores, 8), np.zeros(480), clusters=np.repeat(np.arange(60), 8).tolist())
    assert (eightfold.low, eightfold.high) == (pytest.approx(once.low), pytest.approx(once.high))


@pytest.mark.parametrize(("a", "b"), [([], []), ([math.nan, 1.0], [0.0, 0.0])])
def test_what_was_not_measured_is_null_with_a_reason(a, b):
    rate = win_rate(a, b)
    assert math.isnan(rate.rate)
    assert rate.to_dict()["rate"] is None
    assert rate.reason
    assert "not measured" in str(rate)


def test_sides_of_different_length_are_refused():
    with pytest.raises(ConfigError, match="got 2 and 1"):
        win_rate([1.0, 2.0], [1.0])
    with pytest.raises(ConfigError, match="tie band is -1"):
        win_rate([1.0], [1.0], tie_band=-1)


def shortest_is_best(prompts, completions, **columns):
    return [-len(text) for text in completions]


def test_the_evaluator_judges_both_and_takes_equal_prompts_together():
    metrics = WinRateEvaluator(shortest_is_best).evaluate(["p", "p", "q"], ["a", "a", "aaa"], ["bb", "bb", "b"])
    assert (metrics.wins, metrics.losses, metrics.num_prompts, metrics.win_rate.value) == (2, 1, 2, 0.5)


def test_the_evaluator_refuses_sides_that_do_not_match():
    with pytest.raises(ConfigError, match="2 prompts, 1 and 2 completions"):
        WinRateEvaluator(shortest_is_best).evaluate(["p", "q"], ["a"], ["b", "b"])


def test_the_evaluator_does_not_take_a_broken_judge_for_a_tie():
    with pytest.raises(RewardError, match="not a finite number"):
        WinRateEvaluator(lambda prompts, completions: [math.nan]).evaluate(["p"], ["a"], ["b"])
