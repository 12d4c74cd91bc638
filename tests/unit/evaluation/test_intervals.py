"""Intervals: numbers worked by hand, and the promise itself, that 95 % of them hold the truth."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest

from rlhf.errors import ConfigError
from rlhf.evaluation.intervals import (
    Estimate,
    bootstrap_interval,
    bootstrap_tail,
    clustered_interval,
    mean_interval,
    paired_difference,
    share_interval,
    unit_means,
    wilson_interval,
)


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    # statsmodels 0.15, proportion_confint(method="wilson")
    [(8, 10, 0.49016, 0.94332), (0, 20, 0.0, 0.16113), (20, 20, 0.83887, 1.0)],
)
def test_wilson_is_what_statsmodels_prints(successes, n, low, high):
    interval = wilson_interval(successes, n)
    assert (interval.low, interval.high) == (pytest.approx(low, abs=5e-6), pytest.approx(high, abs=5e-6))
    assert interval.value == successes / n


def test_without_ties_the_share_interval_is_wilson():
    outcomes = [1.0] * 37 + [0.0] * 13
    share, wilson = share_interval(outcomes), wilson_interval(37, 50)
    assert (share.low, share.high) == (pytest.approx(wilson.low), pytest.approx(wilson.high))


def test_trap_01_ties_narrow_the_interval_and_all_ties_do_not_make_it_a_point():
    half_ties = share_interval([0.5] * 100 + [1.0] * 50 + [0.0] * 50)
    no_ties = share_interval([1.0] * 100 + [0.0] * 100)
    all_ties = share_interval([0.5] * 20)
    assert half_ties.high - half_ties.low < 0.75 * (no_ties.high - no_ties.low)
    assert all_ties.low < 0.5 < all_ties.high
    assert all_ties.high - all_ties.low > 0.05


def coverage(draw, interval, truth, *, runs=1500, seed=7):
    rng = np.random.default_rng(seed)
    estimates = [interval(draw(rng)) for _ in range(runs)]
    return np.mean([each.low <= truth <= each.high for each in estimates])


@pytest.mark.parametrize(("n", "ties"), [(30, 0.0), (30, 0.5), (200, 0.5), (200, 0.9)])
def test_the_share_interval_holds_the_truth_in_95_of_100_runs_with_ties(n, ties):
    probabilities = [(1 - ties) * 0.6, ties, (1 - ties) * 0.4]

    def draw(rng):
        return rng.choice([1.0, 0.5, 0.0], size=n, p=probabilities)

    # 1,500 runs: the standard error of a coverage of 0.95 is 0.0056
    assert 0.935 <= coverage(draw, share_interval, truth=probabilities[0] + ties / 2) <= 0.98


def test_trap_01_several_samples_of_a_prompt_count_as_one_unit():
    """Eight samples a prompt, prompts of very different difficulty: samples as units promise too much."""
    prompts, samples = 120, 8

    def draw(rng):
        chance = 1 / (1 + np.exp(-rng.normal(0, 2, prompts)))
        return (rng.random((prompts, samples)) < chance[:, None]).astype(float)

    per_prompt = coverage(lambda rng: draw(rng).mean(axis=1), share_interval, truth=0.5)
    per_sample = coverage(lambda rng: draw(rng).ravel(), share_interval, truth=0.5)
    assert 0.935 <= per_prompt <= 0.97
    assert per_sample < 0.8


def test_the_t_interval_by_hand():
    # mean 2, deviation 1, t_2(0.975) = 4.302653, so 2 +- 4.302653 / sqrt(3)
    interval = mean_interval([1.0, 2.0, 3.0])
    assert (interval.value, interval.n) == (2.0, 3)
    assert interval.low == pytest.approx(2 - 2.484138, abs=1e-6)
    assert interval.high == pytest.approx(2 + 2.484138, abs=1e-6)


def test_a_single_value_has_no_interval_and_says_so():
    interval = mean_interval([1.5])
    assert interval.value == 1.5
    assert math.isnan(interval.low)
    assert "one value" in interval.reason
    assert interval.to_dict()["low"] is None


@pytest.mark.parametrize("interval", [mean_interval, share_interval])
@pytest.mark.parametrize("values", [[], [0.5, math.nan], [math.inf]])
def test_what_can_not_be_measured_is_missing_with_a_reason_and_never_0(interval, values):
    estimate = interval(values)
    assert not estimate.measured
    assert estimate.reason
    assert estimate.to_dict()["value"] is None


def test_a_share_outside_0_to_1_is_refused():
    with pytest.raises(ConfigError, match=r"An outcome is 1\.5"):
        share_interval([0.5, 1.5])


def test_a_confidence_that_is_no_share_is_refused():
    with pytest.raises(ConfigError, match="95"):
        mean_interval([1.0, 2.0], confidence=95)


def test_unit_means_keep_the_order_of_first_appearance():
    assert unit_means([1.0, 2.0, 3.0, 5.0], ["b", "a", "b", "a"]).tolist() == [2.0, 3.5]
    with pytest.raises(ConfigError, match="3 cluster names for 2 values"):
        unit_means([1.0, 2.0], ["a", "b", "c"])


def test_pairing_takes_out_what_both_sides_share():
    rng = np.random.default_rng(1)
    difficulty = rng.normal(0, 3, 100)
    before, after = difficulty + rng.normal(0, 1, 100), difficulty + rng.normal(0.3, 1, 100)
    apart = mean_interval(after).high - mean_interval(after).low
    paired = paired_difference(before, after)
    assert paired.high - paired.low < apart


def test_copies_of_a_prompt_add_nothing_to_a_difference():
    """Twenty equal copies of five prompts hold no more than the five prompts."""
    five = np.array([0.0, 1.0, 3.0, -1.0, 2.0])
    copies, units = np.repeat(five, 20), np.repeat(np.arange(5), 20).tolist()
    as_units, alone = paired_difference(np.zeros(100), copies, units=units), mean_interval(five)
    assert (as_units.low, as_units.high, as_units.n) == (pytest.approx(alone.low), pytest.approx(alone.high), 5)


def test_a_change_of_few_prompts_is_never_certain():
    # nothing changed: two prompts of opposite sign are added to n, v = (sum of y^2 + 1) / (n + 2) - 1/4, y = 1/2
    none = paired_difference(np.ones(10), np.ones(10), shares=True)
    assert none.value == 0
    n_eff = 10 * 0.25 / ((10 / 4 + 1) / 12 - 1 / 4)
    assert (none.low, none.high) == pytest.approx(np.array([-1, 1]) * 1.96 / math.sqrt(n_eff + 1.96**2), abs=1e-4)
    for value in (0.0, 1.0):
        interval = paired_difference(np.full(3, 0.5), np.full(3, 0.5 + value), shares=value == 0)
        assert interval.high - interval.low != 0, "no width would be certainty from three prompts"
    assert "spread" in paired_difference([1.0, 2.0], [2.0, 3.0]).reason
    assert "no interval" in paired_difference([0.0], [1.0], shares=True).reason


@pytest.mark.parametrize(("n", "discordant", "gain"), [(5, 0.15, 0.05), (20, 0.02, -0.02), (100, 0.15, 0.05)])
def test_changes_of_shares_hold_the_truth(n, discordant, gain):
    rng, held, naive = np.random.default_rng(0), 0, 0
    for _ in range(300):
        p = [(discordant - gain) / 2, (discordant + gain) / 2, 1 - discordant]
        d = rng.choice([-1.0, 1.0, 0.0], size=n, p=p)
        interval = paired_difference(np.zeros(n), d, shares=True)
        held += interval.low <= gain <= interval.high
        low, high = np.quantile(d[rng.integers(0, n, size=(200, n))].mean(axis=1), [0.025, 0.975])
        naive += low <= gain <= high
    assert held / 300 > 0.92
    assert n == 100 or naive / 300 < 0.6, "the percentile bootstrap"


def test_a_bootstrap_of_too_few_units_has_no_interval_and_of_few_a_wider_one():
    def first_column(draws):
        return draws[..., 0].mean(axis=1)

    four = bootstrap_interval(np.arange(8.0).reshape(4, 2), first_column, seed=0)
    assert (four.value, math.isnan(four.low)) == (3.0, True)
    assert "4" in four.reason
    # Phi(-sqrt(5 / 4) t_4(.975)), t_4(.975) = 2.776445
    assert bootstrap_tail(5, 0.95) == pytest.approx(NormalDist().cdf(-math.sqrt(1.25) * 2.776445), rel=1e-5)
    assert bootstrap_tail(10**7, 0.95) == pytest.approx(0.025, rel=1e-4)


def test_the_bootstrap_of_any_statistic_in_pieces_is_the_same_as_at_once(monkeypatch):
    units = np.random.default_rng(2).normal(size=(50, 2))

    def ratio(draws):
        return draws[..., 0].mean(1) - draws[..., 1].std(1)

    at_once = bootstrap_interval(units, ratio, seed=1, num_resamples=300)
    monkeypatch.setattr("rlhf.evaluation.intervals.RESAMPLE_CELLS", 700)
    assert bootstrap_interval(units, ratio, seed=1, num_resamples=300) == at_once


def test_unpaired_lengths_are_refused():
    with pytest.raises(ConfigError, match="got 2 and 3"):
        paired_difference([1.0, 2.0], [1.0, 2.0, 3.0])


def test_missing_says_why():
    assert Estimate.missing("no judge").to_dict() == {
        "value": None, "low": None, "high": None, "n": 0, "confidence": 0.95, "reason": "no judge",
    }  # fmt: skip


def test_the_clustered_error_by_hand():
    # values 1, 0 of one prompt, 1 of another, 0 of a third: mean 1/2, sums per prompt 0, 1/2, -1/2
    # se = sqrt(3/2 * 1/2) / 4, t_2(.975) = 4.302653
    interval = clustered_interval([1.0, 0.0, 1.0, 0.0], ["a", "a", "b", "c"])
    assert (interval.value, interval.n) == (0.5, 3)
    assert interval.high - 0.5 == pytest.approx(4.302653 * math.sqrt(0.75) / 4, abs=1e-6)


def test_the_clustered_interval_of_equal_units_is_that_of_their_means():
    values = np.random.default_rng(3).random((40, 5))
    units = np.repeat(np.arange(40), 5).tolist()
    clustered, means = clustered_interval(values.ravel(), units), mean_interval(values.mean(axis=1))
    assert (clustered.low, clustered.high) == (pytest.approx(means.low), pytest.approx(means.high))


def test_the_clustered_error_is_that_of_statsmodels():
    api = pytest.importorskip("statsmodels.api")
    rng = np.random.default_rng(4)
    units = rng.integers(0, 30, 200)
    y = rng.normal(0, 1, 30)[units] + rng.normal(0, 1, 200)
    fit = api.OLS(y, np.ones(200)).fit(cov_type="cluster", cov_kwds={"groups": units, "use_correction": False})
    interval = clustered_interval(y, units.tolist())
    error = (interval.high - interval.value) / 2.045230  # t_29(.975)
    assert error == pytest.approx(fit.bse[0] * math.sqrt(30 / 29), rel=1e-5)


def test_trap_07_one_unit_has_no_error_and_not_an_error_of_0():
    interval = clustered_interval([0.0, 1.0, 1.0], ["a", "a", "a"])
    assert interval.value == pytest.approx(2 / 3)
    assert math.isnan(interval.low)
    assert interval.reason
    assert not clustered_interval([1.0, math.nan], ["a", "b"]).measured
