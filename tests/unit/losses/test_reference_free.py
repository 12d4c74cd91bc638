from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf.errors import ConfigError
from rlhf.losses.preference import dpo_loss
from rlhf.losses.reference_free import cpo_loss, log_odds, odds_ratio_loss, simpo_loss
from rlhf.losses.segments import segment_mean, segment_sum, split_pairs
from tests.unit.losses.helpers import (
    check_parts_add_up,
    check_unscored_tokens_cannot_reach,
    double,
    gradient,
)

HALF, THIRD, QUARTER = -math.log(2), -math.log(3), -math.log(4)
LOSSES = {
    "simpo": lambda chosen, rejected: simpo_loss(chosen, rejected, beta=2.5, target_margin=0.5),
    "cpo": lambda chosen, rejected: cpo_loss(chosen, rejected, beta=0.1),
    "odds_ratio": odds_ratio_loss,
}
ALL = pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)


def test_simpo_by_hand():
    # 2 * (-1 + 2) - 0.5 = 1.5 and 2 * 0 - 0.5: log(1 + e^-1.5), log(1 + e^0.5)
    loss = simpo_loss(double(-1, -3), double(-2, -3), beta=2, target_margin=0.5)
    torch.testing.assert_close(loss, double(0.2014132779827524, 0.9740769841801067))


def test_smoothed_simpo_by_hand():
    # a quarter of labels wrong at 1.5: 0.75 L + 0.25 (L + 1.5)
    loss = simpo_loss(double(-1), double(-2), beta=2, target_margin=0.5, label_smoothing=0.25)
    assert loss.item() == pytest.approx(0.2014132779827524 + 0.375)


def test_simpo_has_no_likelihood_term():
    # both sides less likely by the same: a likelihood term would see it, TRL's default does (cpo_alpha = 1)
    chosen, rejected = double(-1, grad=True), double(-2, grad=True)
    loss = simpo_loss(chosen, rejected, beta=2, target_margin=0.5)
    assert loss.item() == simpo_loss(double(-6), double(-7), beta=2, target_margin=0.5).item()
    up, down = gradient(loss, chosen, rejected)
    assert up.item() == -down.item()


def test_simpo_lets_go_only_beyond_its_margin():
    wanted = double(0.25, grad=True)  # beta 2 makes 0.5 of it, the target
    assert gradient(simpo_loss(wanted, double(0), beta=2, target_margin=0.5), wanted)[0].item() == -1


def test_cpo_by_hand():
    # 0.5 * (-10 + 13) = 1.5
    assert cpo_loss(double(-10), double(-13), beta=0.5).item() == pytest.approx(0.2014132779827524)
    smoothed = cpo_loss(double(-10), double(-13), beta=0.5, label_smoothing=0.25)
    assert smoothed.item() == pytest.approx(0.2014132779827524 + 0.375)


@given(chosen=st.floats(-500, 0), rejected=st.floats(-500, 0), constant=st.floats(-500, 0))
@settings(deadline=None, max_examples=50)
def test_cpo_is_dpo_with_a_uniform_reference(chosen, rejected, constant):
    pair, ref = (double(chosen), double(rejected)), double(constant)
    torch.testing.assert_close(cpo_loss(*pair, beta=0.1), dpo_loss(*pair, ref, ref, beta=0.1), rtol=1e-9, atol=1e-9)
    zero = double(0)
    assert torch.equal(cpo_loss(*pair, beta=0.1), dpo_loss(*pair, zero, zero, beta=0.1))


def test_log_odds_by_hand():
    # one half: 1 to 1; three quarters: 3 to 1; a quarter: 1 to 3
    torch.testing.assert_close(
        log_odds(double(HALF, math.log(0.75), QUARTER)), double(0, math.log(3), -math.log(3)), atol=1e-15, rtol=1e-12
    )


def test_odds_ratio_by_hand():
    # odds 1 and 1/3: -log sigmoid(log 3) = log 4/3; equal odds: log 2
    torch.testing.assert_close(
        odds_ratio_loss(double(HALF, THIRD), double(QUARTER, THIRD)), double(math.log(4 / 3), math.log(2))
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_log_odds_of_certain_and_of_impossible_completions_are_finite(dtype):
    certain = torch.tensor([0.0, -1e-30, -1e-8, -1e-3, -100, -1000], dtype=dtype).requires_grad_()
    for chosen, rejected in ((certain, certain.flip(0)), (certain.flip(0), certain), (certain, certain)):
        loss = odds_ratio_loss(chosen, rejected)
        assert loss.isfinite().all()
        assert gradient(loss, certain)[0].isfinite().all()


def test_log_odds_keep_their_precision_near_certainty():
    # log(P / (1 - P)) at P = exp(-d) is -log d - d / 2 + O(d^2); 1 - exp(-1e-7) in float32 would be off by a fifth
    assert log_odds(torch.tensor([-1e-7])).item() == pytest.approx(-math.log(1e-7), rel=1e-6)


@ALL
def test_log_ratios_of_thousands_stay_finite(loss):
    chosen = torch.tensor([-1000.0, -1e-4, -1e4, -100]).requires_grad_()
    rejected = torch.tensor([-1e-4, -1000.0, -1e4, -90]).requires_grad_()
    value = loss(chosen, rejected)
    assert value.isfinite().all()
    assert all(grad.isfinite().all() for grad in gradient(value, chosen, rejected))


@ALL
def test_chosen_is_pushed_up_and_rejected_down(loss):
    chosen, rejected = double(-1, -0.5, -2, grad=True), double(-0.5, -1, -2, grad=True)
    up, down = gradient(loss(chosen, rejected), chosen, rejected)
    assert (up < 0).all()
    assert (down > 0).all()


@ALL
def test_gradients_are_those_of_finite_differences(loss):
    assert torch.autograd.gradcheck(loss, [double(-1, -0.5, -0.01, grad=True), double(-0.2, -4, -0.5, grad=True)])


@pytest.mark.parametrize("name", LOSSES)
def test_an_unscored_token_cannot_reach_it_and_two_micro_batches_equal_one(name):
    reduce = segment_sum if name == "cpo" else segment_mean

    def loss(logprobs, batch):
        return LOSSES[name](*split_pairs(reduce(logprobs, batch.score_seq, batch.num_sequences)))

    check_unscored_tokens_cannot_reach(loss)
    check_parts_add_up(lambda logprobs, part, whole: loss(logprobs, part).sum() / (whole.num_sequences / 2))


@ALL
def test_shapes_that_would_broadcast_are_refused(loss):
    with pytest.raises(ConfigError, match=r"shapes \[2\], \[1\]"):
        loss(double(-1, -2), double(-1))
