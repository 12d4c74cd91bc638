"""Rows of many requests in few passes: clients take turns, and what goes wrong with one goes wrong with no other."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rlhf.data.pack import Branch, Group
from rlhf.serving.prometheus_metrics import ServingMetrics
from rlhf.serving.scheduler import ClosedError, QueueFullError
from rlhf.serving.score_batching import ScoringEngine


class SumOfTokens:
    """Scores a completion by the sum of its tokens; waits for the door, and fails on the token 13."""

    max_tokens = 10

    def __init__(self) -> None:
        self.passes: list[list[int]] = []
        self.door = threading.Event()
        self.door.set()
        self.is_inside = threading.Event()

    def num_outputs(self, group: Group) -> int:
        return len(group.branches)

    def outputs(self, groups: Any) -> torch.Tensor:
        sums = [float(sum(branch.tokens)) for group in groups for branch in group.branches]
        self.passes.append([int(value) for value in sums])
        self.is_inside.set()
        assert self.door.wait(10)
        if any(13 in branch.tokens for group in groups for branch in group.branches):
            raise RuntimeError("no such token")
        return torch.tensor([sums])


@pytest.fixture
def scorer() -> Any:
    return SimpleNamespace(reward=SumOfTokens(), source="sums")


@pytest.fixture
def engine() -> Iterator[ScoringEngine]:
    engine = ScoringEngine(ServingMetrics(), max_waiting=4, max_waiting_tokens=30)
    engine.start()
    yield engine
    engine.close()


def rows(*values: int) -> list[Group]:
    """A group of two tokens each."""
    return [Group([], [Branch([value, 0])]) for value in values]


def occupied(engine: ScoringEngine, scorer: Any) -> Any:
    """A request that is being scored until the door opens."""
    scorer.reward.door.clear()
    future = engine.submit(scorer, rows(1), client="first")
    assert scorer.reward.is_inside.wait(10)
    return future


def test_clients_take_turns_in_passes_of_so_many_tokens(engine, scorer):
    first = occupied(engine, scorer)
    long = engine.submit(scorer, rows(*range(100, 108)), client="long")
    short = engine.submit(scorer, rows(7, 8), client="short")
    scorer.reward.door.set()
    assert [future.result(10).tolist() for future in (first, short, long)] == [
        [[1.0]], [[7.0, 8.0]], [[float(n) for n in range(100, 108)]],
    ]  # fmt: skip
    assert scorer.reward.passes == [[1], [100, 7, 101, 8, 102], [103, 104, 105, 106, 107]]


def test_a_group_larger_than_a_pass_stands_alone_and_none_is_an_answer(engine, scorer):
    large = [Group([1] * 20, [Branch([5]), Branch([6])])]
    assert engine.submit(scorer, large + rows(3)).result(10).tolist() == [[5.0, 6.0, 3.0]]
    assert scorer.reward.passes == [[5, 6], [3]]
    assert engine.submit(scorer, []).result(10).shape == (1, 0)


def test_a_row_that_breaks_a_pass_breaks_its_own_request_alone(engine, scorer):
    first = occupied(engine, scorer)
    bad = engine.submit(scorer, rows(13), client="bad")
    good = engine.submit(scorer, rows(4, 5), client="good")
    scorer.reward.door.set()
    assert first.result(10).tolist() == [[1.0]]
    assert good.result(10).tolist() == [[4.0, 5.0]]
    with pytest.raises(RuntimeError, match="no such token"):
        bad.result(10)
    assert engine.stop(10)  # a pass is over a moment after its results are out
    assert (engine.num_waiting, engine.num_running) == (0, 0)


def test_two_models_do_not_share_a_pass(engine, scorer):
    other = SimpleNamespace(reward=SumOfTokens(), source="others")
    first = occupied(engine, scorer)
    futures = [
        engine.submit(one, rows(value), client=str(value)) for one, value in ((scorer, 2), (other, 3), (scorer, 4))
    ]
    scorer.reward.door.set()
    assert [future.result(10).item() for future in (first, *futures)] == [1, 2, 3, 4]
    assert other.reward.passes == [[3]]
    assert scorer.reward.passes == [[1], [2, 4]]


def test_a_client_that_leaves_is_not_scored(engine, scorer):
    first = occupied(engine, scorer)
    leaver, other = engine.submit(scorer, rows(50), client="a"), engine.submit(scorer, rows(60), client="b")
    assert leaver.cancel()
    scorer.reward.door.set()
    assert [first.result(10).item(), other.result(10).item()] == [1, 60]
    assert scorer.reward.passes == [[1], [60]]


def test_what_is_too_much_is_refused_and_the_end_answers_what_is_there(engine, scorer):
    first = occupied(engine, scorer)
    waiting = [engine.submit(scorer, rows(*range(14)[:13]), client="a")]
    with pytest.raises(QueueFullError, match="26 tokens"):
        engine.submit(scorer, rows(1, 2, 3), client="b")
    waiting += [engine.submit(scorer, [], client="c") for _ in range(3)]
    with pytest.raises(QueueFullError, match="4 requests"):
        engine.submit(scorer, [], client="d")
    scorer.reward.door.set()
    assert engine.stop(10)
    assert first.result(0).item() == 1
    assert [future.result(0).numel() for future in waiting] == [13, 0, 0, 0]
    with pytest.raises(ClosedError):
        engine.submit(scorer, rows(1))


def test_an_end_that_does_not_wait_fails_what_is_not_scored(engine, scorer):
    occupied(engine, scorer)
    late = engine.submit(scorer, rows(2), client="late")
    ending = threading.Thread(target=engine.stop, args=(0.0,))
    ending.start()
    scorer.reward.door.set()
    ending.join(10)
    with pytest.raises(ClosedError):
        late.result(10)
