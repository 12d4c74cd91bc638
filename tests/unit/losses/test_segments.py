from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlhf.errors import ConfigError
from rlhf.losses.segments import (
    segment_count,
    segment_cumsum_reverse,
    segment_ends,
    segment_max,
    segment_mean,
    segment_sum,
)
from tests.unit.losses.helpers import double, gradient

VALUES = (1.0, 2.0, 4.0, -8.0, 16.0)
SEGMENT = torch.tensor([0, 0, 2, 2, 2])


def test_sums_by_hand():
    # segment 0: 1 + 2; segment 1: empty; segment 2: 4 - 8 + 16
    assert segment_sum(double(*VALUES), SEGMENT, 3).tolist() == [3, 0, 12]


def test_means_by_hand_and_an_empty_segment_is_zero():
    assert segment_mean(double(*VALUES), SEGMENT, 3).tolist() == [1.5, 0, 4]


def test_maxima_by_hand_and_an_empty_segment_is_minus_infinity():
    assert segment_max(double(*VALUES), SEGMENT, 3).tolist() == [2, -math.inf, 16]


def test_a_segment_of_negative_numbers_has_a_negative_maximum():
    assert segment_max(double(-3, -2), torch.tensor([0, 0]), 1).tolist() == [-2]


def test_counts_by_hand():
    counts = segment_count(SEGMENT, 4)
    assert counts.tolist() == [2, 0, 3, 0]
    assert counts.dtype == torch.int64


def test_order_of_the_tokens_does_not_matter_to_sums():
    shuffled = torch.tensor([4, 0, 3, 1, 2])
    for function in (segment_sum, segment_mean, segment_max):
        one = function(double(*VALUES), SEGMENT, 3)
        assert torch.equal(one, function(double(*VALUES)[shuffled], SEGMENT[shuffled], 3))


def test_a_nan_stays_in_its_segment():
    values = double(1, math.nan, 3)
    segment = torch.tensor([0, 1, 2])
    for function in (segment_sum, segment_mean, segment_max):
        out = function(values, segment, 3)
        assert out.isnan().tolist() == [False, True, False]
    assert segment_cumsum_reverse(values, segment).isnan().tolist() == [False, True, False]


def test_gradients_are_those_of_finite_differences():
    values = double(*VALUES, grad=True)
    for function in (segment_sum, segment_mean, segment_max):
        # an empty segment's maximum has no finite difference
        assert torch.autograd.gradcheck(lambda v, f=function: f(v, SEGMENT, 3)[[0, 2]], values)


def test_an_empty_segment_puts_no_nan_into_the_gradient():
    values = double(*VALUES, grad=True)
    (grad,) = gradient(segment_mean(values, SEGMENT, 3), values)
    torch.testing.assert_close(grad, double(1 / 2, 1 / 2, 1 / 3, 1 / 3, 1 / 3))


def test_a_sequence_number_out_of_range_is_an_error_and_not_a_lost_token():
    with pytest.raises(IndexError, match="out of range"):
        segment_sum(double(1), torch.tensor([3]), 3)


def test_reverse_sums_by_hand():
    # segment 0, discount 1/2: 2, then 1 + 2/2; segment 2: 16, -8 + 8, 4 + 0
    assert segment_cumsum_reverse(double(*VALUES), SEGMENT, discount=0.5).tolist() == [2, 2, 4, 0, 16]


def test_no_tokens_give_no_sums():
    assert segment_cumsum_reverse(double(), torch.tensor([], dtype=torch.int64)).shape == (0,)


@given(st.lists(st.integers(0, 6), min_size=1, max_size=8), st.sampled_from([0.0, 0.5, 1.0]), st.integers(0, 99))
def test_reverse_sums_run_inside_each_segment(lengths: list[int], discount: float, seed: int):
    segment = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    values = torch.randn(len(segment), dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    out = segment_cumsum_reverse(values, segment, discount=discount)
    for number in range(len(lengths)):
        expected = 0.0
        for value, actual in zip(
            values[segment == number].tolist()[::-1], out[segment == number].tolist()[::-1], strict=True
        ):
            expected = value + discount * expected
            assert actual == pytest.approx(expected, rel=1e-12, abs=1e-12)


def test_reverse_sums_leave_their_input_alone_and_carry_no_gradient():
    values = double(*VALUES, grad=True)
    out = segment_cumsum_reverse(values, SEGMENT)
    assert not out.requires_grad
    assert values.tolist() == list(VALUES)


def test_ends_skip_segments_without_tokens():
    last, lengths = segment_ends(SEGMENT)
    assert last.tolist() == [1, 4]
    assert lengths.tolist() == [2, 3]


def test_a_sequence_whose_tokens_are_apart_is_refused_by_number():
    with pytest.raises(ConfigError, match=r"Token 2 .*sequence 0 .* 1"):
        segment_cumsum_reverse(double(1, 1, 1), torch.tensor([0, 1, 0]))


def test_values_and_segments_of_different_length_are_refused():
    with pytest.raises(ConfigError, match=r"shapes \[2\], \[3\]"):
        segment_sum(double(1, 2), torch.tensor([0, 0, 0]), 1)
