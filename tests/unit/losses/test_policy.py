from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf.errors import ConfigError
from rlhf.losses.aggregation import AGGREGATIONS, aggregate
from rlhf.losses.policy import (
    MAX_LOG_RATIO,
    cispo_loss,
    clipped_policy_loss,
    clipped_tokens,
    ratio_statistics,
    reinforce_loss,
    sapo_loss,
)
from tests.unit.losses.helpers import (
    check_parts_add_up,
    check_unscored_tokens_cannot_reach,
    double,
    gradient,
    per_token,
)

PATIENT = settings(deadline=None)
"""The first example may have to import half of torch, which takes a second on a busy machine."""

RATIOS = double(2, 2, 0.5, 0.5, 1.1, 0.9)
ADVANTAGES = double(1, -1, 1, -1, 3, -3)
OLD = double(-1, -2, -3, -4, -5, -6)
NEW = OLD + RATIOS.log()


def test_the_four_corners_by_hand():
    # up and good: stop at 1.2; up and bad: the full 2; down and good: 0.5; down and bad: stop at 0.8; inside: ratio * A
    expected = double(-1.2, 2, -0.5, 0.8, -3.3, 2.7)
    torch.testing.assert_close(clipped_policy_loss(NEW, OLD, ADVANTAGES), expected)


def test_bounds_may_differ():
    # ratio 2 stops at 1 + 0.5, ratio 0.5 at 1 - 0.1
    loss = clipped_policy_loss(NEW, OLD, ADVANTAGES, clip_low=0.1, clip_high=0.5)
    torch.testing.assert_close(loss[[0, 3]], double(-1.5, 0.9))


def test_dual_clip_bounds_the_price_of_a_bad_token_by_hand():
    # ratio 5, A = -2: 10 without, 3 * 2 with a dual clip of 3; a good token is bounded by the first clip as before
    logprobs, old = double(5, 5).log(), double(0, 0)
    torch.testing.assert_close(clipped_policy_loss(logprobs, old, double(-2, 2)), double(10, -2.4))
    torch.testing.assert_close(clipped_policy_loss(logprobs, old, double(-2, 2), dual_clip=3.0), double(6, -2.4))


def test_the_first_update_is_plain_policy_gradient():
    logprobs = OLD.clone().requires_grad_()
    loss = clipped_policy_loss(logprobs, logprobs.detach(), ADVANTAGES)
    assert torch.equal(loss, -ADVANTAGES)
    assert torch.equal(gradient(loss, logprobs)[0], -ADVANTAGES)


def test_the_gradient_is_zero_exactly_where_the_clip_has_bitten():
    logprobs = NEW.clone().requires_grad_()
    (grad,) = gradient(clipped_policy_loss(logprobs, OLD, ADVANTAGES), logprobs)
    clipped = clipped_tokens(NEW, OLD, ADVANTAGES)
    assert clipped.tolist() == [True, False, False, True, False, False]
    assert torch.equal(grad == 0, clipped)
    # elsewhere a good token is pushed up and a bad one down, by ratio * A
    torch.testing.assert_close(grad[~clipped], double(2, -0.5, -3.3, 2.7))


def test_a_dual_clip_counts_as_clipped_and_has_no_gradient():
    logprobs = double(5, 2).log().requires_grad_()
    arguments = (logprobs, double(0, 0), double(-2, -2))
    assert gradient(clipped_policy_loss(*arguments, dual_clip=3.0), logprobs)[0].tolist() == [0, 4]
    assert clipped_tokens(*arguments, dual_clip=3.0).tolist() == [True, False]


@pytest.mark.parametrize("dual_clip", [None, 3.0])
def test_gradients_are_those_of_finite_differences(dual_clip: float | None):
    logprobs = (OLD + double(1.5, 0.4, -0.7, -0.6, 0.05, 2)).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda new: clipped_policy_loss(new, OLD, ADVANTAGES, clip_high=0.3, dual_clip=dual_clip), logprobs
    )


@given(st.floats(-30, 15), st.floats(-5, 5))
def test_the_surrogate_is_never_more_hopeful_than_the_unclipped_objective(log_ratio: float, advantage: float):
    loss = clipped_policy_loss(double(log_ratio), double(0), double(advantage))
    assert loss.item() >= -math.exp(log_ratio) * advantage - 1e-9 * math.exp(max(log_ratio, 0))


def test_only_the_difference_of_logprobs_matters():
    torch.testing.assert_close(
        clipped_policy_loss(NEW - 7, OLD - 7, ADVANTAGES), clipped_policy_loss(NEW, OLD, ADVANTAGES)
    )


def test_log_ratios_of_a_hundred_stay_finite_in_float32():
    logprobs = torch.tensor([100.0, 100.0, -100.0, -100.0, 100.0]).requires_grad_()
    advantages = torch.tensor([1.0, -1.0, 1.0, -1.0, 0.0])
    loss = clipped_policy_loss(logprobs, torch.zeros(5), advantages)
    torch.testing.assert_close(loss, torch.tensor([-1.2, math.exp(MAX_LOG_RATIO), 0.0, 0.8, 0.0]))
    assert gradient(loss, logprobs)[0].tolist() == pytest.approx([0, 0, 0, 0, 0], abs=1e-40)


def test_below_the_limit_a_bad_token_is_still_pushed_down():
    logprobs = torch.tensor([MAX_LOG_RATIO - 1]).requires_grad_()
    loss = clipped_policy_loss(logprobs, torch.zeros(1), -torch.ones(1))
    assert gradient(loss, logprobs)[0].item() == pytest.approx(math.exp(MAX_LOG_RATIO - 1), rel=1e-6)


def test_old_logprobs_and_advantages_are_constants_of_the_statistics():
    assert not clipped_tokens(NEW.clone().requires_grad_(), OLD, ADVANTAGES).requires_grad
    assert not any(x.requires_grad for x in ratio_statistics(NEW.clone().requires_grad_(), OLD))


def _loss(logprobs, batch):
    old = logprobs.detach() + per_token(batch, seed=3, scale=0.1)
    return clipped_policy_loss(logprobs, old, per_token(batch, seed=4), clip_low=0.9, clip_high=9.0)


def test_an_unscored_token_cannot_reach_it():
    check_unscored_tokens_cannot_reach(_loss)


@pytest.mark.parametrize("how", AGGREGATIONS)
def test_two_micro_batches_equal_one(how: str):
    check_parts_add_up(
        lambda logprobs, part, whole: aggregate(
            _loss(logprobs, part), part.score_seq,
            how=how, num_tokens=whole.num_scored, num_sequences=whole.num_sequences, constant=5,
        )
    )  # fmt: skip


def test_ratio_statistics_by_hand():
    # ratios 2, 1/2, 1/2: mean 1; k3 of KL(old || new): 2 - 1 - log 2 and twice 1/2 - 1 + log 2, a third of log 2
    statistics = ratio_statistics(double(2, 0.5, 0.5).log(), double(0, 0, 0))
    torch.testing.assert_close(torch.stack(statistics[:4]), double(1, 0.5, 2, 0.23104906018664842))
    assert statistics.num_overflowed == 0


def test_overflowed_tokens_are_counted():
    assert ratio_statistics(torch.tensor([100.0, -100.0, 21.0, 19.0]), torch.zeros(4)).num_overflowed == 2


def test_statistics_of_no_tokens_are_not_zero_but_unknown():
    statistics = ratio_statistics(double(), double())
    assert torch.stack(statistics[:4]).isnan().all()
    assert statistics.num_overflowed == 0


def test_an_unmoved_policy_has_a_ratio_of_one_and_no_divergence():
    statistics = ratio_statistics(OLD, OLD)
    assert [x.item() for x in statistics] == [1, 1, 1, 0, 0]


@pytest.mark.parametrize("function", [clipped_policy_loss, clipped_tokens])
def test_a_dual_clip_inside_the_clip_range_is_refused(function):
    with pytest.raises(ConfigError, match=r"dual_clip is 1\.1"):
        function(NEW, OLD, ADVANTAGES, dual_clip=1.1)


def test_shapes_that_would_broadcast_are_refused():
    with pytest.raises(ConfigError, match=r"shapes \[6\], \[6\], \[6, 1\]"):
        clipped_policy_loss(NEW, OLD, ADVANTAGES[:, None])


def _plain(logprobs, old, advantages):
    return reinforce_loss(logprobs, advantages)


SURROGATES = pytest.mark.parametrize("loss", [_plain, clipped_policy_loss, cispo_loss, sapo_loss])


@SURROGATES
def test_on_policy_every_surrogate_is_the_policy_gradient_itself(loss):
    # the trap: with the bound itself for clip_high, CISPO's on-policy weight is min(1, 0.2)
    logprobs = OLD.clone().requires_grad_()
    torch.testing.assert_close(gradient(loss(logprobs, OLD, ADVANTAGES), logprobs)[0], -ADVANTAGES, rtol=1e-12, atol=0)


@pytest.mark.parametrize("clip_high", [0.0, 0.2, 4.0])
@pytest.mark.parametrize("clip_low", [0.0, 0.2, 1.0])
def test_cispo_never_scales_an_on_policy_token_whatever_its_bounds(clip_low: float, clip_high: float):
    logprobs = OLD.clone().requires_grad_()
    loss = cispo_loss(logprobs, OLD, ADVANTAGES, clip_low=clip_low, clip_high=clip_high)
    assert torch.equal(gradient(loss, logprobs)[0], -ADVANTAGES)


def test_cispo_by_hand():
    # ratios 8, 2, 1/2 weigh 5, 2, 1/2: times A = 1, -1, 2, the gradient is minus that, the loss that times -logprobs
    logprobs = double(-1, -2, -3).requires_grad_()
    loss = cispo_loss(logprobs, logprobs.detach() - double(8, 2, 0.5).log(), double(1, -1, 2))
    torch.testing.assert_close(loss, double(5, -4, 3))
    torch.testing.assert_close(gradient(loss, logprobs)[0], double(-5, 2, -1))


def test_cispo_bounds_a_token_and_never_silences_it():
    logprobs = double(50, -50).requires_grad_()
    arguments = (logprobs, double(0, 0), double(1, -1))
    assert clipped_tokens(*arguments).all()
    assert gradient(cispo_loss(*arguments, clip_low=0.2, clip_high=0.28), logprobs)[0].tolist() == [-1.28, 0.8]


def test_sapo_by_hand():
    # sigmoid(0) is 1/2, so a ratio of 1 has 2 / t; at ratio 1 + log 3 and t = 1 sigmoid is 3/4, so the loss is -3 A
    ratio = double(1, 1, 1 + math.log(3))
    loss = sapo_loss(ratio.log(), double(0, 0, 0), double(1, -1, 2), temperature_bad=2.0)
    torch.testing.assert_close(loss, double(-2, 1, -6))


@PATIENT
@given(st.floats(1.01, 50), st.sampled_from([-1.0, 1.0]))
def test_sapo_fades_as_the_ratio_grows_and_fades_sooner_for_bad_tokens(ratio: float, sign: float):
    def slope(log_ratio: float, advantage: float) -> float:
        logprobs = double(log_ratio).requires_grad_()
        # of the gate itself: the gradient of the log-probability less the ratio that the chain rule adds
        return gradient(sapo_loss(logprobs, double(0), double(advantage)), logprobs)[0].abs().item() / math.exp(
            log_ratio
        )

    assert slope(math.log(ratio), sign) < slope(0.0, sign) * (1 + 1e-12)
    assert slope(math.log(ratio), -1.0) <= slope(math.log(ratio), 1.0)


@SURROGATES
def test_every_surrogate_is_finite_at_log_ratios_of_a_hundred(loss):
    # TRL: infinite losses, and NaN gradients for SAPO
    logprobs = torch.tensor([100.0, 100.0, -100.0, -100.0, 100.0]).requires_grad_()
    actual = loss(logprobs, torch.zeros(5), torch.tensor([1.0, -1.0, 1.0, -1.0, 0.0]))
    assert actual.isfinite().all()
    assert gradient(actual, logprobs)[0].isfinite().all()


@pytest.mark.parametrize("loss", [_plain, sapo_loss])
def test_gradients_of_the_smooth_surrogates_are_those_of_finite_differences(loss):
    logprobs = (OLD + double(1.5, 0.4, -0.7, -0.6, 0.05, 2)).requires_grad_()
    assert torch.autograd.gradcheck(lambda new: loss(new, OLD, ADVANTAGES), logprobs)


def test_the_gradient_of_cispo_is_that_of_finite_differences_with_its_weight_held():
    # the weight is a constant by design: differences of the loss at a shifted point, with the old point's weight
    logprobs, step = (OLD + double(1.5, 0.4, -0.7, -0.6, 0.05, 2)), 1e-6
    leaf = logprobs.clone().requires_grad_()
    (grad,) = gradient(cispo_loss(leaf, OLD, ADVANTAGES, clip_high=1.0), leaf)
    moved = cispo_loss(logprobs + step, OLD + step, ADVANTAGES, clip_high=1.0)
    still = cispo_loss(logprobs, OLD, ADVANTAGES, clip_high=1.0)
    torch.testing.assert_close((moved - still) / step, grad, rtol=1e-8, atol=1e-8)


@SURROGATES
def test_rows_in_another_order_give_the_same_losses(loss):
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    shuffled = loss(NEW[order], OLD[order], ADVANTAGES[order])
    assert torch.equal(shuffled, loss(NEW, OLD, ADVANTAGES)[order])


def _packed(loss):
    def of(logprobs, batch):
        return loss(logprobs, logprobs.detach() + per_token(batch, seed=3, scale=0.1), per_token(batch, seed=4))

    return of


@SURROGATES
def test_an_unscored_token_cannot_reach_any_of_them(loss):
    check_unscored_tokens_cannot_reach(_packed(loss))


@SURROGATES
def test_two_micro_batches_equal_one_for_all_of_them(loss):
    def share(logprobs, part, whole):
        losses = _packed(loss)(logprobs, part)
        return aggregate(
            losses, part.score_seq, how="token", num_tokens=whole.num_scored, num_sequences=whole.num_sequences
        )

    check_parts_add_up(share)


@pytest.mark.parametrize(("low", "high"), [(1.5, 4.0), (-0.1, 4.0), (1.0, -0.2)])
def test_bounds_of_cispo_that_are_no_distances_are_refused(low: float, high: float):
    with pytest.raises(ConfigError, match=r"clip_high.*at least 0"):
        cispo_loss(NEW, OLD, ADVANTAGES, clip_low=low, clip_high=high)


def test_a_temperature_of_zero_is_refused():
    with pytest.raises(ConfigError, match=r"temperatures are 1\.0 and 0.*above 0"):
        sapo_loss(NEW, OLD, ADVANTAGES, temperature_bad=0)
