"""pass@k: by hand, against counting every set of samples, and unbiased where the plain formula is not."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from rlhf.errors import ConfigError
from rlhf.evaluation.pass_at_k import pass_at_k, pass_curve


@pytest.mark.parametrize(
    ("correct", "samples", "k", "chance"),
    [
        (0, 1, 1, 0.0),
        (1, 1, 1, 1.0),
        (1, 4, 1, 0.25),
        (1, 4, 2, 0.5),
        (2, 4, 2, 5 / 6),  # 6 pairs, one of them of the two wrong ones
        (3, 4, 2, 1.0),
        (0, 4, 4, 0.0),
        (1, 8, 8, 1.0),  # the plain formula says 1 - (7/8)^8 = 0.66
        (3, 10, 5, 11 / 12),  # C(7, 5) / C(10, 5) = 21 / 252
    ],
)
def test_by_hand(correct, samples, k, chance):
    assert pass_at_k([correct], samples, k)[0] == pytest.approx(chance, rel=1e-15)


def test_it_is_the_share_of_the_sets_of_k_that_hold_a_right_one():
    for n in range(1, 8):
        for c in range(n + 1):
            for k in range(1, n + 1):
                sets = list(itertools.combinations([True] * c + [False] * (n - c), k))
                assert pass_at_k([c], n, k)[0] == pytest.approx(sum(map(any, sets)) / len(sets), abs=1e-15)


@pytest.mark.parametrize(("rate", "n", "k"), [(0.3, 6, 3), (0.05, 20, 10), (0.9, 5, 5)])
def test_it_is_unbiased_and_the_plain_formula_is_not(rate, n, k):
    counts = range(n + 1)
    weights = [math.comb(n, c) * rate**c * (1 - rate) ** (n - c) for c in counts]
    truth = 1 - (1 - rate) ** k
    assert float(np.dot(weights, pass_at_k(list(counts), n, k))) == pytest.approx(truth, abs=1e-12)
    plain = sum(weight * (1 - (1 - c / n) ** k) for c, weight in zip(counts, weights, strict=True))
    assert plain < truth - 1e-4


def test_neither_large_numbers_nor_small_chances_lose_digits():
    assert pass_at_k([1], 10**9, 1)[0] == 1e-9
    assert pass_at_k([1], 10_000, 5000)[0] == 0.5
    assert pass_at_k([9_999], 10_000, 1)[0] == 0.9999
    # 1 - prod(1 - k / i) for c = 1 is k / n, exactly
    assert pass_at_k([1], 4096, 3)[0] == 3 / 4096


def test_problems_may_have_different_numbers_of_samples():
    assert pass_at_k([1, 1, 0], [1, 2, 5], 1).tolist() == [1.0, 0.5, 0.0]
    assert pass_at_k([], 5, 3).tolist() == []


def test_more_tries_and_more_right_samples_never_hurt():
    for c in range(17):
        curve = [pass_at_k([c], 16, k)[0] for k in range(1, 17)]
        assert curve == sorted(curve)
        assert c == 16 or pass_at_k([c + 1], 16, 4)[0] >= pass_at_k([c], 16, 4)[0]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (([1], 4, 0), "k = 0; at least one sample"),
        (([1, 2], [8, 3], 4), "pass@4 needs at least 4 samples of each problem, and problem 1 has 3; draw more"),
        (([1, 9], 8, 2), "Problem 1 has 9 right samples of 8; wanted from 0 to 8"),
        (([-1], 8, 2), "Problem 0 has -1 right samples"),
        (([1, 2], [8], 2), "samples of 1 problems and the right ones of 2"),
    ],
)
def test_what_can_not_be_is_refused(arguments, told):
    with pytest.raises(ConfigError) as caught:
        pass_at_k(*arguments)
    assert told in str(caught.value)


def test_the_curve_averages_over_problems_and_knows_how_sure_it_is():
    curve = pass_curve([[1, 0, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0], [True, False, True, False]])
    assert list(curve) == [1, 2, 4]
    assert curve[1].value == pytest.approx((1 / 4 + 1 + 0 + 1 / 2) / 4)
    assert curve[2].value == pytest.approx((1 / 2 + 1 + 0 + 5 / 6) / 4)
    assert curve[4].value == pytest.approx(3 / 4)
    for estimate in curve.values():
        assert estimate.n == 4
        assert 0 <= estimate.low < estimate.value < estimate.high <= 1


def test_the_interval_is_over_problems_and_does_not_shrink_with_their_samples():
    few = pass_curve([[1, 0]] * 10 + [[0, 0]] * 10)[1]
    many = pass_curve([[1, 0] * 50] * 10 + [[0, 0] * 50] * 10, [1])[1]
    assert many.high - many.low == pytest.approx(few.high - few.low)


def test_the_curve_goes_as_far_as_every_problem_has_samples():
    assert list(pass_curve([[1] * 9, [0] * 7])) == [1, 2, 4]
    assert list(pass_curve([np.array([1, 0, 1])], [3])) == [3]
    with pytest.raises(ConfigError, match=r"pass@8 .*problem 1 has 7"):
        pass_curve([[1] * 9, [0] * 7], [8])


def test_without_problems_nothing_is_measured_and_without_samples_it_is_refused():
    (estimate,) = pass_curve([]).values()
    assert not estimate.measured
    assert estimate.reason
    with pytest.raises(ConfigError, match="Problem 1 has no samples"):
        pass_curve([[1], []])


@pytest.mark.parametrize("samples", [[0.5], [float("nan")], [2], [[1, 0]]])
def test_samples_are_right_or_wrong_and_nothing_between(samples):
    with pytest.raises(ConfigError, match=r"problem 1.*flat list"):
        pass_curve([[1], samples])
