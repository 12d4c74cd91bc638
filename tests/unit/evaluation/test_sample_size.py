"""Sample sizes: numbers worked by hand, and the power they promise."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from rlhf.errors import ConfigError
from rlhf.evaluation.intervals import share_interval
from rlhf.evaluation.sample_size import (
    detectable_difference,
    more_prompts_for_win_rate,
    prompts_for_difference,
    prompts_for_noninferiority,
    prompts_for_win_rate,
)


def test_a_known_sample_size():
    # p = .6 against .5, 95 %, 80 %: ((1.95996 * .5 + .84162 * .48990) / .1)^2 = 193.9
    assert prompts_for_win_rate(0.1) == 194


def test_ties_narrow_the_spread_and_so_the_sample():
    assert prompts_for_win_rate(0.1, tie_frac=0.4) < prompts_for_win_rate(0.1)
    with pytest.raises(ConfigError, match=r"at most 0\.6"):
        prompts_for_win_rate(0.2, tie_frac=0.8)


def test_the_promised_power_is_there():
    n, rng = prompts_for_win_rate(0.08, tie_frac=0.2), random.Random(0)
    p_win = 0.58 - 0.1
    actual = 0
    for _ in range(1500):
        outcomes = [1.0 if (u := rng.random()) < p_win else 0.5 if u < p_win + 0.2 else 0.0 for _ in range(n)]
        mean = sum(outcomes) / n
        deviation = math.sqrt(sum((x - mean) ** 2 for x in outcomes) / (n - 1))
        actual += abs(mean - 0.5) / (deviation / math.sqrt(n)) > 1.95996
    assert actual / 1500 == pytest.approx(0.8, abs=0.04)


def test_labels_that_are_right_three_times_of_four_halve_what_is_seen():
    # the observed difference is .1 (2 * .75 - 1) = .05, and s1 that of p = .55
    assert prompts_for_win_rate(0.1, label_accuracy=0.75) == prompts_for_win_rate(0.05)
    assert detectable_difference(800, label_accuracy=0.75) == pytest.approx(2 * detectable_difference(800), abs=1e-3)
    with pytest.raises(ConfigError, match=r"label_accuracy is 0\.5"):
        prompts_for_win_rate(0.1, label_accuracy=0.5)


def test_detectable_difference_is_the_inverse():
    n = prompts_for_win_rate(0.07, tie_frac=0.1)
    assert detectable_difference(n, tie_frac=0.1) == pytest.approx(0.07, abs=1e-3)
    assert math.isnan(detectable_difference(2))


def test_a_win_rate_as_the_mean_of_outcomes():
    # (1.95996 + .84162)^2 ((1 - t) / 4 - D^2) / D^2, rounded up; with 20 % ties, too
    assert [prompts_for_difference(d, variance=0.25 - d * d) for d in (0.02, 0.05, 0.1)] == [4898, 778, 189]
    assert [prompts_for_difference(d, variance=0.2 - d * d) for d in (0.02, 0.05, 0.1)] == [3917, 621, 150]


def test_noninferiority_takes_six_times_the_discordant_share_over_the_squared_margin():
    # (1.64485 + .84162)^2 = 6.1826
    needed = [prompts_for_noninferiority(margin, variance=0.15) for margin in (0.05, 0.03, 0.02, 0.01)]
    assert needed == [371, 1031, 2319, 9274]
    assert prompts_for_noninferiority(0.02, variance=0.15, difference=0.01) == prompts_for_noninferiority(
        0.03, variance=0.15
    )


@pytest.mark.parametrize(
    "ask",
    [
        lambda: prompts_for_win_rate(0.6),
        lambda: prompts_for_difference(0.0, variance=1.0),
        lambda: prompts_for_difference(0.1, variance=math.nan),
        lambda: prompts_for_noninferiority(0.02, variance=0.15, difference=-0.02),
        lambda: prompts_for_noninferiority(0.02, variance=0.15, power=1.0),
    ],
)
def test_what_no_number_of_prompts_can_do_is_refused(ask):
    with pytest.raises(ConfigError):
        ask()


def test_how_many_more_prompts_would_tell_a_win_rate():
    won = [1.0] * 30 + [0.0] * 20  # .6: 194 prompts (research page, section 1), 50 are there
    assert more_prompts_for_win_rate(0.6, won) == prompts_for_win_rate(0.1) - 50
    with_ties = [1.0] * 25 + [0.5] * 10 + [0.0] * 15  # 20 % ties
    assert more_prompts_for_win_rate(0.6, with_ties) == pytest.approx(
        prompts_for_win_rate(0.1, tie_frac=0.2) - 50, abs=1
    )
    assert more_prompts_for_win_rate(0.5, [1.0, 0.0]) is None
    assert more_prompts_for_win_rate(math.nan, []) is None
    assert more_prompts_for_win_rate(1.0, [1.0, 1.0]) == prompts_for_win_rate(0.25) - 2, "3 of 4 with one more of each"


def test_so_many_more_prompts_do_tell_in_four_of_five_runs():
    rng, told = np.random.default_rng(0), 0
    seen = [1.0] * 33 + [0.0] * 27  # .55 of 60 prompts
    more = more_prompts_for_win_rate(0.55, seen)
    for _ in range(400):
        interval = share_interval((rng.random(60 + more) < 0.55).astype(float))
        told += interval.low > 0.5
    assert told / 400 == pytest.approx(0.8, abs=0.06)
