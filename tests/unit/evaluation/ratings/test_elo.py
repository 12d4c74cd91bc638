from __future__ import annotations

import numpy as np
import pytest

import rlhf
from rlhf.errors import ConfigError, DataError
from rlhf.evaluation.ratings.bradley_terry import bradley_terry_ratings


def test_two_matches_by_hand():
    # equal: E = 1/2, +-16; then E = 1 / (1 + 10^(-32/400)) = .545922, a tie costs the first 32 * .045922
    ratings = rlhf.compute_elo_ratings([("a", "b", 1), ("a", "b", 0.5)])
    assert ratings == pytest.approx({"a": 1016 - 1.469497, "b": 984 + 1.469497}, abs=1e-5)
    assert rlhf.compute_elo_ratings([("a", "b", 0)], initial=1500, k=10) == {"a": 1495, "b": 1505}


def test_ratings_are_those_of_evalica():
    evalica = pytest.importorskip("evalica")
    rng = np.random.default_rng(0)
    first, second = rng.choice(["x", "y", "z"], 90).tolist(), rng.choice(["u", "v", "w"], 90).tolist()
    outcomes = rng.choice([1.0, 0.5, 0.0], 90).tolist()
    winner = {1.0: evalica.Winner.X, 0.5: evalica.Winner.Draw, 0.0: evalica.Winner.Y}
    wanted = evalica.elo(first, second, [winner[y] for y in outcomes], initial=1000, base=10, scale=400, k=32).scores
    ratings = rlhf.compute_elo_ratings(zip(first, second, outcomes, strict=True))
    assert ratings == pytest.approx({name: wanted[name] for name in ratings})


def test_trap_05_the_order_of_the_matches_changes_elo_and_not_bradley_terry():
    rng = np.random.default_rng(1)
    matches = [("a", "b", 1)] * 30 + [("a", "b", 0)] * 20 + [("b", "c", 1)] * 25 + [("b", "c", 0)] * 25
    shuffled = [matches[i] for i in rng.permutation(len(matches))]
    elo = [rlhf.compute_elo_ratings(order)["a"] for order in (matches, shuffled)]
    assert abs(elo[0] - elo[1]) > 10
    fits = [bradley_terry_ratings(order).difference("a", "c").value for order in (matches, shuffled)]
    assert fits[0] == pytest.approx(fits[1])


def test_wrong_matches_and_settings_are_refused():
    with pytest.raises(DataError):
        rlhf.compute_elo_ratings([("a", "b", "a")])
    with pytest.raises(ConfigError):
        rlhf.compute_elo_ratings([("a", "b", 1)], k=0)
