from __future__ import annotations

import pytest
import torch

from rlhf.errors import ConfigError
from rlhf.losses.aggregation import token_mean
from rlhf.losses.value import clipped_value_loss
from tests.unit.losses.helpers import (
    check_parts_add_up,
    check_unscored_tokens_cannot_reach,
    double,
    gradient,
    per_token,
)

OLD = double(1, 1, 1)
NEW = double(3, 3, 1.25)
RETURNS = double(5, 0, 2)


def test_by_hand():
    # moved 2 towards its return, cut at 1.5: (1.5 - 5)^2 / 2; moved 2 away: 3^2 / 2; inside the range: 0.75^2 / 2
    torch.testing.assert_close(clipped_value_loss(NEW, OLD, RETURNS, clip=0.5), double(6.125, 4.5, 0.28125))


def test_without_clip_it_is_half_the_squared_error():
    torch.testing.assert_close(clipped_value_loss(NEW, OLD, RETURNS, clip=None), double(2, 4.5, 0.28125))


def test_a_value_that_moved_far_towards_its_return_rests_and_one_that_moved_away_comes_back():
    values = NEW.clone().requires_grad_()
    (grad,) = gradient(clipped_value_loss(values, OLD, RETURNS, clip=0.5), values)
    torch.testing.assert_close(grad, double(0, 3, -0.75))


def test_the_first_update_is_not_clipped():
    values = OLD.clone().requires_grad_()
    (grad,) = gradient(clipped_value_loss(values, OLD, RETURNS, clip=0.2), values)
    torch.testing.assert_close(grad, OLD - RETURNS)


def test_the_clipped_loss_is_never_below_the_plain_one():
    generator = torch.Generator().manual_seed(0)
    values, old, returns = torch.randn(3, 1000, dtype=torch.float64, generator=generator)
    assert (
        clipped_value_loss(values, old, returns, clip=0.2) >= clipped_value_loss(values, old, returns, clip=None)
    ).all()


@pytest.mark.parametrize("clip", [None, 0.5])
def test_gradients_are_those_of_finite_differences(clip: float | None):
    values = NEW.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda v: clipped_value_loss(v, OLD, RETURNS, clip=clip), values)


def test_values_of_ten_thousand_stay_finite_in_float32():
    values = torch.tensor([1e4, -1e4]).requires_grad_()
    loss = clipped_value_loss(values, torch.zeros(2), torch.tensor([-1e4, -1e4]))
    assert loss.tolist() == pytest.approx([2e8, (1e4 - 0.2) ** 2 / 2])
    assert gradient(loss, values)[0].tolist() == [2e4, 0]


def _loss(values, batch):
    return clipped_value_loss(values, values.detach() + per_token(batch, seed=3, scale=0.1), per_token(batch, seed=4))


def test_an_unscored_token_cannot_reach_it():
    check_unscored_tokens_cannot_reach(_loss)


def test_two_micro_batches_equal_one():
    check_parts_add_up(lambda values, part, whole: token_mean(_loss(values, part), num_tokens=whole.num_scored))


def test_shapes_that_would_broadcast_are_refused():
    with pytest.raises(ConfigError, match=r"shapes \[3, 1\], \[3\], \[3\]"):
        clipped_value_loss(NEW[:, None], OLD, RETURNS)
