from __future__ import annotations

import math

import numpy as np
import pytest

from rlhf.errors import ConfigError
from rlhf.evaluation.sample_size import prompts_for_win_rate
from rlhf.feedback.planning import (
    DATASET_GUIDELINES,
    estimate_annotation_cost,
    judgments_for_accuracy,
    majority_accuracy,
)


def test_costs_are_multiplied():
    cost = estimate_annotation_cost(1000)
    assert (cost.comparisons, cost.annotation, cost.generation, cost.total) == (3000, 1500.0, 40.0, 1540.0)


@pytest.mark.parametrize("overlap", [1, 7])
def test_the_promised_power_is_there_with_annotators_who_err(overlap):
    # every judgment is drawn by itself: 75 % of them right, the majority is the label
    n = prompts_for_win_rate(0.05, label_accuracy=majority_accuracy(0.75, overlap))
    rng, actual = np.random.default_rng(3), 0
    for _ in range(1200):
        first_is_better = rng.random(n) < 0.55
        votes = rng.binomial(overlap, np.where(first_is_better, 0.75, 0.25))
        mean = np.mean(votes > overlap / 2)
        actual += abs(mean - 0.5) > 1.95996 * math.sqrt(mean * (1 - mean) / n)
    assert actual / 1200 == pytest.approx(0.8, abs=0.04)


def test_a_majority_of_three_by_hand():
    assert majority_accuracy(0.8, 1) == pytest.approx(0.8)
    assert majority_accuracy(0.8, 3) == pytest.approx(0.8**3 + 3 * 0.8**2 * 0.2)
    assert majority_accuracy(0.8, 2) == pytest.approx(0.8), "a coin breaks the draw"
    assert majority_accuracy(0.5, 7) == pytest.approx(0.5)
    assert judgments_for_accuracy(0.8, 0.9) == 5
    assert judgments_for_accuracy(0.5, 0.9) is None


def test_impossible_plans_are_refused():
    with pytest.raises(ConfigError, match="at least one judgment"):
        estimate_annotation_cost(10, judgments_per_pair=0)


def test_guidelines_of_size_rise_with_the_model():
    for sizes in DATASET_GUIDELINES.values():
        assert 0 < sizes.minimum < sizes.recommended < sizes.saturates
    assert DATASET_GUIDELINES["7b"].recommended < DATASET_GUIDELINES["70b"].recommended
