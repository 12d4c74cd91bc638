from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf.errors import ConfigError
from rlhf.losses.reward import (
    binary_loss,
    bradley_terry_loss,
    centering_penalty,
    hinge_margin_loss,
    label_noise,
    rating_loss,
)
from rlhf.losses.segments import segment_sum, split_pairs
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


def test_a_pair_labeled_the_wrong_way_round_is_the_pair_swapped():
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
        lambda c, r: bradley_terry_loss(c, r, margin=margin, label_smoothing=smoothing) + centering_penalty(c, r),
        scores,
    )


def test_scores_ten_thousand_apart_stay_finite():
    chosen, rejected = torch.tensor([1e4, -1e4]).requires_grad_(), torch.tensor([-1e4, 1e4])
    loss = bradley_terry_loss(chosen, rejected)
    assert loss.tolist() == [0, 2e4]
    assert gradient(loss, chosen)[0].tolist() == [0, -1]


def test_centering_by_hand_is_zero_only_for_opposite_scores():
    assert centering_penalty(double(3, 3), double(-3, -1)).tolist() == [0, 4]


def test_centering_pulls_both_scores_the_same_way():
    chosen, rejected = double(3, grad=True), double(-1, grad=True)
    assert [g.item() for g in gradient(centering_penalty(chosen, rejected), chosen, rejected)] == [4, 4]


def _loss(logprobs, batch):
    """A reward model's scores stand in: any differentiable number for each sequence."""
    chosen, rejected = split_pairs(segment_sum(logprobs, batch.score_seq, batch.num_sequences))
    return bradley_terry_loss(chosen, rejected, label_smoothing=0.1) + 0.01 * centering_penalty(chosen, rejected)


def _hinge(logprobs, batch):
    return hinge_margin_loss(*split_pairs(segment_sum(logprobs, batch.score_seq, batch.num_sequences)), margin=100.0)


def _rating(logprobs, batch):
    scores = segment_sum(logprobs, batch.score_seq, batch.num_sequences)
    return rating_loss(scores, torch.full_like(scores, 3.0))


def _binary(logprobs, batch):
    scores = segment_sum(logprobs, batch.score_seq, batch.num_sequences)
    return binary_loss(scores, torch.full_like(scores, 0.8), label_smoothing=0.1, negative_weight=2.0)


LOSSES = pytest.mark.parametrize("loss_of", [_loss, _hinge, _rating, _binary])


@LOSSES
def test_an_unscored_token_cannot_reach_it(loss_of):
    check_unscored_tokens_cannot_reach(loss_of)


@LOSSES
def test_two_micro_batches_equal_one(loss_of):
    check_parts_add_up(lambda logprobs, part, whole: loss_of(logprobs, part).sum() / whole.num_sequences)


SCORES = st.lists(st.tuples(st.floats(-20, 20), st.floats(-20, 20)), min_size=1, max_size=6)


@settings(deadline=None)
@given(SCORES, st.floats(-50, 50), st.randoms(use_true_random=False))
def test_bradley_terry_sees_neither_a_shift_of_all_scores_nor_the_order_of_pairs(pairs, shift, random):
    chosen, rejected = torch.tensor(pairs, dtype=torch.float64).T
    loss = bradley_terry_loss(chosen, rejected, label_smoothing=0.1)
    torch.testing.assert_close(bradley_terry_loss(chosen + shift, rejected + shift, label_smoothing=0.1), loss)
    order = random.sample(range(len(pairs)), len(pairs))
    assert torch.equal(bradley_terry_loss(chosen[order], rejected[order], label_smoothing=0.1), loss[order])


@settings(deadline=None)
@given(SCORES)
def test_the_two_outcomes_of_a_pair_have_probability_one(pairs):
    chosen, rejected = torch.tensor(pairs, dtype=torch.float64).T
    wins, losses = (-bradley_terry_loss(chosen, rejected)).exp(), (-bradley_terry_loss(rejected, chosen)).exp()
    torch.testing.assert_close(wins + losses, torch.ones_like(wins))


def test_a_margin_that_could_learn_would_shrink():
    # the reason why margins are learned by graded_loss: here every pair pulls them down
    chosen, margin = double(-3, 0, 3), double(1, 1, 1, grad=True)
    assert (gradient(bradley_terry_loss(chosen, torch.zeros_like(chosen), margin=margin), margin)[0] > 0).all()


def test_the_probability_of_a_wrong_label_by_hand():
    # sure: the smoothing alone; right three times in four: 0.1 * 3/4 + 0.9 * 1/4; a guess: 1/2
    probability = double(1, 0.75, 0.5)
    torch.testing.assert_close(label_noise(probability), double(0, 0.25, 0.5))
    torch.testing.assert_close(label_noise(probability, label_smoothing=0.1), double(0.1, 0.3, 0.5))


def test_an_unsure_annotator_teaches_less_and_never_the_opposite():
    chosen, rejected = torch.zeros(5).requires_grad_(), torch.zeros(5)
    noise = label_noise(torch.tensor([1.0, 0.85, 0.7, 0.55, 0.5]))
    (grad,) = gradient(bradley_terry_loss(chosen, rejected, label_smoothing=noise), chosen)
    assert (grad <= 0).all()
    assert (grad.diff() > 0).all()
    assert grad[-1] == 0


def test_the_hinge_asks_for_what_is_missing_of_the_margin():
    # leads 3, 0.25 and -2 with a margin of 1: 0, 0.75 and 3
    chosen, rejected = double(3, 1, 0), double(0, 0.75, 2)
    assert hinge_margin_loss(chosen, rejected).tolist() == [0, 0.75, 3]
    assert hinge_margin_loss(chosen, rejected, margin=double(4, 0.5, 0)).tolist() == [1, 0.25, 2]


def test_a_pair_that_keeps_its_margin_has_no_gradient_and_the_others_all_the_same():
    chosen, rejected = double(3, 0, -1e6, grad=True), double(0, 0, 0, grad=True)
    up, down = gradient(hinge_margin_loss(chosen, rejected), chosen, rejected)
    assert up.tolist() == [0, -1, -1]
    assert down.tolist() == [0, 1, 1]


def test_a_rating_is_missed_by_the_square():
    scores = double(1, 4, 3, grad=True)
    loss = rating_loss(scores, double(3, 4, 2))
    assert loss.tolist() == [4, 0, 1]
    assert gradient(loss, scores)[0].tolist() == [-4, 0, 2]


def test_a_score_of_log_three_is_three_quarters_sure_that_it_is_good():
    # -log 3/4, and -log 1/4
    torch.testing.assert_close(
        binary_loss(double(LOG3, LOG3), double(1, 0)), double(0.2876820724517809, 1.3862943611198906)
    )


def test_a_soft_label_is_the_probability_that_the_score_should_say():
    scores = double(LOG3, 0, 3, grad=True)
    (grad,) = gradient(binary_loss(scores, double(0.75, 0.75, 0.75)), scores)
    assert grad[0] == pytest.approx(0, abs=1e-15)
    assert grad[1] < 0 < grad[2]


def test_smoothing_makes_labels_soft_and_bad_ones_can_weigh_more():
    scores = double(0.3, 0.3)
    torch.testing.assert_close(
        binary_loss(scores, double(1, 0), label_smoothing=0.1), binary_loss(scores, double(0.9, 0.1))
    )
    torch.testing.assert_close(
        binary_loss(scores, double(1, 0), negative_weight=3.0), binary_loss(scores, double(1, 0)) * double(1, 3)
    )


@pytest.mark.parametrize(
    "loss_of",
    [
        lambda scores: hinge_margin_loss(scores, double(0.1, 0.2, 9), margin=double(1, 2, 1)),
        lambda scores: rating_loss(scores, double(1, 5, 3)),
        lambda scores: binary_loss(scores, double(1, 0, 0.3), label_smoothing=0.1, negative_weight=2.0),
    ],
    ids=["hinge", "rating", "binary"],
)
def test_their_gradients_are_those_of_finite_differences(loss_of):
    assert torch.autograd.gradcheck(loss_of, (double(0.3, -2, 25, grad=True),))


def test_binary_scores_of_ten_thousand_stay_finite():
    scores = torch.tensor([1e4, -1e4, 1e4, -1e4]).requires_grad_()
    loss = binary_loss(scores, torch.tensor([1.0, 1.0, 0.0, 0.0]))
    assert loss.tolist() == [0, 1e4, 1e4, 0]
    assert gradient(loss, scores)[0].tolist() == [0, -1, 1, 0]


def test_shapes_that_would_broadcast_are_refused():
    column = double(1, 2)[:, None]
    for loss in (hinge_margin_loss, rating_loss, binary_loss, centering_penalty):
        with pytest.raises(ConfigError, match=r"shapes \[2\], \[2, 1\]"):
            loss(double(1, 2), column)
    with pytest.raises(ConfigError, match=r"shapes \[2\], \[1\]"):
        hinge_margin_loss(double(1, 2), double(1, 2), margin=double(1))
    for extra in ({"margin": double(1)}, {"label_smoothing": double(0.1)}):
        with pytest.raises(ConfigError, match=r"shapes \[2\], \[1\]"):
            bradley_terry_loss(double(1, 2), double(1, 2), **extra)
    with pytest.raises(ConfigError, match=r"shapes \[2\], \[2, 1\]"):
        bradley_terry_loss(double(1, 2), double(1, 2)[:, None])


def test_a_hinge_under_label_noise_keeps_its_minimum_at_the_margin():
    chosen, rejected = double(0.5, 3), double(0, 0)
    loss = hinge_margin_loss(chosen, rejected, margin=2.0, label_smoothing=double(0.25, 0.5))
    # lead 1/2: 3/4 of 1.5 and 1/4 of 2.5; lead 3, a coin: half of 0 and half of 5
    assert loss.tolist() == [1.75, 2.5]
    leads = double(*[n / 10 for n in range(-30, 51)])
    asked = hinge_margin_loss(leads, leads * 0, margin=2.0, label_smoothing=0.3)
    assert float(leads[asked.argmin()]) == 2.0
    with pytest.raises(ConfigError, match="label_smoothing"):
        hinge_margin_loss(chosen, rejected, label_smoothing=0.6)
