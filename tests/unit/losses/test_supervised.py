from __future__ import annotations

import torch

from rlhf.losses.aggregation import token_mean
from rlhf.losses.supervised import nll_loss
from tests.unit.losses.helpers import check_parts_add_up, check_unscored_tokens_cannot_reach, double, gradient


def test_a_token_of_probability_one_half_costs_log_two():
    torch.testing.assert_close(nll_loss(double(0.5).log()), double(0.6931471805599453))


def test_a_uniform_model_has_the_vocabulary_as_perplexity():
    logprobs = torch.zeros(5, 32, dtype=torch.float64).log_softmax(-1)[:, 0]
    torch.testing.assert_close(
        token_mean(nll_loss(logprobs), num_tokens=5).exp(), torch.tensor(32.0, dtype=torch.float64)
    )


def test_every_scored_token_is_pushed_up_alike():
    logprobs = double(-0.1, -30, grad=True)
    assert gradient(nll_loss(logprobs), logprobs)[0].tolist() == [-1, -1]


def test_an_unscored_token_cannot_reach_it():
    check_unscored_tokens_cannot_reach(lambda logprobs, batch: nll_loss(logprobs))


def test_two_micro_batches_equal_one():
    check_parts_add_up(lambda logprobs, part, whole: token_mean(nll_loss(logprobs), num_tokens=whole.num_scored))
