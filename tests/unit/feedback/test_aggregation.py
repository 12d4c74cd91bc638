from __future__ import annotations

import random

import numpy as np
import pytest

from rlhf.errors import ConfigError, DataError
from rlhf.feedback.aggregation import Comparison, crowd_bradley_terry, dawid_skene, majority_vote
from rlhf.feedback.agreement import Labels
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
    found = majority_vote(labels)
    assert found.values == ["a", None]
    assert found.confidences == pytest.approx([2 / 3, 1 / 2])


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
    found = dawid_skene(labels)
    right = np.array([truth[i] == v for i, v in zip(found.items, found.values, strict=True)])
    sure = np.array(found.confidences)
    assert right.mean() == pytest.approx(sure.mean(), abs=0.03)


def test_where_all_agree_dawid_skene_agrees():
    labels = Labels.of([(item, who, "ab"[item % 2]) for item in range(6) for who in "xyz"])
    found = dawid_skene(labels)
    assert found.values == ["a", "b"] * 3
    assert min(found.confidences) > 0.99


def comparisons(seed, reversed_annotator=False):
    rng, strength = random.Random(seed), {"x": 1.0, "y": 0.0, "z": -1.0}
    for _ in range(1500):
        first, second = rng.sample(sorted(strength), 2)
        won = rng.random() < 1 / (1 + np.exp(strength[second] - strength[first]))
        who = rng.choice(("good", "fair", "random"))
        if who == "random":
            won = rng.random() < 0.5
        if who == "fair" and rng.random() < 0.2:
            won = not won
        yield Comparison(who, first if won else second, second if won else first)


def test_strengths_and_reliabilities_are_found_together():
    found = crowd_bradley_terry(list(comparisons(1)), prior=0.01)
    assert sum(found.strengths.values()) == pytest.approx(0, abs=1e-9)
    assert found.strengths["x"] > 0.6 > found.strengths["y"] > -0.6 > found.strengths["z"]
    assert found.reliability["good"] > found.reliability["fair"] > found.reliability["random"]
    assert found.reliability["random"] == pytest.approx(0.5, abs=0.1)
    assert found.win_probability("x", "z") > 0.8


def test_an_unbeaten_competitor_stays_finite_and_ties_pull_together():
    found = crowd_bradley_terry([Comparison("ann", "x", "y") for _ in range(50)])
    assert 0 < found.strengths["x"] < 10
    tied = crowd_bradley_terry([Comparison("ann", "x", "y", is_tie=True) for _ in range(50)])
    assert tied.strengths["x"] == pytest.approx(0, abs=1e-6)


def test_what_cannot_be_compared_is_refused():
    with pytest.raises(DataError, match="no comparison"):
        crowd_bradley_terry([])
    with pytest.raises(DataError, match="'ann' compared 'x' with itself"):
        crowd_bradley_terry([Comparison("ann", "x", "x")])
    with pytest.raises(ConfigError, match="must be above 0"):
        crowd_bradley_terry([Comparison("ann", "x", "y")], prior=0)
    with pytest.raises(ConfigError, match="at least 0"):
        dawid_skene(Labels.of([(0, "x", 1)]), smoothing=-1)


def test_single_judgements_are_believed_by_who_believes_in_people_and_by_nobody_else():
    """With one judgement an item, everything can be explained by one truth and people who answer at random."""
    said = [(n, f"p{n % 4}", "b" if n % 3 else "a") for n in range(24)]
    labels = Labels.of(said, scale=("a", "tie", "b"))
    believed = dawid_skene(labels, smoothing=0.5, right_prior=4.0)
    assert believed.values == [value for _, _, value in said]
    assert max(believed.confidences) < 0.99
    with pytest.raises(ConfigError, match="right_prior -1"):
        dawid_skene(labels, right_prior=-1)
