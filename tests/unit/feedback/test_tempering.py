"""How sure Dawid-Skene may be: independent crowds are left alone, and those that stumble together are not believed."""

from __future__ import annotations

import numpy as np
import pytest

from rlhf.feedback.agreement import Labels
from rlhf.feedback.label_aggregation import dawid_skene
from rlhf.feedback.tempering import MIN_ITEMS, NUM_FOLDS, Tempering, _folds, tempered_dawid_skene

SCALE = ("a", "b", "c")
BELIEF = {"smoothing": 0.5, "right_prior": 4.0}


def judged(seed, *, num_items, overlap, hard_frac):
    """Truths, and labels of annotators who are right 85 % of the time; on hard items all lean to one value, right or wrong."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, 3, num_items)
    made = []
    for item, right in enumerate(truth):
        hard, lean = rng.random() < hard_frac, rng.integers(0, 3)
        for who in rng.choice(2 * overlap, overlap, replace=False):
            aim = lean if hard and rng.random() < 0.5 else right
            said = aim if rng.random() < 0.85 else rng.integers(0, 3)
            made.append((item, int(who), SCALE[said]))
    return truth, Labels.of(made, scale=SCALE)


def surprise(consensus, truth):
    """Mean negative log-likelihood of the truths, nats."""
    chosen = consensus.probabilities[np.arange(len(truth)), truth[list(consensus.items)]]
    return float(-np.log(np.maximum(chosen, 1e-12)).mean())


@pytest.mark.parametrize("seed", range(3))
def test_a_crowd_that_stumbles_over_the_same_items_is_tempered_towards_the_truth(seed):
    truth, labels = judged(seed, num_items=200, overlap=20, hard_frac=0.4)
    actual, tempering = tempered_dawid_skene(labels, **BELIEF)
    assert tempering.correlation > 0.1
    assert tempering.after < tempering.before
    assert surprise(actual, truth) < surprise(dawid_skene(labels, **BELIEF), truth) - 0.2


@pytest.mark.parametrize("seed", range(3))
def test_a_crowd_that_errs_independently_keeps_its_probabilities(seed):
    truth, labels = judged(seed, num_items=300, overlap=5, hard_frac=0.0)
    actual, tempering = tempered_dawid_skene(labels, **BELIEF)
    assert tempering.correlation < 0.1
    assert surprise(actual, truth) < surprise(dawid_skene(labels, **BELIEF), truth) + 0.02
    assert tempering.num_held_out == 1500


@pytest.mark.parametrize(("num_items", "overlap"), [(MIN_ITEMS - 1, 5), (200, 2)])
def test_what_too_few_judgments_can_not_check_is_left_as_it_was_and_said(num_items, overlap):
    _, labels = judged(0, num_items=num_items, overlap=overlap, hard_frac=0.5)
    actual, tempering = tempered_dawid_skene(labels, **BELIEF)
    assert (actual.probabilities == dawid_skene(labels, **BELIEF).probabilities).all()
    assert tempering.reason
    assert "not checked" in str(tempering)
    assert tempering.to_dict()["correlation"] is None


def test_one_judgment_counts_fully_and_many_at_most_as_one_over_their_correlation():
    tempering = Tempering(correlation=0.25)
    assert tempering.effective(1) == 1
    assert tempering.effective(5) == 2.5  # 5 / (1 + 4 / 4)
    assert tempering.effective(10_000) == pytest.approx(4, abs=0.01)
    assert Tempering().effective(7) == 7


def test_the_judgments_of_an_item_are_held_out_in_turn():
    _, labels = judged(1, num_items=50, overlap=10, hard_frac=0.0)
    folds = _folds(labels, seed=0)
    for item in range(50):
        assert np.bincount(folds[labels.items == item], minlength=NUM_FOLDS).tolist() == [2] * NUM_FOLDS
    assert (folds == _folds(labels, seed=0)).all()
    assert (folds != _folds(labels, seed=1)).any()
