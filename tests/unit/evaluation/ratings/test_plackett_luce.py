from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from rlhf.errors import ConfigError, DataError
from rlhf.evaluation.ratings.bradley_terry import bradley_terry_ratings
from rlhf.evaluation.ratings.plackett_luce import plackett_luce_ratings


def ranked(rng, strengths, n, names="abcdefgh"):
    """Gumbel noise added to strengths and sorted is Plackett-Luce."""
    return [[names[i] for i in np.argsort(-(strengths + rng.gumbel(size=len(strengths))))] for _ in range(n)]


def test_rankings_of_two_are_bradley_terry():
    rankings = ranked(np.random.default_rng(0), np.array([0.4, 0.0]), 60)
    mine, other = plackett_luce_ratings(rankings), bradley_terry_ratings([(a, b, 1) for a, b in rankings])
    assert mine.strengths == pytest.approx(other.strengths)
    leads = [actual.difference("a", "b") for actual in (mine, other)]
    assert leads[0].low == pytest.approx(leads[1].low)
    assert leads[0].n == leads[1].n


def test_strengths_are_those_of_choix_also_from_partial_rankings():
    choix = pytest.importorskip("choix")
    rankings = [r[:3] for r in ranked(np.random.default_rng(1), np.array([1.0, 0.5, 0.0, -0.5, -1.0]), 200)]
    strengths = plackett_luce_ratings(rankings).strengths
    number = {name: place for place, name in enumerate(strengths)}
    wanted = choix.ilsr_rankings(5, [[number[name] for name in ranking] for ranking in rankings])
    assert list(strengths.values()) == pytest.approx(list(wanted), abs=1e-5)


def test_intervals_hold_the_truth_and_those_of_all_pairs_do_not():
    rng, truth = np.random.default_rng(2), np.array([0.5, 0.2, 0.0, -0.2, -0.5])
    held = {"rankings": 0, "pairs": 0}
    for _ in range(200):
        rankings = ranked(rng, truth, 60)
        of = {
            "rankings": plackett_luce_ratings(rankings),
            "pairs": bradley_terry_ratings([(a, b, 1) for r in rankings for a, b in combinations(r, 2)]),
        }
        for name, actual in of.items():
            lead = actual.difference("a", "e")
            held[name] += lead.low <= 1.0 <= lead.high
    assert 0.90 <= held["rankings"] / 200 <= 0.99
    assert held["pairs"] / 200 < 0.88


def test_a_prior_and_its_lack():
    with pytest.raises(DataError, match="'a'"):
        plackett_luce_ratings([["a", "b", "c"], ["a", "c", "b"]])
    strengths = plackett_luce_ratings([["a", "b", "c"], ["a", "c", "b"]], prior=1.0).strengths
    assert strengths["a"] > strengths["b"] == pytest.approx(strengths["c"])


@pytest.mark.parametrize("rankings", [[], [["a"]], [["a", "b", "a"]]])
def test_wrong_rankings_are_refused(rankings):
    with pytest.raises(DataError):
        plackett_luce_ratings(rankings)
    with pytest.raises(ConfigError):
        plackett_luce_ratings([["a", "b"], ["b", "a"]], prior=-1)
