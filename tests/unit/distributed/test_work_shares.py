"""Who takes which micro-batch."""

from __future__ import annotations

import random

import pytest

from rlhf.distributed.work_shares import even_limit, share_of


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("count", [1, 2, 5, 8, 30])
def test_every_piece_counts_once_and_all_ranks_take_as_many(size, count):
    costs = [random.Random(count).randint(1, 100) for _ in range(count)]
    shares = [share_of(costs, rank=rank, size=size) for rank in range(size)]
    assert sorted(index for share in shares for index, counts in share if counts) == list(range(count))
    assert len({len(share) for share in shares}) == 1
    assert len(shares[0]) == -(-count // size)


def test_a_single_rank_takes_everything_in_order():
    assert share_of([3, 9, 1], rank=0, size=1) == [(0, True), (1, True), (2, True)]


def test_costs_are_balanced():
    # 9 8 7 6 dealt to and fro: 9 + 6 against 8 + 7
    costs = [9, 8, 7, 6]
    assert [sum(costs[i] for i, _ in share_of(costs, rank=rank, size=2)) for rank in (0, 1)] == [15, 15]


def test_who_has_too_little_repeats_the_cheapest_without_weight():
    assert share_of([5, 2, 7], rank=0, size=2) == [(2, True), (1, False)]
    assert share_of([5, 2, 7], rank=1, size=2) == [(0, True), (1, True)]


def test_a_step_is_cut_until_every_rank_has_a_turn():
    def count(limit: int) -> int:  # 12 rows of 10 tokens
        return -(-12 // max(1, limit // 10))

    assert count(even_limit(count, limit=1000, size=4)) == 4
    assert count(even_limit(count, limit=50, size=2)) == 4  # three turns would leave a rank without
    assert even_limit(count, limit=50, size=1) == 50
