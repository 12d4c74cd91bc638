from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf.errors import UnknownNameError
from rlhf.losses.aggregation import sequence_mean
from rlhf.losses.policy import clipped_policy_loss, clipped_tokens
from rlhf.losses.sequence_ratio import SEQUENCE_RATIOS, sequence_log_ratios, sequence_policy_loss
from tests.unit.losses.helpers import (
    check_parts_add_up,
    check_unscored_tokens_cannot_reach,
    double,
    gradient,
    per_token,
)

PATIENT = settings(deadline=None)
"""The first example may have to import half of torch, which takes a second on a busy machine."""

ALL = pytest.mark.parametrize("how", SEQUENCE_RATIOS)
SEQ = torch.tensor([0, 0, 0, 1])
OLD = double(-1, -2, -3, -4)
NEW = OLD + double(0.3, -0.1, 0.1, 0.2)
"""Log-ratios of sequence 0: sum 0.3, mean 0.1; of sequence 1: 0.2."""


@pytest.mark.parametrize(("how", "expected"), [("mean", [0.1, 0.2]), ("token", [0.1, 0.2]), ("sum", [0.3, 0.2])])
def test_the_ratio_of_a_sequence_by_hand(how: str, expected: list[float]):
    log_ratios = sequence_log_ratios(NEW, OLD, SEQ, how=how)
    torch.testing.assert_close(log_ratios, double(expected[0], expected[0], expected[0], expected[1]))


def test_the_loss_by_hand():
    # ratio e^0.1 stops at 1.05 for A = 2; ratio e^0.2 is not held back for A = -1
    loss = sequence_policy_loss(NEW, OLD, double(2, 2, 2, -1), SEQ, clip_low=0.05, clip_high=0.05)
    torch.testing.assert_close(loss, double(-2.1, -2.1, -2.1, 1.2214027581601699))
    assert sequence_mean(loss, SEQ, num_sequences=2).item() == pytest.approx((-2.1 + 1.2214027581601699) / 2)


def test_the_gradient_by_hand():
    # d/dl of mean over 3 tokens of -A e^mean: each token gets -A e^0.1 / 3; the sum form -A e^0.3, each token whole
    def of(how: str) -> torch.Tensor:
        logprobs = NEW.clone().requires_grad_()
        loss = sequence_policy_loss(logprobs, OLD, double(-2, -2, -2, -1), SEQ, how=how, clip_low=0.5, clip_high=0.5)
        return gradient(sequence_mean(loss, SEQ, num_sequences=1), logprobs)[0]

    third, whole = 2 * math.exp(0.1) / 3, 2 * math.exp(0.3)
    torch.testing.assert_close(of("mean"), double(third, third, third, math.exp(0.2)))
    torch.testing.assert_close(of("token"), double(third, third, third, math.exp(0.2)))
    torch.testing.assert_close(of("sum"), double(whole, whole, whole, math.exp(0.2)))


@ALL
def test_a_sequence_is_clipped_as_a_whole_and_then_has_no_gradient(how: str):
    logprobs = NEW.clone().requires_grad_()
    advantages = double(2, 2, 2, -1)
    (grad,) = gradient(sequence_policy_loss(logprobs, OLD, advantages, SEQ, how=how, clip_high=0.05), logprobs)
    log_ratios = sequence_log_ratios(logprobs, OLD, SEQ, how=how)
    clipped = clipped_tokens(log_ratios, torch.zeros_like(log_ratios), advantages, clip_high=0.05)
    assert clipped.tolist() == [True, True, True, False]
    assert torch.equal(grad == 0, clipped)


@ALL
@PATIENT
@given(st.lists(st.floats(-3, 3), min_size=1, max_size=6), st.integers(0, 99))
def test_with_completions_of_one_token_it_is_ppo(how: str, log_ratios: list[float], seed: int):
    old, advantages = torch.randn(
        2, len(log_ratios), dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
    )
    logprobs = (old + double(*log_ratios)).requires_grad_()
    ours = sequence_policy_loss(logprobs, old, advantages, torch.arange(len(old)), how=how, clip_low=0.2, clip_high=0.2)
    ppo = clipped_policy_loss(logprobs, old, advantages)
    torch.testing.assert_close(ours, ppo, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradient(ours, logprobs), gradient(ppo, logprobs), rtol=1e-12, atol=1e-12)


@ALL
def test_the_first_step_has_a_ratio_of_exactly_one(how: str):
    logprobs = OLD.clone().requires_grad_()
    assert torch.equal(sequence_log_ratios(logprobs, OLD, SEQ, how=how), torch.zeros(4, dtype=torch.float64))
    assert torch.equal(sequence_policy_loss(logprobs, OLD, -OLD, SEQ, how=how), OLD)


@ALL
def test_sequences_in_another_order_give_the_same_losses(how: str):
    order = torch.tensor([3, 0, 1, 2])
    advantages = double(2, 2, 2, -1)
    loss = sequence_policy_loss(NEW, OLD, advantages, SEQ, how=how)
    shuffled = sequence_policy_loss(NEW[order], OLD[order], advantages[order], torch.tensor([0, 1, 1, 1]), how=how)
    torch.testing.assert_close(shuffled, loss[order], rtol=1e-12, atol=0)


@pytest.mark.parametrize("how", ["mean", "sum"])
def test_gradients_are_those_of_finite_differences(how: str):
    advantages = double(2, 2, 2, -1)
    assert torch.autograd.gradcheck(
        lambda new: sequence_policy_loss(new, OLD, advantages, SEQ, how=how, clip_low=0.01, clip_high=0.5),
        NEW.clone().requires_grad_(),
    )


def test_with_equal_advantages_the_token_form_teaches_what_the_mean_form_teaches():
    def of(how: str, advantages: torch.Tensor) -> torch.Tensor:
        logprobs = NEW.clone().requires_grad_()
        loss = sequence_policy_loss(logprobs, OLD, advantages, SEQ, how=how, clip_low=0.5, clip_high=0.5)
        return gradient(sequence_mean(loss, SEQ, num_sequences=2), logprobs)[0]

    equal, unequal = double(2, 2, 2, -1), double(2, 0, -2, -1)
    torch.testing.assert_close(of("token", equal), of("mean", equal), rtol=1e-12, atol=0)
    # and with advantages of their own, tokens are pushed apart, which one ratio for all can't do
    assert of("token", unequal).sign().tolist() == [-1, 0, 1, 1]
    assert of("mean", unequal)[:3].abs().max() < 1e-15


@ALL
def test_log_ratios_of_a_hundred_stay_finite_in_float32(how: str):
    logprobs = torch.tensor([100.0, 100.0, -100.0, -100.0]).requires_grad_()
    score_seq = torch.tensor([0, 0, 1, 1])
    loss = sequence_policy_loss(logprobs, torch.zeros(4), torch.tensor([-1.0, -1.0, 1.0, 1.0]), score_seq, how=how)
    assert loss.isfinite().all()
    assert gradient(loss, logprobs)[0].isfinite().all()


def _loss(how):
    def of(logprobs, batch):
        old = logprobs.detach() + per_token(batch, seed=3, scale=0.1)
        advantages = double(1, -2, 0.5, 1.5)[: batch.num_sequences][batch.score_seq]
        return sequence_policy_loss(logprobs, old, advantages, batch.score_seq, how=how, clip_low=0.9, clip_high=9.0)

    return of


@ALL
def test_an_unscored_token_cannot_reach_it(how: str):
    check_unscored_tokens_cannot_reach(_loss(how))


@ALL
def test_two_micro_batches_equal_one(how: str):
    def share(logprobs, part, whole):
        old = logprobs.detach() + per_token(part, seed=3, scale=0.1)
        loss = sequence_policy_loss(
            logprobs, old, per_token(part, seed=4), part.score_seq, how=how, clip_low=0.9, clip_high=9.0
        )
        return sequence_mean(loss, part.score_seq, num_sequences=whole.num_sequences)

    check_parts_add_up(share)


@ALL
def test_no_tokens_give_no_losses(how: str):
    assert sequence_policy_loss(double(), double(), double(), SEQ[:0], how=how).shape == (0,)


def test_an_unknown_ratio_is_refused_by_name():
    with pytest.raises(UnknownNameError, match=r"'tokens'.*'token'"):
        sequence_policy_loss(NEW, OLD, OLD, SEQ, how="tokens")
