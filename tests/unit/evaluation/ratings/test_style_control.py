"""Style control: a world in which length alone wins, and one in which nothing can be learned of it."""

from __future__ import annotations

import math
import sys
import warnings

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import expit

from rlhf.errors import ConfigError, DataError, MissingExtraError
from rlhf.evaluation.ratings.bradley_terry import bradley_terry_ratings
from rlhf.evaluation.ratings.style_control import (
    length_controlled_win_rate,
    style_controlled_ratings,
    style_differences,
    style_of,
)


def test_style_by_hand():
    text = "# Title\n\n- one **bold** word\n1. two\n```\n# no header\n- no item\n```\n__end__"
    assert style_of(text) == {"words": 17, "headers": 1, "lists": 2, "bold": 2}


def test_differences_by_hand():
    # (3 - 1) / 5 = .4, (1 - 3) / 5 = -.4: mean 0, sd .4; bold is the same everywhere
    first, second = (
        [{"words": 3, "bold": 1}, {"words": 1, "bold": 1}],
        [{"words": 1, "bold": 1}, {"words": 3, "bold": 1}],
    )
    differences = style_differences(first, second)
    assert differences.keys() == {"words"}
    assert differences["words"].tolist() == [1.0, -1.0]


def wordy_world(rng, n, *, effect=2.0):
    """Three equal systems, of which the first writes twice as much; the longer completion tends to win."""
    matches, first, second = [], [], []
    for _ in range(n):
        a, b = rng.choice(3, 2, replace=False)
        lengths = [rng.lognormal(5 + 0.6 * (s == 0), 0.6) for s in (a, b)]
        lead = effect * (lengths[0] - lengths[1]) / (sum(lengths) + 1)
        matches.append((f"s{a}", f"s{b}", float(rng.random() < expit(lead))))
        first.append({"words": lengths[0]})
        second.append({"words": lengths[1]})
    return matches, first, second


def test_length_is_taken_out_of_ratings():
    matches, first, second = wordy_world(np.random.default_rng(0), 1500)
    raw, controlled = bradley_terry_ratings(matches), style_controlled_ratings(matches, first, second)
    assert raw.difference("s0", "s1").low > 0
    actual = controlled.difference("s0", "s1")
    assert actual.low < 0 < actual.high
    assert controlled.style["words"] > 0.4


def test_the_fit_is_the_minimum_of_arenas_loss():
    matches, first, second = wordy_world(np.random.default_rng(1), 300)
    x, names = style_differences(first, second)["words"], ["s0", "s1", "s2"]
    a, b = (np.array([names.index(match[side]) for match in matches]) for side in (0, 1))
    y = np.array([match[2] for match in matches])

    def loss(parameters):
        logit = math.log(10) * (parameters[a] - parameters[b]) + parameters[3] * x
        return -np.sum(y * np.log(expit(logit)) + (1 - y) * np.log(expit(-logit))) + 0.25 * parameters @ parameters

    wanted = minimize(loss, np.zeros(4), method="BFGS", tol=1e-9).x
    ratings = style_controlled_ratings(matches, first, second)
    assert ratings.style["words"] == pytest.approx(wanted[3], abs=1e-4)
    assert [ratings.strengths[n] for n in names] == pytest.approx(
        math.log(10) * (wanted[:3] - wanted[:3].mean()), abs=1e-4
    )


def test_trap_04_the_penalty_hides_nothing():
    with pytest.raises(DataError):
        style_controlled_ratings([("a", "b", 1)] * 4, [{"words": n} for n in range(4)], [{"words": 2}] * 4)
    with pytest.raises(DataError):
        style_controlled_ratings([("a", "b", 1), ("a", "b", 0)], [{"words": 1}], [{"words": 1}])


def lengths_and_outcomes(rng, n, *, theta, phi, shift=0.3):
    mine, theirs = rng.lognormal(6 + shift, 0.5, n).round(), rng.lognormal(6, 0.5, n).round()
    difference = mine - theirs
    p = expit(theta + phi * np.tanh(difference / difference.std(ddof=1)))
    return (rng.random(n) < p).astype(float), mine, theirs


def test_the_length_controlled_rate_is_that_at_equal_length():
    y, mine, theirs = lengths_and_outcomes(np.random.default_rng(3), 3000, theta=-0.3, phi=1.5)
    controlled = length_controlled_win_rate(y, mine, theirs, seed=0, num_resamples=60)
    assert controlled.raw.low > 0.48
    assert controlled.rate.low < expit(-0.3) < controlled.rate.high < 0.48
    assert controlled.length_effect == pytest.approx(1.5, abs=0.25)
    assert controlled.rate == length_controlled_win_rate(y, mine, theirs, seed=0, num_resamples=60).rate


def test_soft_outcomes_and_difficulty_are_used():
    rng = np.random.default_rng(4)
    hard = rng.normal(0, 1, 1500)
    mine, theirs = rng.lognormal(6, 0.5, 1500), rng.lognormal(6, 0.5, 1500)
    p = expit(0.5 - hard)
    controlled = length_controlled_win_rate(p, mine, theirs, seed=0, difficulty=hard, num_resamples=5)
    assert controlled.rate.value == pytest.approx(p.mean(), abs=0.01)
    assert abs(controlled.length_effect) < 0.05


def test_the_fit_is_that_of_scikit_learns_cross_validation():
    from sklearn.linear_model import LogisticRegressionCV

    y, mine, theirs = lengths_and_outcomes(np.random.default_rng(5), 400, theta=0.4, phi=0.8)
    difference = mine - theirs
    x = np.stack([np.tanh(difference / difference.std(ddof=1)), np.ones(400)], axis=1)
    folds = [(np.flatnonzero(np.arange(400) % 5 != k), np.flatnonzero(np.arange(400) % 5 == k)) for k in range(5)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = LogisticRegressionCV(
            cv=folds, l1_ratios=[1.0], penalty="l1", solver="liblinear", fit_intercept=False, scoring="neg_log_loss",
            tol=1e-6, max_iter=1000, random_state=0,
        ).fit(x, y)  # fmt: skip
    controlled = length_controlled_win_rate(y, mine, theirs, seed=0, num_resamples=2)
    assert controlled.rate.value == pytest.approx(float(expit(np.ravel(model.coef_)[1])), abs=2e-3)


def test_trap_22_without_overlap_in_length_there_is_no_rate():
    rng = np.random.default_rng(6)
    y = (rng.random(200) < 0.7).astype(float)
    controlled = length_controlled_win_rate(y, rng.integers(500, 900, 200), rng.integers(10, 90, 200), seed=0)
    assert not controlled.rate.measured
    assert controlled.raw.measured
    assert controlled.to_dict()["rate"]["value"] is None
    assert not length_controlled_win_rate(y[:20], np.arange(20.0), np.arange(20.0)[::-1], seed=0).rate.measured


def test_a_rate_that_moved_far_says_so():
    y, mine, theirs = lengths_and_outcomes(np.random.default_rng(7), 1500, theta=-2.0, phi=4.0, shift=0.5)
    controlled = length_controlled_win_rate(y, mine, theirs, seed=0, num_resamples=2)
    assert controlled.raw.value - controlled.rate.value > 0.2
    assert controlled.moved_far


def test_without_scikit_learn_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    y, mine, theirs = lengths_and_outcomes(np.random.default_rng(8), 100, theta=0.0, phi=1.0)
    with pytest.raises(MissingExtraError, match="eval"):
        length_controlled_win_rate(y, mine, theirs, seed=0, num_resamples=2)


@pytest.mark.parametrize("outcome", [0.5, 1.0])
def test_one_outcome_for_all_prompts_gives_no_rate_and_no_interval_without_width(outcome):
    lengths = np.arange(80)
    controlled = length_controlled_win_rate(np.full(80, outcome), lengths, lengths[::-1], seed=0)
    assert not controlled.rate.measured
    assert controlled.raw.low < outcome


def test_outcomes_without_lengths_are_refused():
    with pytest.raises(ConfigError):
        length_controlled_win_rate([1.0, 0.0], [3.0], [4.0], seed=0)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_length_that_is_not_known_leaves_the_rate_missing(bad):
    outcomes = np.resize([1.0, 0.0, 0.5], 60)
    lengths = np.resize([10.0, 30.0, 25.0, 5.0], 60)
    for mine, theirs in ((np.append(lengths[1:], bad), lengths), (lengths, np.append(lengths[1:], bad))):
        controlled = length_controlled_win_rate(outcomes, mine, theirs, seed=0)
        assert not controlled.rate.measured
        assert controlled.rate.reason
        assert controlled.raw.measured
