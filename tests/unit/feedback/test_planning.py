from __future__ import annotations

import math
import random

import numpy as np
import pytest

from rlhf.errors import ConfigError
from rlhf.feedback.planning import (
    DATASET_GUIDELINES,
    detectable_difference,
    estimate_annotation_cost,
    judgments_for_accuracy,
    majority_accuracy,
    pairs_for_win_rate,
)


def test_costs_are_multiplied():
    cost = estimate_annotation_cost(1000)
    assert (cost.comparisons, cost.annotation, cost.generation, cost.total) == (3000, 1500.0, 40.0, 1540.0)


def test_a_known_sample_size():
    # p = .6 against .5, 95 %, 80 %: ((1.95996 * .5 + .84162 * .48990) / .1)^2 = 193.9
    assert pairs_for_win_rate(0.1) == 194


def test_ties_narrow_the_spread_and_so_the_sample():
    assert pairs_for_win_rate(0.1, tie_frac=0.4) < pairs_for_win_rate(0.1)
    with pytest.raises(ConfigError, match=r"at most 0\.6"):
        pairs_for_win_rate(0.2, tie_frac=0.8)


def test_the_promised_power_is_there():
    n, rng = pairs_for_win_rate(0.08, tie_frac=0.2), random.Random(0)
    p_win = 0.58 - 0.1
    found = 0
    for _ in range(1500):
        outcomes = [1.0 if (u := rng.random()) < p_win else 0.5 if u < p_win + 0.2 else 0.0 for _ in range(n)]
        mean = sum(outcomes) / n
        deviation = math.sqrt(sum((x - mean) ** 2 for x in outcomes) / (n - 1))
        found += abs(mean - 0.5) / (deviation / math.sqrt(n)) > 1.95996
    assert found / 1500 == pytest.approx(0.8, abs=0.04)


@pytest.mark.parametrize("overlap", [1, 7])
def test_the_promised_power_is_there_with_annotators_who_err(overlap):
    # every judgment is drawn by itself: 75 % of them right, the majority is the label
    n = pairs_for_win_rate(0.05, label_accuracy=majority_accuracy(0.75, overlap))
    rng, found = np.random.default_rng(3), 0
    for _ in range(1200):
        first_is_better = rng.random(n) < 0.55
        votes = rng.binomial(overlap, np.where(first_is_better, 0.75, 0.25))
        mean = np.mean(votes > overlap / 2)
        found += abs(mean - 0.5) > 1.95996 * math.sqrt(mean * (1 - mean) / n)
    assert found / 1200 == pytest.approx(0.8, abs=0.04)


def test_labels_that_are_right_three_times_of_four_halve_what_is_seen():
    # the observed difference is .1 (2 * .75 - 1) = .05, and s1 that of p = .55
    assert pairs_for_win_rate(0.1, label_accuracy=0.75) == pairs_for_win_rate(0.05)
    assert detectable_difference(800, label_accuracy=0.75) == pytest.approx(2 * detectable_difference(800), abs=1e-3)
    with pytest.raises(ConfigError, match=r"label_accuracy is 0\.5"):
        pairs_for_win_rate(0.1, label_accuracy=0.5)


def test_detectable_difference_is_the_inverse():
    n = pairs_for_win_rate(0.07, tie_frac=0.1)
    assert detectable_difference(n, tie_frac=0.1) == pytest.approx(0.07, abs=1e-3)
    assert math.isnan(detectable_difference(2))


def test_a_majority_of_three_by_hand():
    assert majority_accuracy(0.8, 1) == pytest.approx(0.8)
    assert majority_accuracy(0.8, 3) == pytest.approx(0.8**3 + 3 * 0.8**2 * 0.2)
    assert majority_accuracy(0.8, 2) == pytest.approx(0.8), "a coin breaks the draw"
    assert majority_accuracy(0.5, 7) == pytest.approx(0.5)
    assert judgments_for_accuracy(0.8, 0.9) == 5
    assert judgments_for_accuracy(0.5, 0.9) is None


def test_impossible_plans_are_refused():
    with pytest.raises(ConfigError, match=r"difference is 0\.6"):
        pairs_for_win_rate(0.6)
    with pytest.raises(ConfigError, match="at least one judgment"):
        estimate_annotation_cost(10, judgments_per_pair=0)


def test_guidelines_of_size_rise_with_the_model():
    for sizes in DATASET_GUIDELINES.values():
        assert 0 < sizes.minimum < sizes.recommended < sizes.saturates
    assert DATASET_GUIDELINES["7b"].recommended < DATASET_GUIDELINES["70b"].recommended
