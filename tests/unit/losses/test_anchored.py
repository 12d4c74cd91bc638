from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf.errors import ConfigError
from rlhf.losses.anchored import apo_down_loss, apo_zero_loss, bco_pair_loss, nca_loss, sppo_loss
from rlhf.losses.preference import dpo_loss
from tests.unit.losses.helpers import double, gradient

THREE = math.log(3)
ZERO = double(0)
# log-ratios log 3 and -log 3 against zeros: sigmoid 3/4 and 1/4 at beta 1
EASY = (double(THREE), double(-THREE), ZERO, ZERO)
# log-ratios 2, 1, 0 and -1, 5, 0
FOUR = (double(-10, -30, -12), double(-14, -20, -12), double(-12, -31, -12), double(-13, -25, -12))


def test_nca_by_hand():
    # -log 3/4 - 1/2 log 1/4 - 1/2 log 3/4
    assert nca_loss(*EASY, beta=1).item() == pytest.approx(1.5 * math.log(4 / 3) + math.log(4) / 2)


def test_nca_stops_raising_the_chosen_completion():
    chosen = double(math.log(2) / 0.5, grad=True)
    assert gradient(nca_loss(chosen, ZERO, ZERO, ZERO, beta=0.5), chosen)[0].item() == pytest.approx(0, abs=1e-15)


def test_bco_of_a_pair_by_hand():
    # -2 log 3/4; with a shift of log 3: -log 1/2 - log sigmoid(2 log 3), which is 9/10
    assert bco_pair_loss(*EASY, beta=1).item() == pytest.approx(2 * math.log(4 / 3))
    assert bco_pair_loss(*EASY, beta=1, shift=THREE).item() == pytest.approx(math.log(2) + math.log(10 / 9))


@given(chosen=st.floats(-50, 50), rejected=st.floats(-50, 50), shift=st.floats(-20, 20))
@settings(deadline=None, max_examples=50)
def test_bco_bounds_dpo_from_above_at_any_shift(chosen, rejected, shift):
    pair = (double(chosen), double(rejected), ZERO, ZERO)
    assert bco_pair_loss(*pair, beta=1, shift=shift).item() >= dpo_loss(*pair, beta=1).item() - 1e-12


def test_sppo_by_hand():
    # beta 0.25 draws to 2 and -2: 0 + 1, 1 + 49, 4 + 4
    assert sppo_loss(*FOUR, beta=0.25).tolist() == [1, 50, 8]


def test_sppo_with_win_rates_by_hand():
    # three quarters: drawn to 1 and -1; a half: to 0 and 0
    loss = sppo_loss(*FOUR, beta=0.25, win_probabilities=double(0.75, 0.75, 0.5))
    assert loss.tolist() == [1, 36, 0]


def test_apo_by_hand():
    # 1/4 + 1/4;  3/4 + sigmoid(-2 log 3) = 3/4 + 1/10
    assert apo_zero_loss(*EASY, beta=1).item() == pytest.approx(0.5)
    assert apo_down_loss(*EASY, beta=1).item() == pytest.approx(0.85)


def test_apo_zero_raises_the_chosen_completion():
    chosen, rejected = double(-1, grad=True), double(2, grad=True)
    up, down = gradient(apo_zero_loss(chosen, rejected, ZERO, ZERO, beta=0.3), chosen, rejected)
    assert up.item() < 0 < down.item()


def test_apo_down_lowers_the_chosen_completion_once_the_pair_is_won():
    chosen, rejected = double(-1, grad=True), double(-40, grad=True)
    both = gradient(apo_down_loss(chosen, rejected, ZERO, ZERO, beta=0.3), chosen, rejected)
    assert all(grad.item() > 0 for grad in both)


def test_gradients_of_the_options_are_those_of_finite_differences():
    inputs = [tensor.clone().requires_grad_() for tensor in FOUR]
    probabilities = double(0.6, 0.9, 0.5)
    assert torch.autograd.gradcheck(lambda *four: bco_pair_loss(*four, beta=0.2, shift=0.7), inputs)
    assert torch.autograd.gradcheck(lambda *four: sppo_loss(*four, beta=0.2, win_probabilities=probabilities), inputs)


def test_win_rates_of_another_shape_are_refused():
    with pytest.raises(ConfigError, match=r"shapes \[3\], \[1\]"):
        sppo_loss(*FOUR, beta=0.1, win_probabilities=double(1))
