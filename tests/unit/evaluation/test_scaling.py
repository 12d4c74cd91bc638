from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from rlhf.errors import ConfigError, DataError
from rlhf.evaluation.scaling import Moment, fit_scaling, recalibrated_scale
from rlhf.rewards.best_of_n_statistics import best_of_n_kl, best_of_n_means


def moment(d: float, reward: float, *, rows: int = 40, noise: float = 0.0, seed: int = 0) -> Moment:
    rng = np.random.default_rng(seed)
    prompt = np.arange(rows, dtype=np.float64)
    return Moment(
        label="",
        prompt=prompt,
        kl=np.full(rows, d * d),
        proxy=np.full(rows, 2 * reward),
        gold=reward + noise * rng.standard_normal(rows),
    )


def test_the_distance_of_the_best_of_two_is_log_2_less_a_half():
    assert best_of_n_kl(1) == 0
    assert best_of_n_kl(2) == pytest.approx(math.log(2) - 0.5)
    with pytest.raises(ConfigError, match="best of 0 samples"):
        best_of_n_kl(0)


def test_the_distance_is_that_of_the_largest_of_n_even_numbers():
    # the largest of n has the density n x^(n - 1) on [0, 1]: its KL to the even one, by summing over a fine grid
    x = (np.arange(200_000) + 0.5) / 200_000
    density = 5 * x**4
    assert best_of_n_kl(5) == pytest.approx(float((density * np.log(density)).mean()), rel=1e-4)


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_means_are_those_over_all_sets(n):
    proxy, gold = [0.3, -1.0, 2.0, 0.7, 0.1], [5.0, 1.0, -2.0, 0.5, 3.0]
    best = [max(chosen, key=lambda i: proxy[i]) for chosen in itertools.combinations(range(5), n)]
    assert best_of_n_means(proxy, gold, n) == pytest.approx(np.mean([gold[i] for i in best]))


def test_which_of_equals_is_taken_is_a_matter_of_chance():
    # of {a, b}, {a, c}, {b, c} with a = b the best: half a and half b; a or b against c: both are taken
    assert best_of_n_means([1.0, 1.0, 0.0], [4.0, 8.0, 100.0], 2) == pytest.approx((6 + 4 + 8) / 3)
    assert best_of_n_means([1.0, 1.0, 0.0], [8.0, 4.0, 100.0], 2) == pytest.approx((6 + 4 + 8) / 3)


def test_more_samples_than_there_are_can_not_be_chosen_from():
    with pytest.raises(ConfigError, match="n from 1 to 2"):
        best_of_n_means([1.0, 2.0], [1.0, 2.0], 3)


def test_a_proxy_that_is_the_truth_in_other_units_is_put_back_into_its_units():
    gold = np.random.default_rng(0).standard_normal(500)
    assert recalibrated_scale(gold / 7, gold) == pytest.approx(7, rel=1e-6)


def test_a_noisy_proxy_is_trusted_less():
    rng = np.random.default_rng(0)
    gold = rng.standard_normal(5000)
    assert 0 < recalibrated_scale(gold + 2 * rng.standard_normal(5000), gold) < 0.5


def test_a_proxy_against_the_truth_has_no_scale():
    gold = np.random.default_rng(0).standard_normal(50)
    with pytest.raises(DataError, match="no better than chance"):
        recalibrated_scale(-gold, gold)


@pytest.mark.parametrize("form", ["best_of_n", "rl"])
def test_a_fit_finds_the_curve_that_points_lie_on(form):
    distances = [0.0, 0.5, 1.0, 2.0, 3.0]

    def curve(d: float) -> float:  # alpha 1.5, beta 0.4
        return d * (1.5 - 0.4 * (d if form == "best_of_n" else math.log(d))) if d else 0.0

    points = [moment(d, curve(d)) for d in distances]
    scaling = fit_scaling(points, "gold", form=form, num_prompts=40, resamples=20)
    assert scaling.alpha == pytest.approx((1.5, 1.5, 1.5))
    assert scaling.beta == pytest.approx((0.4, 0.4, 0.4))
    assert scaling.r2 == pytest.approx(1)
    assert scaling([0.0, 2.5]) == pytest.approx([0.0, curve(2.5)])
    assert scaling.peak == pytest.approx(1.5 / 0.8 if form == "best_of_n" else math.exp(1.5 / 0.4 - 1))
    promised = fit_scaling(points, "proxy", form=form, num_prompts=40, resamples=20)
    assert promised.alpha[0] == pytest.approx(3.0)


def test_a_curve_that_only_rises_has_no_peak():
    points = [moment(d, d * (1 + 0.2 * d)) for d in (1.0, 2.0, 3.0)]
    assert fit_scaling(points, "gold", form="best_of_n", num_prompts=40, resamples=5).peak is None


def test_intervals_hold_the_curve_and_come_from_prompts():
    points = [moment(d, d * (1.5 - 0.4 * d), noise=0.5, seed=int(10 * d)) for d in (0.5, 1.0, 1.5, 2.0, 2.5)]
    scaling = fit_scaling(points, "gold", form="best_of_n", num_prompts=40)
    for (value, low, high), truth in ((scaling.alpha, 1.5), (scaling.beta, 0.4)):
        assert low < value < high
        assert abs(value - truth) < high - low, "within four deviations"
    assert fit_scaling(points, "gold", form="best_of_n", num_prompts=40) == scaling, "the same draws at every call"
    certain = fit_scaling(points, "proxy", form="best_of_n", num_prompts=40)
    assert certain.alpha[1] == pytest.approx(certain.alpha[2]), "rows that are all alike leave nothing open"


def test_policies_that_never_moved_make_no_curve():
    with pytest.raises(DataError, match="two distances"):
        fit_scaling([moment(1.0, 1.0), moment(1.0, 1.0)], "gold", form="rl", num_prompts=40)


def test_a_distance_that_came_out_negative_is_none():
    below = Moment(label="", prompt=np.zeros(2), kl=np.array([-1.0, 0.5]), proxy=np.zeros(2), gold=np.ones(2))
    assert below.means() == (0.0, 0.0, 1.0)
