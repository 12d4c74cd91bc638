"""Who clicks without reading is named, and nobody who answers as the others do."""

from __future__ import annotations

import random

from rlhf.feedback.careless_users import careless_users


def thumbs(user, labels):
    return [
        {"prompt": "q", "completion": f"{user} {n}", "label": label, "annotator_id": user}
        for n, label in enumerate(labels)
    ]


def votes(user, chosen, shown=None):
    return [
        {
            "prompt": "q", "completion_a": f"{user} {n}", "completion_b": "y", "preference": one, "annotator_id": user,
            "shown_first": shown[n] if shown else "a",
        }
        for n, one in enumerate(chosen)
    ]  # fmt: skip


def careful(name, num, share, seed):
    draws = random.Random(seed)
    return thumbs(name, [draws.random() < share for _ in range(num)])


def test_always_the_same_is_named_where_others_are_divided():
    rows = [
        *careful("ann", 100, 0.6, 1),
        *careful("bob", 100, 0.6, 2),
        *thumbs("up", [True] * 30),
        *thumbs("down", [False] * 30),
    ]
    assert set(careless_users(rows)) == {"up", "down"}


def test_always_the_same_says_nothing_where_all_say_it_or_where_there_are_no_others():
    assert careless_users([*careful("ann", 200, 0.98, 1), *thumbs("up", [True] * 30)]) == {}
    assert careless_users(thumbs("alone", [True] * 50)) == {}


def test_few_verdicts_say_nothing():
    rows = [*careful("ann", 100, 0.5, 1), *thumbs("up", [True] * 19)]
    assert careless_users(rows) == {}
    assert set(careless_users(rows, min_verdicts=10)) == {"up"}


def test_always_what_stands_first_is_named_and_a_liking_for_one_model_is_not():
    draws = random.Random(3)
    shown = [draws.choice("ab") for _ in range(40)]
    rows = [*votes("place", shown, shown), *votes("likes-a", ["a"] * 40, shown)]
    assert set(careless_users(rows)) == {"place"}


def test_a_false_alarm_among_ten_careful_users_is_rare():
    alarms = sum(
        bool(careless_users([row for n in range(10) for row in careful(f"u{n}", 25, 0.8, f"{run}-{n}")]))
        for run in range(200)
    )
    assert alarms <= 6  # stated: at most 1 %; of 200 runs 6 or more come in 1.6 % of cases
