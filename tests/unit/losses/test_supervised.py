from __future__ import annotations

import math

import pytest
import torch

from rlhf.errors import ConfigError
from rlhf.losses.aggregation import token_mean
from rlhf.losses.supervised import dft_loss, label_smoothed_loss, nll_loss
from tests.unit.losses.helpers import (
    check_parts_add_up,
    check_unscored_tokens_cannot_reach,
    double,
    gradient,
    per_token,
)


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


def test_smoothing_by_hand():
    # p = (1/2, 1/4, 1/4): mean log p = -(5/3) log 2; at s = 0.3 the loss is (0.7 + 0.5) log 2
    mean = double(0.5, 0.25, 0.25).log().mean()[None]
    torch.testing.assert_close(
        label_smoothed_loss(double(0.5).log(), mean, label_smoothing=0.3), double(1.2 * math.log(2))
    )


def test_smoothing_is_content_before_certainty():
    # two tokens, s = 0.2: the target is (0.9, 0.1), so logits log 9 apart have no gradient, and more is too much
    def slope(lead: float) -> float:
        logits = double(lead, 0, grad=True)
        logprobs = logits.log_softmax(0)
        return gradient(label_smoothed_loss(logprobs[:1], logprobs.mean()[None], label_smoothing=0.2), logits)[0][0]

    assert slope(math.log(9)) == pytest.approx(0, abs=1e-15)
    assert slope(4) > 0 > slope(1)


def test_no_smoothing_is_the_plain_loss_whatever_the_vocabulary_says():
    logprobs = double(-0.3, -7)
    assert torch.equal(label_smoothed_loss(logprobs, double(-20, -1e4), label_smoothing=0.0), nll_loss(logprobs))


def test_dynamic_fine_tuning_by_hand():
    # 1/2 log 2, and 1/4 log 4: equal
    torch.testing.assert_close(dft_loss(double(0.5, 0.25).log()), double(0.34657359027997264, 0.34657359027997264))


def test_dynamic_fine_tuning_learns_as_if_it_raised_the_probability_itself():
    # the trap: a weight that carries a gradient gives -(1 + log p) p instead, which turns round below p = 1/e
    probs = double(0.9, 0.3, 0.01, grad=True)
    assert gradient(dft_loss(probs.log()), probs)[0].tolist() == pytest.approx([-1, -1, -1])


def test_dynamic_fine_tuning_all_but_ignores_what_the_model_finds_absurd():
    logprobs = torch.tensor([-1e4, -30.0, 0.0]).requires_grad_()
    loss = dft_loss(logprobs)
    assert loss.tolist() == pytest.approx([0, 0, 0], abs=1e-11)
    assert gradient(loss, logprobs)[0].tolist() == pytest.approx([0, -math.exp(-30), -1], rel=1e-5, abs=1e-30)


def test_smoothed_log_probabilities_of_minus_ten_thousand_stay_finite():
    logprobs, mean = torch.tensor([-1e4]).requires_grad_(), torch.tensor([-2e4])
    loss = label_smoothed_loss(logprobs, mean, label_smoothing=0.5)
    assert loss.item() == 1.5e4
    assert gradient(loss, logprobs)[0].item() == -0.5


def test_the_gradient_of_smoothing_is_that_of_finite_differences():
    assert torch.autograd.gradcheck(
        lambda p, m: label_smoothed_loss(p, m, label_smoothing=0.1),
        (double(-1, -20, grad=True), double(-5, -6, grad=True)),
    )


LOSSES = pytest.mark.parametrize(
    "loss_of",
    [
        lambda logprobs, batch: nll_loss(logprobs),
        lambda logprobs, batch: label_smoothed_loss(logprobs, per_token(batch, seed=1) - 3, label_smoothing=0.1),
        lambda logprobs, batch: dft_loss(logprobs),
    ],
    ids=["nll", "smoothed", "dft"],
)


@LOSSES
def test_an_unscored_token_cannot_reach_it(loss_of):
    check_unscored_tokens_cannot_reach(loss_of)


@LOSSES
def test_two_micro_batches_equal_one(loss_of):
    check_parts_add_up(lambda logprobs, part, whole: token_mean(loss_of(logprobs, part), num_tokens=whole.num_scored))


def test_shapes_that_would_broadcast_are_refused():
    with pytest.raises(ConfigError, match=r"shapes \[2\], \[1\]"):
        label_smoothed_loss(double(-1, -2), double(-1), label_smoothing=0.1)
