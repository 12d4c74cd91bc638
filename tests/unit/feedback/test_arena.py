"""Votes become ratings: names with several weights apart, intervals over users, and whether the place matters."""

from __future__ import annotations

import math
import random

import pytest

from rlhf.errors import DataError
from rlhf.feedback.arena import NO_NAME, ONE_MODEL, arena_ratings


def vote(number, preference, *, a="old", b="new", user=None, first="a", **more):
    return {
        "event": "vote", "id": f"event-{number}", "model_a": a, "model_b": b, "preference": preference, "shown_first": first,
        "annotator_id": user, **more,
    }  # fmt: skip


def test_three_wins_to_one_are_odds_of_three_to_one():
    rows = [vote(n, "b" if n % 4 else "a", first="ab"[n % 2]) for n in range(80)]
    rated = arena_ratings([*rows, {"event": "thumbs"}])
    assert rated.order == ["new", "old"]
    gap = rated.ratings.elo_behind_best("old")
    assert gap.value == pytest.approx(-400 * math.log10(3))
    assert gap.low < gap.value < gap.high < 0
    assert rated.record == {"old": (20, 60, 0), "new": (60, 20, 0)}
    assert (rated.unit, rated.num_users, rated.num_votes) == ("votes", 0, 80)


def test_intervals_are_over_users_where_there_are_enough():
    draws = random.Random(1)
    taste = {f"u{n}": draws.choice("ab") for n in range(12)}  # everybody always likes the same
    rows = [vote(n, taste[f"u{n % 12}"], user=f"u{n % 12}") for n in range(240)]
    over_users = arena_ratings(rows)
    over_votes = arena_ratings([{**row, "annotator_id": None} for row in rows])
    assert (over_users.unit, over_votes.unit) == ("users", "votes")
    worse = over_users.order[1]
    wide, narrow = (one.ratings.elo_behind_best(worse) for one in (over_users, over_votes))
    assert wide.high - wide.low > 2 * (narrow.high - narrow.low), "240 votes of 12 users are 12 pieces of evidence"


def test_a_name_with_several_weights_is_several_models():
    of = {"a": "champion", "weights_b": "x", "version_b": 7}
    rows = [vote(n, "ab"[n % 2], weights_a=f"w{n % 3 % 2}", version_a=n % 3 % 2 + 1, **of) for n in range(30)]
    assert set(arena_ratings(rows).record) == {"champion version 1", "champion version 2", "new"}


def test_votes_that_say_nothing_of_two_models_are_counted():
    rows = [
        vote(1, "a"),
        vote(2, "b"),
        vote(3, "a", b="old"),
        vote(4, "a", weights_a="w", weights_b="w"),
        vote(5, "a", b=None),
    ]
    assert arena_ratings(rows).left_out == {ONE_MODEL: 2, NO_NAME: 1}
    with pytest.raises(DataError, match="no vote on two models"):
        arena_ratings(rows[2:])


def test_a_model_that_won_everything_is_rated_and_it_is_said():
    assert "added to each" in arena_ratings([vote(n, "b") for n in range(10)]).note


def test_a_preference_for_what_stands_first_shows():
    draws = random.Random(2)
    rows = [vote(n, first, first=first) for n in range(60) for first in [draws.choice("ab")]]
    rated = arena_ratings([*rows, vote(61, "tie")])
    assert rated.first_won.low > 0.9
    assert rated.first_won.n == 60
