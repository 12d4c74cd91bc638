from __future__ import annotations

import random

import numpy as np
import pytest

from rlhf.errors import ConfigError
from rlhf.feedback.agreement import Labels
from rlhf.feedback.label_aggregation import dawid_skene, majority_vote
from rlhf.feedback.simulate import crowd


def simulated(seed, people, num_items=300):
    rng = random.Random(seed)
    truth = {item: rng.choice((-1, 1)) for item in range(num_items)}
    judged = [(i, who.name, who.judge(i, t, seed=seed)[0]) for i, t in truth.items() for who in people]
    return {item: "a" if t > 0 else "b" for item, t in truth.items()}, Labels.of(judged, scale=("a", "b"))


def accuracy(truth, consensus):
    return np.mean([truth[item] == value for item, value in zip(consensus.items, consensus.values, strict=True)])


def test_a_majority_is_a_share_and_a_draw_is_nobodys():
    labels = Labels.of([(0, "x", "a"), (0, "y", "a"), (0, "z", "b"), (1, "x", "a"), (1, "y", "b")])
    actual = majority_vote(labels)
    assert actual.values == ["a", None]
    assert actual.label_probabilities == pytest.approx([2 / 3, 1 / 2])


def test_nobody_is_measured_against_their_own_vote():
    labels = Labels.of([(item, who, "a" if who == "x" else "b") for item in range(4) for who in "xy"])
    assert majority_vote(labels).reliability == {"x": 0.0, "y": 0.0}
    alone = majority_vote(Labels.of([(0, "x", "a"), (1, "y", "b")]))
    assert all(np.isnan(value) for value in alone.reliability.values()), "not measured is not 0"


@pytest.mark.parametrize("seed", range(3))
def test_dawid_skene_beats_the_majority_where_few_can_be_trusted(seed):
    truth, labels = simulated(seed, crowd(num_good=2, num_careless=0, num_spammers=3))
    learned, counted = dawid_skene(labels), majority_vote(labels)
    assert accuracy(truth, learned) > accuracy(truth, counted) + 0.05
    assert min(learned.reliability[f"good-{n}"] for n in range(2)) > 0.85
    assert max(learned.reliability[f"spammer-{n}"] for n in range(3)) < 0.65


def test_dawid_skene_is_as_sure_as_it_is_right():
    truth, labels = simulated(5, crowd(num_good=1, num_careless=4), num_items=2000)
    consensus = dawid_skene(labels)
    right = np.array([truth[i] == v for i, v in zip(consensus.items, consensus.values, strict=True)])
    sure = np.array(consensus.label_probabilities)
    assert right.mean() == pytest.approx(sure.mean(), abs=0.03)


def test_where_all_agree_dawid_skene_agrees():
    labels = Labels.of([(item, who, "ab"[item % 2]) for item in range(6) for who in "xyz"])
    consensus = dawid_skene(labels)
    assert consensus.values == ["a", "b"] * 3
    assert min(consensus.label_probabilities) > 0.99


def test_a_belief_of_fewer_than_no_judgments_is_refused():
    with pytest.raises(ConfigError, match="at least 0"):
        dawid_skene(Labels.of([(0, "x", 1)]), smoothing=-1)


def test_single_judgments_are_believed_by_who_believes_in_people_and_by_nobody_else():
    """With one judgment an item, everything can be explained by one truth and people who answer at random."""
    said = [(n, f"p{n % 4}", "b" if n % 3 else "a") for n in range(24)]
    labels = Labels.of(said, scale=("a", "tie", "b"))
    believed = dawid_skene(labels, smoothing=0.5, right_prior=4.0)
    assert believed.values == [value for _, _, value in said]
    assert max(believed.label_probabilities) < 0.99
    with pytest.raises(ConfigError, match="right_prior -1"):
        dawid_skene(labels, right_prior=-1)


def test_dawid_skene_of_four_classes_finds_who_takes_one_for_another():
    rng = random.Random(0)
    scale = ("w", "x", "y", "z")
    truth = {item: rng.choice(scale) for item in range(400)}

    def said(who, right):
        if who == "swaps" and right in "yz":  # takes y for z and z for y, always
            return {"y": "z", "z": "y"}[right]
        return right if rng.random() < 0.8 else rng.choice(scale)

    people = ("one", "two", "three", "swaps")
    labels = Labels.of([(i, who, said(who, t)) for i, t in truth.items() for who in people], scale=scale)
    consensus = dawid_skene(labels, smoothing=0.375, right_prior=4.0)
    table = consensus.confusion[consensus.annotators.index("swaps")]
    assert table[2, 3] > 0.9
    assert table[3, 2] > 0.9
    assert consensus.confusion.sum(2) == pytest.approx(1)
    assert consensus.prior.sum() == pytest.approx(1)
    assert accuracy(truth, consensus) > accuracy(truth, majority_vote(labels)) + 0.05
