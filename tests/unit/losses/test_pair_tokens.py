from __future__ import annotations

import math

import pytest
import torch

from rlhf.errors import ConfigError
from rlhf.losses.pair_tokens import chosen_nll, length_desensitized_logprobs, log_collision_probs, wpo_weights
from rlhf.losses.preference import dpo_loss
from rlhf.losses.segments import segment_sum, split_pairs
from tests.unit.losses.helpers import (
    check_parts_add_up,
    check_unscored_tokens_cannot_reach,
    double,
    gradient,
    per_token,
)

# two pairs: completions of 3 and 1 tokens, of 2 and 4
SEQ = torch.tensor([0, 0, 0, 1, 2, 2, 3, 3, 3, 3])
LOGPROBS = double(-1, -2, -4, -8, -1, -1, -1, -2, -3, -4)


def test_the_likelihood_term_by_hand():
    # (1 + 2 + 4) / 3 and (1 + 1) / 2
    torch.testing.assert_close(chosen_nll(LOGPROBS, SEQ, 4), double(7 / 3, 1))


def test_the_likelihood_term_teaches_chosen_tokens_only():
    leaf = LOGPROBS.clone().requires_grad_()
    grad = gradient(chosen_nll(leaf, SEQ, 4), leaf)[0]
    torch.testing.assert_close(grad, double(*[-1 / 3] * 3, 0, *[-1 / 2] * 2, 0, 0, 0, 0))


def test_length_desensitized_sums_by_hand():
    # one token is shared: -1 - 6 / 4 and -8; two are: -2 and -1 - 2 - 7 / 4
    sums = length_desensitized_logprobs(LOGPROBS, SEQ, 4, alpha=0.25)
    torch.testing.assert_close(sums, double(-2.5, -8, -2, -4.75))


def test_length_desensitized_sums_at_the_ends_of_alpha():
    assert torch.equal(length_desensitized_logprobs(LOGPROBS, SEQ, 4, alpha=1), segment_sum(LOGPROBS, SEQ, 4))
    assert length_desensitized_logprobs(LOGPROBS, SEQ, 4, alpha=0).tolist() == [-1, -8, -2, -3]


def test_a_completion_without_scored_tokens_shares_none():
    sums = length_desensitized_logprobs(double(-1, -3), torch.tensor([0, 0]), 2, alpha=0.5)
    assert sums.tolist() == [-2, 0]


def test_length_desensitized_gradients_are_those_of_finite_differences():
    leaf = LOGPROBS.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: length_desensitized_logprobs(x, SEQ, 4, alpha=0.3), [leaf])


@pytest.mark.parametrize("alpha", [-0.1, 1.1])
def test_an_alpha_outside_its_range_is_refused(alpha):
    with pytest.raises(ConfigError, match=rf"alpha .*got {alpha}"):
        length_desensitized_logprobs(LOGPROBS, SEQ, 4, alpha=alpha)


def test_sequences_that_are_not_pairs_are_refused():
    with pytest.raises(ConfigError, match="got 3 sequences"):
        length_desensitized_logprobs(LOGPROBS[:6], SEQ[:6], 3, alpha=0.5)


def test_collision_probabilities_by_hand():
    # certain: 1; uniform over 4: 1/4; (3/4, 1/4): 10/16
    never = -math.inf
    logits = torch.stack([double(0, never, never, never), double(2, 2, 2, 2), double(math.log(3), 0, never, never)])
    torch.testing.assert_close(
        log_collision_probs(logits), double(0, math.log(1 / 4), math.log(10 / 16)), rtol=1e-12, atol=1e-12
    )
    assert log_collision_probs(logits.half()).dtype == torch.float32


def test_wpo_weights_by_hand():
    # excess per token: means log 1/2 and 0 in the first pair, 0 and log 3 in the second
    collision = LOGPROBS - torch.tensor([math.log(1 / 2)] * 3 + [0.0] * 3 + [math.log(3)] * 4, dtype=torch.float64)
    torch.testing.assert_close(wpo_weights(LOGPROBS, collision, SEQ, 4), double(0.5, 3))


def test_a_completion_of_a_uniform_policy_weighs_one_whatever_its_length():
    logits = torch.zeros(10, 7, dtype=torch.float64)
    logprobs = logits.log_softmax(-1)[:, 0]
    torch.testing.assert_close(wpo_weights(logprobs, log_collision_probs(logits), SEQ, 4), double(1, 1))


def test_wpo_weights_carry_no_gradient():
    leaf = LOGPROBS.clone().requires_grad_()
    assert not wpo_weights(leaf, 2 * leaf, SEQ, 4).requires_grad


def _desensitized(logprobs, batch):
    terms = batch.score_seq, batch.num_sequences
    policy = split_pairs(length_desensitized_logprobs(logprobs, *terms, alpha=0.3))
    reference = split_pairs(length_desensitized_logprobs(per_token(batch, seed=5) - 2, *terms, alpha=0.3))
    return dpo_loss(*policy, *reference, beta=0.1)


def _weighted(logprobs, batch):
    terms = batch.score_seq, batch.num_sequences
    policy, reference = (split_pairs(segment_sum(x, *terms)) for x in (logprobs, per_token(batch, seed=5) - 2))
    return dpo_loss(*policy, *reference, beta=0.1) * wpo_weights(logprobs, per_token(batch, seed=6) - 2, *terms)


@pytest.mark.parametrize("loss", [_desensitized, _weighted])
def test_an_unscored_token_cannot_reach_it_and_two_micro_batches_equal_one(loss):
    check_unscored_tokens_cannot_reach(loss)
    check_parts_add_up(lambda logprobs, part, whole: loss(logprobs, part).sum() / (whole.num_sequences / 2))


def test_two_micro_batches_equal_one_for_the_likelihood_term():
    check_parts_add_up(
        lambda logprobs, part, whole: (
            chosen_nll(logprobs, part.score_seq, part.num_sequences).sum() / (whole.num_sequences / 2)
        )
    )
