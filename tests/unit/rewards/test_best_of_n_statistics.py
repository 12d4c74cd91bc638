"""How far best-of-n moves a policy when samples tie."""

from __future__ import annotations

import itertools
import math

import pytest

from rlhf.errors import ConfigError
from rlhf.rewards.best_of_n_statistics import best_of_n_kl, best_of_n_kl_with_ties, score_shares


def test_two_equal_levels_by_hand():
    # Best of 2 of a fair coin: heads with 3/4. KL = 3/4 log(3/2) + 1/4 log(1/2).
    assert best_of_n_kl_with_ties([0.5, 0.5], 2) == pytest.approx(0.75 * math.log(1.5) + 0.25 * math.log(0.5))


def test_it_is_the_divergence_of_the_selected_distribution():
    # Four completions with probabilities p and scores s, ties broken by chance: enumerate all triples.
    p, s, n = [0.1, 0.2, 0.3, 0.4], [0, 1, 1, 2], 3
    chosen = [0.0] * 4
    for drawn in itertools.product(range(4), repeat=n):
        best = max(s[i] for i in drawn)
        tied = [i for i in drawn if s[i] == best]
        for i in tied:
            chosen[i] += math.prod(p[j] for j in drawn) / len(tied)
    exact = sum(q * math.log(q / p[i]) for i, q in enumerate(chosen))
    assert best_of_n_kl_with_ties([0.1, 0.5, 0.4], n) == pytest.approx(exact)


def test_ties_only_ever_shorten_the_way():
    assert best_of_n_kl_with_ties([1.0], 8) == 0
    for n in (1, 2, 8, 32):
        assert best_of_n_kl_with_ties([1 / 7] * 7, n) <= best_of_n_kl(n) + 1e-12
    assert best_of_n_kl_with_ties([1e-4] * 10_000, 8) == pytest.approx(best_of_n_kl(8), abs=1e-3)


def test_shares_of_scores_are_counted_from_the_lowest():
    assert score_shares([2.0, 1.0, 2.0, 3.0]) == [0.25, 0.5, 0.25]


@pytest.mark.parametrize(("shares", "n"), [([0.5, 0.4], 2), ([], 2), ([1.0], 0), ([1.5, -0.5], 2)])
def test_what_is_no_distribution_is_refused(shares, n):
    with pytest.raises(ConfigError):
        best_of_n_kl_with_ties(shares, n)
