"""Corrections of a judge by labels: numbers worked by hand, coverage, and refusals."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rlhf.errors import ConfigError
from rlhf.evaluation.intervals import mean_interval
from rlhf.evaluation.prediction_powered import MIN_LABELS, corrected_rate, prediction_powered_mean


def world(rng, n, more, *, flip=0.2, bias=0.0, truth=0.6):
    """Labels of a rate, and a judge that errs and leans."""
    y = (rng.random(n + more) < truth).astype(float)
    f = np.where(rng.random(n + more) < flip, 1 - y, y)
    f = np.where(rng.random(n + more) < bias, 1.0, f)
    return y[:n], f[:n], f[n:]


def test_by_hand():
    # 60 labels: 30 pairs (1, 1), 10 (1, 0), 10 (0, 1), 10 (0, 0); 120 more verdicts, half of them 1
    y = np.array([1.0] * 40 + [0.0] * 20)
    f = np.array([1.0] * 30 + [0.0] * 10 + [1.0] * 10 + [0.0] * 10)
    more = np.array([1.0, 0.0] * 60)
    corrected = prediction_powered_mean(y, f, more)
    # cov = (30 - 40 * 40 / 60) / 59 = 3.33333 / 59; var of all 180 verdicts: (100 * 80 / 180) / 179
    weight = (10 / 3 / 59) / (1.5 * (100 * 80 / 180) / 179)
    assert corrected.weight == pytest.approx(weight)
    assert corrected.estimate.value == pytest.approx(2 / 3 - weight * (2 / 3 - 0.5))
    # t_59(.975) = 2.000995; variance of 120 verdicts: 30 / 119; of y - w f: sum of squares less 60 times the squared mean
    rest = y - weight * f
    own = (float(rest @ rest) - rest.sum() ** 2 / 60) / 59
    half = 2.000995 * math.sqrt(weight**2 * (30 / 119) / 120 + own / 60)
    assert corrected.estimate.high - corrected.estimate.value == pytest.approx(half, rel=1e-6)
    assert corrected.correlation == pytest.approx((10 / 3) / (40 * 20 / 60))
    assert corrected.labels_only.value == pytest.approx(2 / 3)
    assert corrected.judge_only == 0.5


def test_a_biased_judge_narrows_the_interval_and_does_not_move_it():
    rng = np.random.default_rng(0)
    held, widths, judge_held = 0, [], 0
    for _ in range(400):
        y, f, more = world(rng, 100, 2000, flip=0.05, bias=0.2)
        corrected = prediction_powered_mean(y, f, more)
        held += corrected.estimate.low <= 0.6 <= corrected.estimate.high
        widths.append(
            (corrected.estimate.high - corrected.estimate.low, corrected.labels_only.high - corrected.labels_only.low)
        )
        naive = mean_interval(more)
        judge_held += naive.low <= 0.6 <= naive.high
    assert 0.92 <= held / 400 <= 0.98
    assert judge_held == 0, "the judge alone is certain and wrong"
    assert np.mean([own for own, _ in widths]) < 0.8 * np.mean([alone for _, alone in widths])


def test_with_as_many_verdicts_as_labels_the_noise_of_verdicts_counts():
    """Without the term w^2 var_N(f) / N, fewer than 90 % of intervals at 95 % hold the truth."""
    rng = np.random.default_rng(5)
    held = 0
    for _ in range(600):
        estimate = prediction_powered_mean(*world(rng, 100, 100, flip=0.05)).estimate
        held += estimate.low <= 0.6 <= estimate.high
    assert 0.93 <= held / 600 <= 0.975


def test_a_useless_judge_costs_nothing():
    rng = np.random.default_rng(1)
    y, f, more = world(rng, 100, 2000, flip=0.5)
    corrected = prediction_powered_mean(y, f, more)
    own, alone = (
        corrected.estimate.high - corrected.estimate.low,
        corrected.labels_only.high - corrected.labels_only.low,
    )
    assert corrected.weight < 0.3
    assert own <= 1.02 * alone
    constant = prediction_powered_mean(y, np.ones(100), np.ones(50))
    assert (constant.weight, constant.estimate.value) == (0.0, pytest.approx(y.mean()))
    assert math.isnan(constant.correlation)


def test_trap_09_labels_of_another_policy_correct_the_wrong_error():
    """The judge leans for the new policy only; labels of the old one can't know. Hence the caller's check of hashes."""
    rng = np.random.default_rng(2)
    old_y, old_f, _ = world(rng, 200, 0, flip=0.1, bias=0.0, truth=0.5)
    _, _, new_verdicts = world(rng, 0, 3000, flip=0.1, bias=0.3, truth=0.5)
    wrong = prediction_powered_mean(old_y, old_f, new_verdicts).estimate
    assert wrong.low > 0.5
    new_y, new_f, more = world(rng, 200, 3000, flip=0.1, bias=0.3, truth=0.5)
    right = prediction_powered_mean(new_y, new_f, more).estimate
    assert right.low < 0.5 < right.high


def test_trap_23_the_interval_leaves_out_as_much_on_either_side():
    """ppi-python gives one-sided limits where no weight is given: all that it misses lies on one side, and is twice 2.5 %."""
    rng, below, above = np.random.default_rng(3), 0, 0
    for _ in range(1500):
        estimate = prediction_powered_mean(*world(rng, 150, 2000, flip=0.1, bias=0.15, truth=0.5)).estimate
        below += estimate.high < 0.5
        above += estimate.low > 0.5
    for side in (below, above):
        assert 0.008 < side / 1500 < 0.042, "2.5 % and four standard errors"


@pytest.mark.parametrize(
    ("y", "f", "more"),
    [
        (np.ones(MIN_LABELS - 1), np.ones(MIN_LABELS - 1), np.ones(100)),
        (np.ones(100), np.ones(100), []),
        (np.ones(100), np.ones(100), [1.0, math.nan]),
    ],
)
def test_where_conditions_fail_it_is_missing_with_the_reason(y, f, more):
    corrected = prediction_powered_mean(y, f, more)
    assert not corrected.estimate.measured
    assert corrected.estimate.reason
    assert corrected.labels_only.value == 1.0
    assert corrected.to_dict()["value"] is None


def test_rogan_and_gladen_by_hand():
    # (.7 + .8 - 1) / (.9 + .8 - 1) = .5 / .7
    corrected = corrected_rate(700, 1000, sensitivity=(90, 100), specificity=(80, 100))
    assert corrected.value == pytest.approx(0.7142857)
    # without added counts: sqrt(.7 * .3 / 1000 + .7143^2 * .09 / 100 + .2857^2 * .16 / 100) / .7 = .04006
    half = 1.96 * math.sqrt(0.7 * 0.3 / 1000 + 0.5102041 * 0.09 / 100 + 0.0816327 * 0.16 / 100) / 0.7
    assert (corrected.high - corrected.low) / 2 == pytest.approx(half, rel=0.1)


def test_a_judge_that_is_hardly_better_than_a_coin_is_not_inverted():
    corrected = corrected_rate(500, 1000, sensitivity=(60, 100), specificity=(59, 100))
    assert not corrected.measured
    assert "1.2" in corrected.reason
    assert corrected_rate(500, 1000, sensitivity=(61, 100), specificity=(60, 100)).measured
    assert not corrected_rate(500, 1000, sensitivity=(20, 20), specificity=(20, 20)).measured, "too few labels"
    assert not corrected_rate(500, 1000, sensitivity=(80, 80), specificity=(0, 0)).measured, "of one kind only"


def test_a_judge_that_was_never_wrong_is_not_taken_for_certain():
    corrected = corrected_rate(700, 100_000, sensitivity=(40, 40), specificity=(40, 40))
    assert corrected.low == 0
    assert corrected.high > 0.015


def test_wrong_counts_are_refused():
    with pytest.raises(ConfigError):
        corrected_rate(11, 10, sensitivity=(90, 100), specificity=(80, 100))
    with pytest.raises(ConfigError):
        prediction_powered_mean([1.0], [1.0, 0.0], [1.0])
