from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf.errors import ConfigError
from rlhf.losses.advantage import group_advantages
from rlhf.losses.shaping import overlong_penalty, teaching_groups
from tests.unit.losses.helpers import double

PATIENT = settings(deadline=None)
"""The first example may have to import half of torch, which takes a second on a busy machine."""


def test_the_overlong_penalty_by_hand():
    # limit 20, buffer 8: nothing up to 12, then an eighth for each token, and the whole beyond 20
    lengths = torch.tensor([0, 12, 13, 16, 20, 21, 1000])
    assert overlong_penalty(lengths, max_tokens=20, buffer_tokens=8).tolist() == [0, 0, -0.125, -0.5, -1, -1, -1]


@PATIENT
@given(st.integers(1, 500), st.integers(0, 500), st.integers(0, 1000))
def test_one_token_more_never_helps_and_never_costs_more_than_its_share(buffer: int, rest: int, length: int):
    shorter, longer = overlong_penalty(
        torch.tensor([length, length + 1]), max_tokens=buffer + rest, buffer_tokens=buffer
    ).tolist()
    assert -1 <= longer <= shorter <= 0
    assert shorter - longer <= 1 / buffer + 1e-6


@pytest.mark.parametrize("buffer", [0, 21])
def test_a_buffer_without_room_is_refused(buffer: int):
    with pytest.raises(ConfigError, match=rf"{buffer} tokens.*20"):
        overlong_penalty(torch.tensor([1]), max_tokens=20, buffer_tokens=buffer)


def test_groups_that_agree_do_not_teach():
    # group 7 differs, group 2 agrees, group 5 has one member
    scores, group = double(1, 0.1, 0, 0.1, 3, 0.1), torch.tensor([7, 2, 7, 2, 5, 2])
    assert teaching_groups(scores, group).tolist() == [True, False, True, False, False, False]


@PATIENT
@given(st.lists(st.integers(0, 2), min_size=1, max_size=12), st.integers(0, 99))
def test_a_group_teaches_exactly_where_an_advantage_is_not_zero(scores: list[int], seed: int):
    flat = double(*scores)
    group = torch.randint(4, (len(scores),), generator=torch.Generator().manual_seed(seed))
    teaching = teaching_groups(flat, group)
    moved = group_advantages(flat, group, divide_by_std=False) != 0
    for number in group.unique():
        inside = group == number
        assert teaching[inside].unique().numel() == 1
        assert bool(teaching[inside].any()) == bool(moved[inside].any())


def test_differences_within_the_noise_may_count_as_none():
    scores, group = double(0.50, 0.52, 0.1, 0.9), torch.tensor([0, 0, 1, 1])
    assert teaching_groups(scores, group, min_spread=0.05).tolist() == [False, False, True, True]


def test_a_group_with_an_unknown_score_does_not_teach():
    assert teaching_groups(double(1, math.nan, 0, 1), torch.tensor([0, 0, 1, 1])).tolist() == [False, False, True, True]


def test_no_completions_make_no_groups_and_a_negative_spread_is_refused():
    assert teaching_groups(double(), torch.tensor([], dtype=torch.int64)).shape == (0,)
    with pytest.raises(ConfigError, match=r"min_spread is -0\.1"):
        teaching_groups(double(1), torch.tensor([0]), min_spread=-0.1)
