"""Served, judged by simulated users, trained, gated, promoted and served again; and a round of inverted clicks that the gate refuses."""

from __future__ import annotations

import random

import pytest

from tools.closed_loop import ROUNDS, Users, loop, page


def test_users_slip_as_often_as_they_should_and_two_do_not_read():
    users = Users(10, 0.1, random.Random(1))
    right = sum(users.likes(0, 1.5) for _ in range(2000)) / 2000
    assert 0.88 < right < 0.92
    assert [users.likes(number, -1.0) for number in (8, 9)] == [True, False]
    assert users.prefers(8, [1.5, 0.0], "b") == "b"
    poisoned = Users(10, 0.0, random.Random(1), poisoned=True)
    assert (poisoned.likes(0, 1.5), poisoned.prefers(0, [1.5, 0.0], "a")) == (False, "b")


@pytest.mark.slow
def test_three_rounds_improve_the_champion_and_a_poisoned_one_is_refused_while_requests_go_on(tmp_path):
    numbers = loop(tmp_path, num_prompts=200, num_users=10, noise=0.1, steps=120, limit=400)
    by_kind = dict(zip(ROUNDS, numbers["rounds"], strict=True))
    assert not by_kind["poisoned"]["promoted"]
    assert by_kind["poisoned"]["version"] == numbers["rounds"][1]["version"], "the champion of before goes on"
    assert all(len(one["left_out"]) == 2 for one in numbers["rounds"] if one["kind"] == "good"), (
        "both careless users are named"
    )
    assert numbers["failures"] == []
    assert numbers["num_answered"] > 100
    assert numbers["evaluation"]["changes"]["win_rate"]["after"]["low"] > 0.5
    assert "| 3, poisoned |" in page(numbers)
