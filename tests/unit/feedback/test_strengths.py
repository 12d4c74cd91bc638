"""Strengths of models and reliabilities of annotators, against simulated crowds whose error rates are known."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from rlhf.errors import ConfigError, DataError
from rlhf.feedback.strengths import Comparison, _Crowd, crowd_bradley_terry

RIGHT = {"good-0": 0.95, "good-1": 0.95, "good-2": 0.95, "careless": 0.65, "spammer": 0.5}


def judged_by_a_crowd(seed, *, prompts, overlap, new_wins=0.5):
    """Two models; who is better is drawn for each prompt, and told by as many of the crowd."""
    rng = random.Random(seed)
    for prompt in range(prompts):
        better, worse = ("new", "old") if rng.random() < new_wins else ("old", "new")
        for who in rng.sample(sorted(RIGHT), overlap):
            said = (better, worse) if rng.random() < RIGHT[who] else (worse, better)
            yield Comparison(who, *said, item=prompt)


@pytest.mark.parametrize("seed", range(4))
def test_of_models_that_are_equally_good_the_careful_are_told_from_the_careless(seed):
    # by the ranking of the models alone nobody can be told from anybody: it gave all of them the prior, 0.875
    strengths = crowd_bradley_terry(list(judged_by_a_crowd(seed, prompts=150, overlap=3)), with_intervals=True)
    known = strengths.reliability_intervals
    assert min(known[f"good-{n}"].low for n in range(3)) > 0.8
    assert known["careless"].high < min(known[f"good-{n}"].low for n in range(3))
    assert strengths.reliability["spammer"] < strengths.reliability["careless"] < 0.8
    assert abs(strengths.strengths["new"]) < 0.4


@pytest.mark.parametrize("new_wins", [0.5, 0.7])
def test_intervals_of_reliabilities_hold_the_truth(new_wins):
    held = []
    for seed in range(30):
        said = list(judged_by_a_crowd(seed, prompts=80, overlap=3, new_wins=new_wins))
        for who, actual in crowd_bradley_terry(said, with_intervals=True).reliability_intervals.items():
            if actual.measured:
                held.append(actual.low <= RIGHT[who] <= actual.high)
    assert len(held) > 140
    assert np.mean(held) > 0.88, "the standard error is 0.02"


def test_what_only_the_prior_says_of_a_reliability_is_not_called_measured():
    once = crowd_bradley_terry(list(judged_by_a_crowd(0, prompts=300, overlap=1)), with_intervals=True)
    assert all(not actual.measured for actual in once.reliability_intervals.values())
    assert "let several people judge the same prompts" in once.reliability_intervals["careless"].reason
    assert once.reliability["spammer"] > 0.8, "and so it must not be shown"
    few = crowd_bradley_terry(list(judged_by_a_crowd(0, prompts=8, overlap=3)), with_intervals=True)
    assert all(not actual.measured for actual in few.reliability_intervals.values())
    assert crowd_bradley_terry(list(judged_by_a_crowd(0, prompts=8, overlap=3))).reliability_intervals == {}


def test_a_ranking_of_models_that_differ_tells_who_is_careful_though_nobody_judged_the_same_prompt():
    said = list(judged_by_a_crowd(3, prompts=1500, overlap=1, new_wins=0.95))
    known = crowd_bradley_terry(said, with_intervals=True).reliability_intervals
    assert min(known[f"good-{n}"].low for n in range(3)) > known["careless"].high


def likelihood_of(*said, eta):
    crowd = _Crowd.of(said, 0.1, (8.0, 2.0))
    logits = [math.log(eta[who] / (1 - eta[who])) for who in crowd.people]
    return crowd.log_likelihood(np.array([0.0, 0.0, *logits]))[0]


def test_two_who_say_the_same_of_a_prompt_are_likelier_than_two_who_differ():
    eta, first = {"ann": 0.8, "bob": 0.9}, Comparison("ann", "x", "y", item="p")
    # either is better with probability 1/2: both right or both wrong, 0.5 (0.8 * 0.9) + 0.5 (0.2 * 0.1) = 0.37
    assert likelihood_of(first, Comparison("bob", "x", "y", item="p"), eta=eta) == pytest.approx(math.log(0.37))
    # one of the two wrong: 0.5 (0.8 * 0.1) + 0.5 (0.2 * 0.9) = 0.13; and 0.37 + 0.13 is half of all there is to say
    assert likelihood_of(first, Comparison("bob", "y", "x", item="p"), eta=eta) == pytest.approx(math.log(0.13))
    # a tie is half a win and half a loss
    tie = likelihood_of(first, Comparison("bob", "x", "y", is_tie=True, item="p"), eta=eta)
    assert tie == pytest.approx((math.log(0.37) + math.log(0.13)) / 2)
    # of different prompts nothing is known by agreeing: 0.5 * 0.5
    assert likelihood_of(first, Comparison("bob", "x", "y", item="q"), eta=eta) == pytest.approx(math.log(0.25))


def test_what_is_looked_at_by_one_is_an_item_by_itself_whether_it_has_a_name_or_not():
    named = [Comparison(c.annotator, c.winner, c.loser, item=n) for n, c in enumerate(comparisons(2))]
    with_names, without = crowd_bradley_terry(named), crowd_bradley_terry(list(comparisons(2)))
    assert with_names.strengths == pytest.approx(without.strengths)
    assert with_names.loss == pytest.approx(without.loss)


def test_the_gradient_is_the_slope_of_the_loss_with_ties_and_several_competitors():
    rng = random.Random(7)
    said = [
        Comparison(rng.choice("uvw"), *rng.sample("xyz", 2), is_tie=rng.random() < 0.3, item=rng.randrange(12)) for _ in range(60)
    ]  # fmt: skip
    crowd = _Crowd.of(said, 0.3, (5.0, 2.0))
    at = np.random.default_rng(0).normal(size=6)
    slope = [(crowd.loss(at + step)[0] - crowd.loss(at - step)[0]) / 2e-5 for step in 1e-5 * np.eye(6)]
    assert crowd.loss(at)[1] == pytest.approx(slope, rel=1e-5, abs=1e-6)


def comparisons(seed):
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
    strengths = crowd_bradley_terry(list(comparisons(1)), prior=0.01)
    assert sum(strengths.strengths.values()) == pytest.approx(0, abs=1e-9)
    assert strengths.strengths["x"] > 0.6 > strengths.strengths["y"] > -0.6 > strengths.strengths["z"]
    assert strengths.reliability["good"] > strengths.reliability["fair"] > strengths.reliability["random"]
    assert strengths.reliability["random"] == pytest.approx(0.5, abs=0.1)
    assert strengths.win_probability("x", "z") > 0.8


def test_an_unbeaten_competitor_stays_finite_and_ties_pull_together():
    strengths = crowd_bradley_terry([Comparison("ann", "x", "y") for _ in range(50)])
    assert 0 < strengths.strengths["x"] < 10
    tied = crowd_bradley_terry([Comparison("ann", "x", "y", is_tie=True) for _ in range(50)])
    assert tied.strengths["x"] == pytest.approx(0, abs=1e-6)


def test_what_cannot_be_compared_is_refused():
    with pytest.raises(DataError, match="no comparison"):
        crowd_bradley_terry([])
    with pytest.raises(DataError, match=r"'ann'.*'x'.*itself"):
        crowd_bradley_terry([Comparison("ann", "x", "x")])
    with pytest.raises(ConfigError, match="must be above 0"):
        crowd_bradley_terry([Comparison("ann", "x", "y")], prior=0)
