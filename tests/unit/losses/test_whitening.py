from __future__ import annotations

import math

import pytest
import torch

from rlhf.errors import ConfigError
from rlhf.losses.whitening import moments, whiten
from tests.unit.losses.helpers import double


def test_three_numbers_by_hand():
    # mean 2, unbiased variance ((-1)^2 + 0 + 1^2) / 2 = 1
    torch.testing.assert_close(whiten(double(1, 2, 3), eps=0.0), double(-1, 0, 1))


def test_moments_by_hand_leave_out_what_has_no_weight():
    # 1 + 3 * 2 = 7; 1 + 9 * 2 = 19; 1 + 2 = 3, and the NaN counts 0 times
    assert moments(double(1, math.nan, 3), weights=double(1, 0, 2)).tolist() == [7, 19, 3]


def test_a_weight_of_two_is_the_value_twice():
    assert torch.equal(moments(double(5, 7), weights=double(2, 1)), moments(double(5, 5, 7)))


def test_the_mean_can_be_kept():
    values = double(4, 6, 11)
    kept = whiten(values, shift_mean=False)
    torch.testing.assert_close(kept, whiten(values) + 7)


def test_whitened_values_have_mean_zero_and_deviation_one():
    values = torch.randn(1000, generator=torch.Generator().manual_seed(0)) * 30 + 5
    out = whiten(values)
    assert out.dtype == torch.float32
    assert float(out.mean()) == pytest.approx(0, abs=1e-6)
    assert float(out.std()) == pytest.approx(1, abs=1e-5)


def test_two_ranks_that_add_their_moments_whiten_as_one():
    values = torch.randn(50, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    totals = moments(values[:13]) + moments(values[13:])
    parts = torch.cat([whiten(values[:13], totals), whiten(values[13:], totals)])
    torch.testing.assert_close(parts, whiten(values), rtol=1e-12, atol=1e-14)


def test_a_large_offset_does_not_eat_the_variance():
    # in float32 the squares of 10^4 would leave nothing of a deviation of 1
    values = torch.tensor([9999.0, 10000.0, 10001.0])
    torch.testing.assert_close(whiten(values), torch.tensor([-1.0, 0.0, 1.0]), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("numbers", [[0.1] * 3, [0.1], [-1e4] * 7])
def test_equal_values_have_nothing_to_tell_apart(numbers: list[float]):
    values = torch.tensor(numbers)
    torch.testing.assert_close(whiten(values), torch.zeros_like(values), rtol=0, atol=1e-6)
    torch.testing.assert_close(whiten(values, shift_mean=False), values)


def test_a_variance_that_rounds_to_less_than_nothing_is_nothing():
    values = torch.full((75,), 100000.1)
    total, squares, count = moments(values).tolist()
    assert squares - total * (total / count) < -1e-8 * (count - 1), "the case this test is about"
    torch.testing.assert_close(whiten(values), torch.zeros_like(values), rtol=0, atol=1e-6)


def test_no_values_stay_no_values():
    assert whiten(torch.tensor([])).shape == (0,)


def test_moments_carry_no_gradient_but_whitening_scales_it():
    values = double(1, 2, 3, grad=True)
    assert not moments(values).requires_grad
    (grad,) = torch.autograd.grad(whiten(values).sum(), values)
    torch.testing.assert_close(grad, double(1, 1, 1))  # 1 / deviation each: the totals are constants


def test_weights_of_another_length_are_refused():
    with pytest.raises(ConfigError, match=r"shapes \[2\], \[1\]"):
        moments(double(1, 2), weights=double(1))
