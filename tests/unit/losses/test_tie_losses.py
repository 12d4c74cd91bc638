from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf.errors import ConfigError
from rlhf.losses.reward import bradley_terry_loss
from rlhf.losses.segments import segment_sum, split_pairs
from rlhf.losses.tie_losses import (
    davidson_logprobs,
    davidson_loss,
    graded_loss,
    ordered_margins,
    rao_kupper_logprobs,
    rao_kupper_loss,
)
from tests.unit.losses.helpers import check_parts_add_up, check_unscored_tokens_cannot_reach, double, gradient

LOG2, LOG3 = math.log(2), math.log(3)
WIN, TIE = torch.tensor([False]), torch.tensor([True])
MODELS = pytest.mark.parametrize(
    "logprobs_of",
    [
        lambda a, b: rao_kupper_logprobs(a, b, threshold=0.7),
        lambda a, b: davidson_logprobs(a, b, tie_weight=0.7),
    ],
    ids=["rao_kupper", "davidson"],
)


def test_rao_and_kupper_by_hand():
    # strengths 6 and 1, theta 2: wins 6 / (6 + 2), loses 1 / (1 + 12), ties what is left
    actual = rao_kupper_logprobs(double(math.log(6)), double(0), threshold=LOG2).exp()
    torch.testing.assert_close(actual, double(3 / 4, 1 - 3 / 4 - 1 / 13, 1 / 13)[None])


def test_davidson_by_hand():
    # strengths 4 and 1, nu 1.5: 4 to 1.5 * sqrt(4) to 1, of 8
    actual = davidson_logprobs(double(math.log(4)), double(0), tie_weight=1.5).exp()
    torch.testing.assert_close(actual, double(4 / 8, 3 / 8, 1 / 8)[None])


def test_a_scale_of_five_steps_by_hand():
    # equal scores, margins log 2 and log 3: sigmoid(-log 3) = 1/4; sigmoid(-log 2) - 1/4 = 1/12; 1 - 2 * 1/3 = 1/3
    zero = double(0, 0, 0)
    actual = graded_loss(zero, zero, torch.tensor([2, 1, 0]), margins=double(LOG2, LOG3))
    torch.testing.assert_close((-actual).exp(), double(1 / 4, 1 / 12, 1 / 3))


LEADS = st.lists(st.tuples(st.floats(-30, 30), st.floats(-30, 30)), min_size=1, max_size=5)


@MODELS
@settings(deadline=None)
@given(pairs=LEADS)
def test_win_tie_and_loss_have_probability_one_and_swap_with_the_pair(logprobs_of, pairs):
    first, second = torch.tensor(pairs, dtype=torch.float64).T
    actual = logprobs_of(first, second)
    torch.testing.assert_close(actual.exp().sum(1), torch.ones(len(pairs), dtype=torch.float64))
    torch.testing.assert_close(logprobs_of(second, first), actual.flip(1))
    torch.testing.assert_close(logprobs_of(first + 7, second + 7), actual)


@settings(deadline=None)
@given(pairs=LEADS, raw=st.lists(st.floats(-3, 3), min_size=1, max_size=4))
def test_all_grades_of_both_directions_have_probability_one(pairs, raw):
    first, second = torch.tensor(pairs, dtype=torch.float64).T
    margins = ordered_margins(torch.tensor(raw, dtype=torch.float64))
    grade = torch.zeros(len(pairs), dtype=torch.int64)
    total = (-graded_loss(first, second, grade, margins=margins)).exp()
    for k in range(1, len(raw) + 1):
        total = total + (-graded_loss(first, second, grade + k, margins=margins)).exp()
        total = total + (-graded_loss(second, first, grade + k, margins=margins)).exp()
    torch.testing.assert_close(total, torch.ones_like(total))


@settings(deadline=None)
@given(pairs=LEADS)
def test_without_room_for_ties_all_are_bradley_and_terrys(pairs):
    chosen, rejected = torch.tensor(pairs, dtype=torch.float64).T
    plain = bradley_terry_loss(chosen, rejected)
    none = torch.zeros(len(pairs), dtype=torch.bool)
    for loss in (
        rao_kupper_loss(chosen, rejected, none, threshold=0.0),
        davidson_loss(chosen, rejected, none, tie_weight=0.0),
        graded_loss(chosen, rejected, none.long() + 1, margins=double(0)),
    ):
        torch.testing.assert_close(loss, plain, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    "loss", [lambda *a: rao_kupper_loss(*a, threshold=0.0), lambda *a: davidson_loss(*a, tie_weight=0.0)]
)
def test_their_gradients_are_bradley_and_terrys_too(loss):
    chosen, rejected = double(-40, -0.3, 5, grad=True), double(0, 0, 0)
    none = torch.zeros(3, dtype=torch.bool)
    torch.testing.assert_close(
        gradient(loss(chosen, rejected, none), chosen), gradient(bradley_terry_loss(chosen, rejected), chosen)
    )


@pytest.mark.parametrize(
    "loss", [lambda *a: rao_kupper_loss(*a, threshold=1.0), lambda *a: davidson_loss(*a, tie_weight=1.0)]
)
def test_a_tie_draws_scores_together_and_a_win_apart(loss):
    chosen, rejected = double(2, -2, grad=True), double(0, 0)
    assert gradient(loss(chosen, rejected, torch.tensor([True, True])), chosen)[0].sign().tolist() == [1, -1]
    assert gradient(loss(chosen, rejected, torch.tensor([False, False])), chosen)[0].sign().tolist() == [-1, -1]


def test_a_tie_counts_as_half_a_win_and_half_a_loss_in_davidsons_model():
    # wins + ties / 2 expected is what the score's gradient holds against the observed: 1, 1/2, 0
    first, second = double(0.4, 0.4, grad=True), double(0, 0)
    expected = davidson_logprobs(first[:1], second[:1], tie_weight=0.8).detach().exp()[0] @ double(1, 0.5, 0)
    (grad,) = gradient(davidson_loss(first, second, torch.tensor([True, False]), tie_weight=0.8), first)
    torch.testing.assert_close(grad, torch.stack([expected - 0.5, expected - 1]))


@pytest.mark.parametrize("lead", [-3.0, 0.0, 0.4])
def test_margins_and_scores_are_found_together(lead: float):
    # at the truth, over judgments drawn from it, the expected gradient of everything is 0: nothing shrinks
    score, raw = double(lead, grad=True), double(-0.5, 0.3, grad=True)
    margins = ordered_margins(raw)
    zero = double(0)
    losses = [graded_loss(score, zero, torch.tensor([k]), margins=margins) for k in (0, 1, 2)]
    losses += [graded_loss(zero, score, torch.tensor([k]), margins=margins) for k in (1, 2)]
    expected = sum((-loss).exp().detach() * loss for loss in losses)
    for grad in torch.autograd.grad(expected, (score, raw)):
        assert grad.abs().max() < 1e-14


def test_margins_of_free_numbers_rise():
    margins = ordered_margins(double(-30, 0, 5))
    torch.testing.assert_close(margins[1] - margins[0], torch.tensor(LOG2, dtype=torch.float64))
    assert margins[0] > 0
    assert (margins.diff() > 0).all()


def test_gradients_are_those_of_finite_differences():
    chosen, rejected = double(0.3, -2, 1.5, 0, grad=True), double(0, 0.5, -4, 0.1, grad=True)
    tied = torch.tensor([True, False, False, True])
    one = torch.tensor(0.6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda a, b, t: rao_kupper_loss(a, b, tied, threshold=t), (chosen, rejected, one))
    assert torch.autograd.gradcheck(lambda a, b, t: davidson_loss(a, b, tied, tie_weight=t), (chosen, rejected, one))
    assert torch.autograd.gradcheck(
        lambda a, b, raw: graded_loss(a, b, torch.tensor([0, 1, 2, 2]), margins=ordered_margins(raw)),
        (chosen, rejected, double(-1, 0.5, grad=True)),
    )


def test_scores_ten_thousand_apart_stay_finite():
    chosen, rejected = torch.tensor([1e4, -1e4, 1e4, -1e4]).requires_grad_(), torch.zeros(4)
    tied = torch.tensor([False, False, True, True])
    for loss, tie in (
        (rao_kupper_loss(chosen, rejected, tied, threshold=1.0), 1e4),
        (davidson_loss(chosen, rejected, tied, tie_weight=1.0), 5e3),
        (graded_loss(chosen, rejected, torch.tensor([1, 2, 0, 0]), margins=torch.tensor([1.0, 2.0])), 1e4),
    ):
        assert loss[1:].tolist() == pytest.approx([1e4, tie, tie], rel=1e-3)
        assert loss.isfinite().all()
        assert gradient(loss, chosen)[0].isfinite().all()


def test_a_tie_where_none_can_be_is_infinitely_unlikely():
    assert rao_kupper_loss(double(1), double(1), TIE, threshold=0.0).item() == math.inf
    assert davidson_loss(double(1), double(1), TIE, tie_weight=0.0).item() == math.inf
    assert rao_kupper_loss(double(1), double(1), WIN, threshold=0.0).item() == pytest.approx(LOG2)


def _in_batch(loss):
    def loss_of(logprobs, batch):
        chosen, rejected = split_pairs(segment_sum(logprobs, batch.score_seq, batch.num_sequences))
        return loss(chosen, rejected, batch.tokens[batch.start[0::2].long()] == 3)

    return loss_of


LOSSES = pytest.mark.parametrize(
    "loss",
    [
        lambda a, b, tied: rao_kupper_loss(a, b, tied, threshold=0.5),
        lambda a, b, tied: davidson_loss(a, b, tied, tie_weight=0.5),
        lambda a, b, tied: graded_loss(a, b, 2 - 2 * tied.long(), margins=double(0.5, 1.5)),
    ],
    ids=["rao_kupper", "davidson", "graded"],
)


@LOSSES
def test_an_unscored_token_cannot_reach_it(loss):
    check_unscored_tokens_cannot_reach(_in_batch(loss))


@LOSSES
def test_two_micro_batches_equal_one(loss):
    check_parts_add_up(lambda logprobs, part, whole: _in_batch(loss)(logprobs, part).sum() / (whole.num_sequences / 2))


@pytest.mark.parametrize("margins", [(), (-0.1,), (1, 1), (2, 1), (0, 1, 0.5)])
def test_margins_out_of_order_are_refused(margins):
    with pytest.raises(ConfigError, match=r"larger.*got \["):
        graded_loss(double(1), double(0), torch.tensor([1]), margins=double(*margins))


def test_a_negative_threshold_or_weight_is_refused():
    with pytest.raises(ConfigError, match=r"0 or above.*got \[-0\.5\]"):
        rao_kupper_loss(double(1), double(0), WIN, threshold=-0.5)
    with pytest.raises(ConfigError, match=r"tie is -2"):
        davidson_loss(double(1), double(0), WIN, tie_weight=-2)


@LOSSES
def test_shapes_that_would_broadcast_are_refused(loss):
    with pytest.raises(ConfigError, match="one length"):
        loss(double(1, 2), double(1, 2), TIE)
    with pytest.raises(ConfigError, match="one length"):
        loss(double(1, 2), double(1), torch.tensor([True, False]))
