from __future__ import annotations

import math

import numpy as np
import pytest

from rlhf.errors import ConfigError
from rlhf.feedback.learning_curve import MeasuredAccuracy, fit_learning_curve
from rlhf.feedback.planning import label_worth, majority_accuracy, overlap_plans

SIZES = (250, 500, 1000)


def curve(pairs, *, ceiling=0.9, first=0.6, exponent=0.5):
    """``first`` after 250 pairs."""
    return ceiling - (ceiling - first) * (pairs / 250) ** -exponent


def measured(sizes, held_out, *, rng=None, **how):
    """Points on a curve, or drawn as shares of so many held-out pairs."""
    return [
        MeasuredAccuracy(
            pairs=n, held_out=held_out,
            accuracy=curve(n, **how) if rng is None else rng.binomial(held_out, curve(n, **how)) / held_out,
        )
        for n in sizes
    ]  # fmt: skip


@pytest.mark.parametrize(("exponent", "ceiling"), [(0.5, 0.9), (0.3, 0.85), (0.9, 0.95)])
def test_many_exact_points_give_back_the_curve_they_lie_on(exponent, ceiling):
    points = measured([250 * 2**k for k in range(10)], 400_000, exponent=exponent, ceiling=ceiling)
    learning_curve = fit_learning_curve(points)
    assert learning_curve.ceiling.value == pytest.approx(ceiling, abs=0.004)
    target = ceiling - 0.02  # (n / 250)^-c = .02 / (ceiling - .6)
    pairs = 250 * ((ceiling - 0.6) / 0.02) ** (1 / exponent)
    needed = learning_curve.pairs_for(target)
    assert needed.pairs == pytest.approx(pairs, rel=0.05)
    assert needed.low < pairs < needed.high < 1.5 * pairs
    assert needed.reach_frac == pytest.approx(1)
    assert learning_curve.accuracy_at(3000).value == pytest.approx(
        curve(3000, exponent=exponent, ceiling=ceiling), abs=0.001
    )


@pytest.mark.parametrize("sizes", [(250, 1000), SIZES])
def test_intervals_of_few_points_hold_the_truth(sizes):
    rng = np.random.default_rng(0)
    shapes = [
        {"ceiling": 0.9, "exponent": 0.5}, {"ceiling": 0.8, "exponent": 0.3}, {"ceiling": 0.95, "exponent": 0.9},
        {"ceiling": 0.72, "exponent": 0.5},
    ]  # fmt: skip
    held, held_later = 0, 0
    for number in range(60):
        shape = shapes[number % 4]
        learning_curve = fit_learning_curve(measured(sizes, 400, rng=rng, **shape))
        target = 0.7 * curve(1000, **shape) + 0.3 * shape["ceiling"]
        pairs = 250 * ((shape["ceiling"] - 0.6) / (shape["ceiling"] - target)) ** (1 / shape["exponent"])
        needed, later = learning_curve.pairs_for(target), learning_curve.accuracy_at(4000)
        held += needed.low <= pairs <= needed.high
        held_later += later.low <= curve(4000, **shape) <= later.high
        assert later.high - later.low < 0.25, "and say something"
    assert (
        min(held, held_later) >= 54
    )  # of 60 intervals that hold it 95 % of the time, 54 or more do so 92 % of the time


def test_more_held_out_pairs_and_more_points_leave_less_open():
    def width(points):
        later = fit_learning_curve(points).accuracy_at(4000)
        return later.high - later.low

    few, many = width(measured(SIZES, 400)), width(measured(SIZES, 20_000))
    assert width(measured((*SIZES, 2000, 4000), 20_000)) < many < few


def test_an_accuracy_beyond_the_ceiling_is_not_reached_and_one_that_is_there_takes_no_more():
    learning_curve = fit_learning_curve(measured([250 * 2**k for k in range(8)], 50_000, ceiling=0.8))
    beyond = learning_curve.pairs_for(0.85)
    assert (beyond.pairs, beyond.low, beyond.high) == (math.inf, math.inf, math.inf)
    assert beyond.reach_frac < 0.01
    assert learning_curve.ceiling.low < 0.8 < learning_curve.ceiling.high < 0.85
    assert learning_curve.pairs_for(0.7).pairs == pytest.approx(
        1000, rel=0.05
    )  # .8 - .2 (n / 250)^-.5 = .7 at n = 1000


def test_nothing_goes_beyond_how_often_the_held_out_labels_are_right():
    steep = [MeasuredAccuracy(pairs=n, accuracy=a, held_out=2000) for n, a in ((250, 0.6), (1000, 0.7))]
    assert fit_learning_curve(steep).ceiling.high > 0.85
    bounded = fit_learning_curve(steep, label_accuracy=0.75)
    assert bounded.ceiling.high <= 0.75
    assert bounded.pairs_for(0.76).reach_frac == 0
    with pytest.raises(ConfigError, match=r"0\.9 .*75\.0\u202f%"):
        fit_learning_curve([*steep, MeasuredAccuracy(pairs=2000, accuracy=0.9, held_out=400)], label_accuracy=0.75)


def test_points_on_no_such_curve_are_told_apart_from_those_on_one():
    assert fit_learning_curve(measured(SIZES, 400)).likelihood_of_scatter > 0.5
    # it rises faster and faster, as where few pairs are trained on for too few steps
    late = [MeasuredAccuracy(pairs=n, accuracy=a, held_out=400) for n, a in zip(SIZES, (0.55, 0.6, 0.9), strict=True)]
    assert fit_learning_curve(late).likelihood_of_scatter < 0.01


def test_runs_that_differ_more_than_their_held_out_pairs_explain_widen_the_interval():
    def seeds(apart):
        return [
            MeasuredAccuracy(pairs=n, accuracy=curve(n) + sign * apart, held_out=20_000)
            for n in (*SIZES, 2000)
            for sign in (-1, 1)
        ]

    steady, unsteady = (fit_learning_curve(seeds(apart)).accuracy_at(4000) for apart in (0.002, 0.02))
    assert unsteady.high - unsteady.low > 2 * (steady.high - steady.low)


@pytest.mark.parametrize(
    ("points", "label_accuracy", "message"),
    [
        ([(250, 0.6, 400)] * 2, 1.0, "at least two different numbers of pairs"),
        ([(250, 0.6, 400), (0, 0.6, 400)], 1.0, "at least one pair of either"),
        ([(250, 0.6, 0), (500, 0.6, 400)], 1.0, "at least one pair of either"),
        ([(250, 1.6, 400), (500, 0.6, 400)], 1.0, "between 0 and 1"),
        ([(250, 0.5, 400), (500, 0.5, 400)], 0.5, "more often than a coin"),
    ],
)
def test_points_that_can_not_be_are_refused(points, label_accuracy, message):
    given = [MeasuredAccuracy(pairs=n, accuracy=a, held_out=h) for n, a, h in points]
    with pytest.raises(ConfigError, match=message):
        fit_learning_curve(given, label_accuracy=label_accuracy)


@pytest.mark.parametrize("wanted", [0.5, 1.0, math.nan])
def test_an_accuracy_to_reach_lies_between_a_coin_s_and_certainty(wanted):
    with pytest.raises(ConfigError, match=r"above 0\.5.* below 1"):
        fit_learning_curve(measured(SIZES, 400)).pairs_for(wanted)


def logistic(features, labels):
    """Weights by Newton's method with a slight ridge: Bradley-Terry on differences of features."""
    weights = np.zeros(features.shape[1])
    for _ in range(12):
        seen = 1 / (1 + np.exp(-features @ weights))
        slope = features.T @ (labels - seen) - weights
        curvature = (features * (seen * (1 - seen))[:, None]).T @ features + np.eye(len(weights))
        weights += np.linalg.solve(curvature, slope)
    return weights


def accuracy_of_training(pairs, label_accuracy, *, slope, runs=60, features=20):
    """Mean share of new pairs ordered as the true direction does, after training on labels that are right so often."""
    rng = np.random.default_rng(7)
    right = []
    for _ in range(runs):
        truth = rng.normal(size=features)
        x = rng.normal(size=(round(pairs), features))
        first_is_better = rng.random(len(x)) < 1 / (1 + np.exp(-slope * x @ truth / np.linalg.norm(truth)))
        labels = first_is_better ^ (rng.random(len(x)) > label_accuracy)
        fit = logistic(x, labels)
        cosine = fit @ truth / np.linalg.norm(fit) / np.linalg.norm(truth)
        right.append(1 - math.acos(cosine) / math.pi)
    return float(np.mean(right))


@pytest.mark.parametrize("label_accuracy", [0.75, 0.85])
def test_labels_that_err_are_worth_their_slope_squared_to_a_trained_model(label_accuracy):
    worth, slope = label_worth(label_accuracy), 0.6  # pairs that are hard to tell apart
    noisy = accuracy_of_training(2400, label_accuracy, slope=slope)
    assert accuracy_of_training(2400 * worth, 1.0, slope=slope) == pytest.approx(noisy, abs=0.012)
    # neither as many right ones, nor the share of right ones
    assert accuracy_of_training(2400, 1.0, slope=slope) > noisy + 0.02
    assert accuracy_of_training(2400 * label_accuracy, 1.0, slope=slope) > noisy + 0.015


def test_labels_that_err_are_worth_less_still_where_pairs_are_easy():
    noisy = accuracy_of_training(2400, 0.75, slope=3.0)
    assert accuracy_of_training(2400 * label_worth(0.75), 1.0, slope=3.0) > noisy + 0.02


def test_what_overlap_is_worth_by_hand():
    actual = fit_learning_curve(measured(SIZES, 4000)).pairs_for(0.78)
    plans = overlap_plans(
        actual, (1, 3), measured_overlap=1, annotator_accuracy=0.8, price_per_judgment=0.5, price_per_response=0.02
    )
    one, three = plans
    assert three.label_accuracy == majority_accuracy(0.8, 3) == pytest.approx(0.896)
    # worth .6^2 = .36 and .792^2 = .627264: .5739 as many pairs, of three judgments each
    assert one.needed == actual
    assert three.needed.pairs / one.needed.pairs == pytest.approx(0.36 / 0.627264)
    assert three.needed.low / one.needed.low == pytest.approx(0.36 / 0.627264)
    assert one.cost == pytest.approx(math.ceil(one.needed.pairs) * 0.54)
    assert three.cost == pytest.approx(math.ceil(three.needed.pairs) * 1.54)
    assert one.cost < three.cost
    dear = overlap_plans(
        actual, (1, 3), measured_overlap=1, annotator_accuracy=0.8, price_per_judgment=0.1, price_per_response=5
    )
    assert dear[1].cost < dear[0].cost, "where completions are dear, judging each more often is cheaper"
    with pytest.raises(ConfigError, match="coin"):
        overlap_plans(
            actual, (1,), measured_overlap=1, annotator_accuracy=0.5, price_per_judgment=1, price_per_response=1
        )
