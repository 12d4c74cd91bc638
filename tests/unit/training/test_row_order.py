from __future__ import annotations

from itertools import pairwise

import pytest

from rlhf.config.training import OfflineConfig
from rlhf.data.pack import Branch, Group
from rlhf.errors import ConfigError, DataError
from rlhf.training.row_order import Cycle, ShuffledRows, StreamedRows, build_rows


def data(count: int, *, size: int = 3) -> list[Group]:
    return [Group([1], [Branch([2] * (size - 1))], {"id": n}) for n in range(count)]


def taken(rows) -> list[list[int]]:
    return [[group.columns["id"] for group in rows.take(step)] for step in range(rows.num_steps)]


def test_every_row_comes_once_an_epoch_in_a_new_order():
    steps = taken(ShuffledRows(data(10), OfflineConfig(batch_size=4, epochs=3)))
    assert [len(step) for step in steps] == [4, 4, 2] * 3
    epochs = [[n for step in steps[first : first + 3] for n in step] for first in (0, 3, 6)]
    assert all(sorted(epoch) == list(range(10)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3


def test_the_order_hangs_on_the_seed():
    one, same, other = (taken(ShuffledRows(data(20), OfflineConfig(batch_size=5, seed=s))) for s in (1, 1, 2))
    assert one == same != other


@pytest.mark.parametrize(
    ("settings", "steps"),
    [
        ({"epochs": 2}, 6),
        ({"epochs": 0.5}, 2),  # 1.5 steps, rounded up
        ({"epochs": 1.34}, 5),
        ({"epochs": 0.001}, 1),
        ({"epochs": 5, "max_steps": 4}, 4),
        ({"epochs": None, "max_steps": 100}, 100),
    ],
)
def test_the_length_is_in_epochs_or_in_steps(settings, steps):
    rows = ShuffledRows(data(10), OfflineConfig.of({"batch_size": 4, **settings}))
    assert rows.num_steps == steps
    assert len(taken(rows)) == steps


@pytest.mark.parametrize("settings", [{"batch_size": 4}, {"batch_tokens": 11}])
def test_a_step_can_be_taken_without_those_before_it(settings):
    config = OfflineConfig.of({"epochs": 5, **settings})
    in_order = taken(ShuffledRows(data(10), config))
    for step in (13, 2, 7, 0, len(in_order) - 1):
        fresh = ShuffledRows(data(10), config)
        assert [group.columns["id"] for group in fresh.take(step)] == in_order[step]


def test_steps_by_tokens_hold_as_many_rows_as_fit():
    sizes = [3, 5, 2, 7, 4, 6, 2]
    groups = [Group([1], [Branch([2] * (size - 1))], {"id": n}) for n, size in enumerate(sizes)]
    steps = taken(ShuffledRows(groups, OfflineConfig(batch_tokens=8, epochs=4)))
    assert sorted(n for step in steps for n in step) == sorted([*range(7)] * 4)
    done = 0
    for step, behind in pairwise(steps):
        done += len(step)
        total = sum(sizes[n] for n in step)
        assert total <= 8
        assert done % 7 == 0 or total + sizes[behind[0]] > 8, "the next row would have fitted in"


def test_a_row_larger_than_a_step_is_a_step():
    steps = taken(ShuffledRows(data(2, size=50), OfflineConfig(batch_tokens=8)))
    assert [len(step) for step in steps] == [1, 1]


def test_no_rows_are_an_error():
    with pytest.raises(DataError, match="`rlhf data check FILE`"):
        ShuffledRows([], OfflineConfig())


class Stream:
    """A stream of numbers that remembers where it is."""

    def __init__(self, count: int) -> None:
        self.count, self.at = count, 0

    def __iter__(self):
        while self.at < self.count:
            self.at += 1
            yield data(self.count)[self.at - 1]
        self.at = 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


def test_a_stream_that_ends_begins_again():
    rows = build_rows(Stream(5), OfflineConfig(batch_size=3, max_steps=4))
    assert isinstance(rows, StreamedRows)
    assert taken(rows) == [[0, 1, 2], [3, 4, 0], [1, 2, 3], [4, 0, 1]]


def test_a_stream_goes_on_from_its_state():
    config = OfflineConfig(batch_size=3, max_steps=4)
    rows = build_rows(Stream(5), config)
    rows.take(0)
    state = rows.state_dict()
    other = build_rows(Stream(5), config)
    other.take(0)
    other.take(1)
    other.load_state_dict(state)
    assert [group.columns["id"] for group in other.take(1)] == [3, 4, 0]


def test_a_stream_fills_a_step_by_tokens():
    rows = build_rows(Stream(9), OfflineConfig(batch_tokens=7, max_steps=2))
    assert taken(rows) == [[0, 1, 2], [3, 4, 5]]  # 3 tokens each: 6 are not enough


def test_a_stream_needs_a_length_and_rows():
    with pytest.raises(ConfigError, match="`max_steps`"):
        build_rows(Stream(5), OfflineConfig())
    with pytest.raises(DataError, match=r"stream.*no usable row"):
        build_rows(Stream(0), OfflineConfig(max_steps=1)).take(0)


def test_prompts_go_round_and_every_round_has_its_own_order():
    cycle = Cycle(5, seed=3, name="prompts")
    endless = cycle.take(0, 20)
    rounds = [endless[first : first + 5] for first in range(0, 20, 5)]
    assert all(sorted(r) == list(range(5)) for r in rounds)
    assert len({tuple(r) for r in rounds}) > 1
    for start in range(12):
        assert cycle.take(start, 8) == endless[start : start + 8]
