from __future__ import annotations

import math

import pytest
import torch

from rlhf.errors import ConfigError
from rlhf.losses.preference import split_pairs
from rlhf.losses.reward import bradley_terry_loss, centring_penalty
from rlhf.losses.segments import segment_sum
from tests.unit.losses.helpers import check_parts_add_up, check_unscored_tokens_cannot_reach, double, gradient

LOG3 = math.log(3)


def test_a_lead_of_log_three_costs_log_four_thirds():
    # sigmoid(log 3) = 3/4, and -log(3/4) = 0.2876820724517809
    torch.testing.assert_close(bradley_terry_loss(double(2 + LOG3), double(2)), double(0.2876820724517809))


def test_a_margin_is_a_lead_that_is_asked_for():
    # the lead is the margin exactly: -log sigmoid(0) = log 2
    torch.testing.assert_close(bradley_terry_loss(double(5), double(3), margin=double(2)), double(math.log(2)))


def test_only_the_difference_of_the_scores_matters():
    chosen, rejected = double(0.5, -1), double(0.25, 3)
    torch.testing.assert_close(bradley_terry_loss(chosen + 100, rejected + 100), bradley_terry_loss(chosen, rejected))


def test_a_label_of_three_quarters_confidence_is_content_with_a_lead_of_log_three():
    chosen, rejected = double(LOG3, 5, 0, grad=True), double(0, 0, 0)
    (grad,) = gradient(bradley_terry_loss(chosen, rejected, label_smoothing=0.25), chosen)
    assert grad[0] == pytest.approx(0, abs=1e-15)
    assert grad[1] > 0 > grad[2], "more is too much, less is too little"


def test_a_pair_labelled_the_wrong_way_round_is_the_pair_swapped():
    chosen, rejected, margin = double(1, 2), double(0.5, 4), double(0.1, 0.7)
    wrong = double(0.2, 0.9)
    torch.testing.assert_close(
        bradley_terry_loss(chosen, rejected, margin=margin, label_smoothing=wrong),
        bradley_terry_loss(rejected, chosen, margin=margin, label_smoothing=1 - wrong),
    )


def test_each_pair_has_its_own_confidence():
    chosen, rejected = double(1, 1), double(0, 0)
    both = bradley_terry_loss(chosen, rejected, label_smoothing=double(0, 0.5))
    assert both[0] == bradley_terry_loss(chosen, rejected)[0]
    assert both[1] == bradley_terry_loss(chosen, rejected, label_smoothing=0.5)[1]


def test_the_chosen_score_is_pushed_up_and_the_rejected_one_down():
    chosen, rejected = double(0, grad=True), double(0, grad=True)
    up, down = gradient(bradley_terry_loss(chosen, rejected), chosen, rejected)
    assert (up.item(), down.item()) == (-0.5, 0.5)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
def test_gradients_are_those_of_finite_differences(smoothing: float):
    scores = double(0.3, -2, 1.5, grad=True), double(0, 0.5, -4, grad=True)
    margin = double(0.0, 1.0, 0.3)
    assert torch.autograd.gradcheck(
        lambda c, r: bradley_terry_loss(c, r, margin=margin, label_smoothing=smoothing) + centring_penalty(c, r), scores
    )


def test_scores_ten_thousand_apart_stay_finite():
    chosen, rejected = torch.tensor([1e4, -1e4]).requires_grad_(), torch.tensor([-1e4, 1e4])
    loss = bradley_terry_loss(chosen, rejected)
    assert loss.tolist() == [0, 2e4]
    assert gradient(loss, chosen)[0].tolist() == [0, -1]


def test_centring_by_hand_is_zero_only_for_opposite_scores():
    assert centring_penalty(double(3, 3), double(-3, -1)).tolist() == [0, 4]


def test_centring_pulls_both_scores_the_same_way():
    chosen, rejected = double(3, grad=True), double(-1, grad=True)
    assert [g.item() for g in gradient(centring_penalty(chosen, rejected), chosen, rejected)] == [4, 4]


def _loss(logprobs, batch):
    """A reward model's scores stand in: any differentiable number for each sequence."""
    chosen, rejected = split_pairs(segment_sum(logprobs, batch.score_seq, batch.num_sequences))
    return bradley_terry_loss(chosen, rejected, label_smoothing=0.1) + 0.01 * centring_penalty(chosen, rejected)


def test_an_unscored_token_cannot_reach_it():
    check_unscored_tokens_cannot_reach(_loss)


def test_two_micro_batches_equal_one():
    check_parts_add_up(lambda logprobs, part, whole: _loss(logprobs, part).sum() / (whole.num_sequences / 2))


def test_shapes_that_would_broadcast_are_refused():
    for extra in ({"margin": double(1)}, {"label_smoothing": double(0.1)}):
        with pytest.raises(ConfigError, match=r"shapes \[2\], \[1\]"):
            bradley_terry_loss(double(1, 2), double(1, 2), **extra)
    with pytest.raises(ConfigError, match=r"shapes \[2\], \[2, 1\]"):
        bradley_terry_loss(double(1, 2), double(1, 2)[:, None])
