from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import spearmanr

from rlhf.errors import ConfigError
from rlhf.evaluation.reward_quality import calibration, fitted_scale, pair_accuracy, reward_quality, spearman


def test_a_tie_is_right_half_the_time():
    # right, wrong, tie, right: 2.5 of 4
    quality = reward_quality([2.0, 0.0, 1.0, 5.0], [1.0, 1.0, 1.0, 1.0])
    assert quality.accuracy.value == 0.625
    assert quality.ties == 1
    assert quality.margin.value == 1.0


def test_labels_that_are_known_slips_are_put_right():
    # the model disagrees with the second label, which is a slip: right about all three
    quality = reward_quality([2.0, 0.0, 3.0], [1.0, 1.0, 1.0], flipped=[False, True, False])
    assert quality.accuracy.value == pytest.approx(2 / 3)
    assert quality.accuracy_clean.value == 1.0


def test_without_marks_the_clean_accuracy_is_missing_and_not_the_other_one():
    quality = reward_quality([2.0], [1.0])
    assert not quality.accuracy_clean.measured
    assert "wrong labels" in quality.accuracy_clean.reason


def test_no_pairs_measure_nothing():
    quality = reward_quality([], [])
    assert not quality.accuracy.measured
    assert quality.calibration is None
    assert quality.to_dict()["fitted_scale"] is None


def test_a_model_that_knows_nothing_is_a_coin():
    calibration_error = calibration(np.zeros(100))
    assert calibration_error.log_loss == pytest.approx(math.log(2))
    assert calibration_error.brier == pytest.approx(0.25)
    assert calibration_error.expected_error == 0.0
    assert [(b.low, b.count, b.confidence, b.accuracy.value) for b in calibration_error.bins] == [(0.5, 100, 0.5, 0.5)]


def test_calibration_by_hand():
    # sigmoid(ln 3) = 3/4: sure to 75 %, right in one of two
    calibration_error = calibration([math.log(3), -math.log(3)])
    assert calibration_error.log_loss == pytest.approx((math.log(4 / 3) + math.log(4)) / 2)
    assert calibration_error.brier == pytest.approx((1 / 16 + 9 / 16) / 2)
    assert calibration_error.expected_error == pytest.approx(0.25)
    (only,) = calibration_error.bins
    assert (only.low, only.high, only.count) == (0.75, pytest.approx(0.8), 2)
    assert (only.confidence, only.accuracy.value) == (pytest.approx(0.75), 0.5)


def true_probabilities(n, seed=0, scale=1.0):
    """Differences whose sigmoid, after ``scale``, is the chance that the label agrees."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 1.5, n)
    agrees = rng.random(n) < 1 / (1 + np.exp(-np.abs(logits)))
    return np.where(agrees, np.abs(logits), -np.abs(logits)) / scale


@pytest.mark.parametrize(("pairs", "null"), [(200, 0.070), (1000, 0.032), (5000, 0.014)])
def test_trap_18_the_calibration_error_of_true_probabilities_is_not_0(pairs, null):
    difference = np.abs(np.random.default_rng(0).normal(0, 1.5, pairs))
    right = np.random.default_rng(1).random(pairs) < 1 / (1 + np.exp(-difference))
    calibration_error = calibration(np.where(right, difference, -difference))
    assert calibration_error.expected_error_null == pytest.approx(null, rel=0.25)
    assert calibration_error.expected_error < 1.8 * calibration_error.expected_error_null


def test_true_probabilities_err_as_much_as_the_null_says_and_bold_ones_more():
    calibrated = calibration(true_probabilities(2000))
    bold = calibration(true_probabilities(2000) * 3)
    # about 0.02 for 2,000 pairs (research/evaluation.md, section 2: 0.032 at 1,000, 0.014 at 5,000)
    assert 0.01 < calibrated.expected_error_null < 0.03
    assert calibrated.expected_error < 2 * calibrated.expected_error_null
    assert bold.expected_error > 4 * bold.expected_error_null
    assert bold.log_loss > calibrated.log_loss


@pytest.mark.parametrize("scale", [0.2, 1.0, 5.0])
def test_the_fitted_scale_undoes_a_wrong_one(scale):
    assert fitted_scale(true_probabilities(20_000, scale=scale)) == pytest.approx(scale, rel=0.05)


@pytest.mark.parametrize("difference", [[1.0, 2.0], [-1.0, -2.0], [0.0, 0.0]])
def test_pairs_without_a_best_scale_have_none(difference):
    assert math.isnan(fitted_scale(difference))


def test_a_normalized_score_is_calibrated_at_its_own_scale():
    raw = true_probabilities(3000)
    assert calibration(raw / 4, scale=4.0).log_loss == pytest.approx(calibration(raw).log_loss)


def test_a_model_that_knows_ties_is_asked_what_it_says_of_pairs_that_were_decided():
    # lead ln 3, threshold ln 2: win sigmoid(ln 1.5) = 3/5, loss sigmoid(-ln 6) = 1/7; of the decided 3/5 / (3/5 + 1/7) = 21/26
    calibration_error = calibration([math.log(3)], threshold=math.log(2))
    assert calibration_error.log_loss == pytest.approx(-math.log(21 / 26))
    assert calibration_error.brier == pytest.approx((5 / 26) ** 2)
    assert calibration_error.bins[0].confidence == pytest.approx(21 / 26)
    assert calibration([-math.log(3)], threshold=math.log(2)).log_loss == pytest.approx(-math.log(5 / 26))
    assert calibration_error.to_dict()["threshold"] == math.log(2)


def test_a_model_whose_ties_are_true_is_calibrated_only_with_its_threshold():
    rng = np.random.default_rng(3)
    lead, threshold = rng.normal(0, 1.5, 6000), 1.0
    win, loss = 1 / (1 + np.exp(threshold - lead)), 1 / (1 + np.exp(threshold + lead))
    drawn = rng.random(6000)
    decided = np.where(drawn < win, lead, np.where(drawn > 1 - loss, -lead, np.nan))
    decided = decided[np.isfinite(decided)]
    knowing, blind = (calibration(decided, threshold=t) for t in (threshold, 0.0))
    assert knowing.expected_error < 2 * knowing.expected_error_null
    assert blind.expected_error > 3 * blind.expected_error_null
    assert knowing.log_loss < blind.log_loss


def test_huge_differences_do_not_overflow():
    assert calibration([1e5], threshold=1.0).log_loss == 0
    calibration_error = calibration([1e5, -1e5, 800.0])
    assert calibration_error.log_loss == pytest.approx(1e5 / 3)
    assert calibration_error.brier == pytest.approx(1 / 3)


def test_a_score_that_is_not_finite_is_not_a_wrong_preference():
    assert not pair_accuracy([1.0, math.nan]).measured
    assert reward_quality([1.0, math.nan], [0.0, 0.0]).calibration is None


def test_rank_correlation_is_scipys_with_ties_too():
    rng = np.random.default_rng(4)
    x, y = rng.integers(0, 6, 50), rng.integers(0, 6, 50)
    y = y + x
    correlation = spearman(x, y)
    assert correlation.value == pytest.approx(spearmanr(x, y).statistic)
    assert correlation.low < correlation.value < correlation.high


@pytest.mark.parametrize(
    ("x", "y"), [([1, 2, 3], [1, 2, 3]), ([1, 1, 1, 1], [1, 2, 3, 4]), ([1, 2, 3, math.nan], [1] * 4)]
)
def test_a_correlation_that_is_not_there_is_missing(x, y):
    assert not spearman(x, y).measured


def test_sides_of_different_length_are_refused():
    with pytest.raises(ConfigError, match="2 chosen and 1 rejected"):
        reward_quality([1.0, 2.0], [1.0])
    with pytest.raises(ConfigError, match="1 flip marks for 2 pairs"):
        reward_quality([1.0, 2.0], [1.0, 1.0], flipped=[True])
