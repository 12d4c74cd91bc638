"""Who does what, and what happens to work whose actor is lost; the cluster is this process."""

from __future__ import annotations

import time
from typing import Any

import pytest

from rlhf.config.launch import PoolConfig
from rlhf.distributed.actor_pool import ActorPool, Preparation
from rlhf.errors import DataError, TrainingError
from tests.fixtures.actors import DIE, HANG, FakeCluster

TELLER = "tests.fixtures.actor_workers:Teller"


def build(cluster: FakeCluster, *, how: dict[str, Any] | None = None, **settings: Any) -> ActorPool:
    pool = ActorPool(cluster, "engines", PoolConfig(**{"replicas": 2, **settings}), TELLER, ("me",), **(how or {}))
    pool.notify = pool.__dict__.setdefault("said", []).append
    return pool


def prepared_for(key: int, *, answer: Any = None) -> Preparation:
    return Preparation(key, "take", (key, answer), lambda given: None if given == key else f"acknowledged {given}")


def work_of(cluster: FakeCluster) -> list[tuple[int, int]]:
    """(replica, first argument) of all work that was asked for."""
    return [(replica, arguments[0]) for replica, _, method, arguments in cluster.asked if method == "tell"]


def test_answers_come_in_the_order_of_the_questions_and_the_most_expensive_is_asked_first():
    cluster = FakeCluster()
    answers = build(cluster).run("tell", [(n,) for n in range(5)], costs=[1, 5, 2, 4, 3])
    assert [value for value, _ in answers] == [0, 1, 2, 3, 4]
    assert [n for _, n in work_of(cluster)] == [1, 3, 4, 2, 0]


def test_every_actor_says_something_where_each_is_asked():
    pool = build(FakeCluster(), replicas=3)
    assert pool.each("tell", 7) == [(7, None)] * 3
    assert pool.about()["name"] == "me"
    assert pool.alive == 3
    pool.close()
    assert pool.alive == 0
    assert pool.run("tell", [(1,)]) == [(1, None)]


def test_an_actor_is_prepared_before_its_first_work_and_after_each_start():
    cluster = FakeCluster(lambda replica, life, method, arguments: DIE if method == "tell" and life == 0 else None)
    pool = build(cluster)
    pool.preparation = prepared_for(4)
    assert pool.run("tell", [(n,) for n in range(4)]) == [(n, 4) for n in range(4)]
    for replica in (0, 1):
        steps = [(life, method) for number, life, method, _ in cluster.asked if number == replica]
        assert steps[:4] == [(0, "take"), (0, "tell"), (1, "take"), (1, "tell")]
    assert pool.restarts == 2
    assert len(pool.said) == 2
    pool.preparation = prepared_for(5)
    assert pool.run("tell", [(0,)]) == [(0, 5)]


def test_work_for_a_certain_actor_waits_for_its_successor_which_is_prepared_for_what_was_done_before():
    cluster = FakeCluster(lambda replica, life, method, arguments: DIE if (life, arguments) == (0, (2,)) else None)
    pool = build(cluster)
    done = []
    pool.preparation = Preparation("mine", "take", lambda replica: ((replica, len(done)),), lambda answer: None)
    answers = pool.run(
        "tell", [(n,) for n in range(4)], replicas=[0, 1, 0, 1], take=lambda place, answer: done.append((place, answer))
    )
    assert [value for value, _ in answers] == [0, 1, 2, 3]
    assert [replica for replica, n in work_of(cluster) if n in (0, 2)] == [0, 0, 0]
    assert sorted(done) == list(enumerate(answers))
    (prepared,) = [asked for replica, life, method, asked in cluster.asked if method == "take" and life == 1]
    assert prepared[0][0] == 0
    assert prepared[0][1] > 0


def test_what_a_lost_actor_had_is_given_to_another_one():
    cluster = FakeCluster(lambda replica, life, method, arguments: DIE if (replica, arguments) == (2, (2,)) else None)
    answers = build(cluster, replicas=3).run("tell", [(n,) for n in range(6)])
    assert [value for value, _ in answers] == list(range(6))
    assert sorted(n for _, n in work_of(cluster)) == [0, 1, 2, 2, 3, 4, 5]


def test_an_actor_that_hangs_is_replaced_when_its_time_is_up():
    cluster = FakeCluster(lambda replica, life, method, arguments: HANG if method == "tell" and life == 0 else None)
    began = time.monotonic()
    assert build(cluster, timeout_seconds=0.2).run("tell", [(0,), (1,)]) == [(0, None), (1, None)]
    assert 0.2 <= time.monotonic() - began < 2


def test_an_actor_that_never_gets_ready_is_replaced_and_then_ends_the_run():
    cluster = FakeCluster(lambda replica, life, method, arguments: HANG if method == "start" else None)
    pool = build(cluster, replicas=1, start_timeout_seconds=0.05, max_restarts=2)
    with pytest.raises(TrainingError, match=r"pool `engines`.*start_timeout_seconds.*number 3 in a row"):
        pool.run("tell", [(0,)])
    assert len(cluster.lives) == 3


def test_work_that_ends_every_actor_ends_the_run():
    cluster = FakeCluster(lambda replica, life, method, arguments: DIE if arguments == (1,) else None)
    pool = build(cluster, replicas=3, max_restarts=2)
    with pytest.raises(TrainingError, match="as the test says"):
        pool.run("tell", [(n,) for n in range(9)])


def test_losses_that_are_not_in_a_row_do_not_add_up():
    cluster = FakeCluster(lambda replica, life, method, arguments: DIE if arguments == (life,) else None)
    pool = build(cluster, replicas=1, max_restarts=1)
    assert len(pool.run("tell", [(n,) for n in range(4)], costs=[4, 3, 2, 1])) == 4
    assert pool.restarts == 4


def test_an_actor_that_acknowledges_something_else_is_not_used_and_named():
    cluster = FakeCluster()
    pool = build(cluster, max_restarts=1)
    pool.preparation = prepared_for(3, answer=2)
    with pytest.raises(TrainingError, match=r"Replica . of the pool `engines` acknowledged 2"):
        pool.run("tell", [(0,)])
    assert not work_of(cluster)


def test_a_refusal_is_raised_at_once_and_the_actor_lives():
    cluster = FakeCluster()
    pool = build(cluster, replicas=1)
    with pytest.raises(DataError, match="is no number"):
        pool.run("tell", [(0, "refuse"), (1,)])
    assert pool.run("tell", [(2,)]) == [(2, None)]
    assert cluster.lives == [0]


def test_a_straggler_is_given_to_an_idle_actor_too_and_the_first_answer_counts(monkeypatch):
    monkeypatch.setattr("rlhf.distributed.actor_pool.SHORTEST_STRAGGLER_SECONDS", 0.05)
    cluster = FakeCluster(lambda replica, life, method, arguments: HANG if (replica, arguments) == (0, (0,)) else None)
    pool = build(cluster, how={"reissue_after": 2.0}, timeout_seconds=60)
    began = time.monotonic()
    assert pool.run("tell", [(n,) for n in range(4)], costs=[9, 1, 1, 1]) == [(n, None) for n in range(4)]
    assert time.monotonic() - began < 10
    assert pool.reissued == 1
    assert [replica for replica, n in work_of(cluster) if n == 0] == [0, 1]
    # The one that hangs still has its old work, and is given no other.
    pool.run("tell", [(5,), (6,)])
    assert {replica for replica, n in work_of(cluster) if n in (5, 6)} == {1}


def test_without_reissue_a_straggler_is_waited_for():
    cluster = FakeCluster(
        lambda replica, life, method, arguments: HANG if (replica, life, arguments) == (0, 0, (0,)) else None
    )
    pool = build(cluster, timeout_seconds=0.3)
    assert len(pool.run("tell", [(n,) for n in range(4)], costs=[9, 1, 1, 1])) == 4
    assert pool.reissued == 0
    assert pool.restarts == 1
