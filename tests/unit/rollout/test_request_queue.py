from __future__ import annotations

import pytest

from rlhf.rollout.request_queue import Part, Waiting

LENS = [4, 9, 2, 2]


def queue(counts: list[int], **limits: int) -> Waiting:
    """As many completions of each prompt."""
    places = [place for place, count in enumerate(counts) for _ in range(count)]
    return Waiting(places, LENS, **{"max_rows": 100, "max_cache_tokens": 1000, "max_new_tokens": 10, **limits})


def test_everything_goes_at_once_where_there_is_room():
    waiting = queue([2, 1, 3, 1])
    taken = waiting.take([], 0)
    assert taken == [Part(0, 4, range(2)), Part(1, 9, range(2, 3)), Part(2, 2, range(3, 6)), Part(3, 2, range(6, 7))]
    assert not waiting
    assert waiting.take([], 0) == []


def test_rows_that_are_live_take_places():
    waiting = queue([2, 2, 2, 2], max_rows=5)
    assert [part.place for part in waiting.take([], 0)] == [0, 1]
    assert waiting.take([4, 9], 4) == []
    assert [part.place for part in waiting.take([9], 2)] == [2]
    assert [part.place for part in waiting.take([], 0)] == [3]


def test_prompts_count_as_long_as_the_longest_beside_them():
    # two rows and the prompts 4 and 9 need 2 * 10 + 2 * 9 = 38
    assert [part.place for part in queue([1, 1, 0, 0], max_cache_tokens=37).take([], 0)] == [0]
    assert [part.place for part in queue([1, 1, 0, 0], max_cache_tokens=38).take([], 0)] == [0, 1]
    assert [part.place for part in queue([1, 0, 0, 0], max_cache_tokens=38).take([9], 1)] == [0]
    assert queue([1, 0, 0, 0], max_cache_tokens=37).take([9], 1) == []


def test_nobody_overtakes():
    waiting = queue([3, 1, 1, 0], max_rows=3)
    assert waiting.take([2], 1) == []  # prompts 1 and 2 would fit


def test_a_group_is_cut_only_where_it_alone_is_too_large():
    assert [part.rows for part in queue([7, 0, 1, 0], max_rows=3).take([], 0)] == [range(3)]
    # (60 - 4) // 10 = 5 rows fit beside the prompt
    waiting = queue([7, 0, 1, 0], max_cache_tokens=60)
    assert [(part.place, part.rows) for part in waiting.take([], 0)] == [(0, range(5))]
    assert [(part.place, part.rows) for part in waiting.take([], 0)] == [(0, range(5, 7)), (2, range(7, 8))]


@pytest.mark.parametrize("limits", [{"max_rows": 1}, {"max_cache_tokens": 1}])
def test_one_goes_whatever_the_limits_where_nothing_is_live(limits):
    waiting = queue([2, 1, 0, 0], **limits)
    assert [[part.rows for part in waiting.take([], 0)] for _ in range(3)] == [[range(n, n + 1)] for n in range(3)]
