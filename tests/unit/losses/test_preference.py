from __future__ import annotations

import math

import pytest
import torch

from rlhf.errors import ConfigError
from rlhf.losses.preference import (
    PREFERENCE_LOSSES,
    dpo_hinge_loss,
    dpo_loss,
    implicit_rewards,
    ipo_loss,
    split_pairs,
)
from rlhf.losses.segments import segment_sum
from tests.unit.losses.helpers import (
    check_parts_add_up,
    check_unscored_tokens_cannot_reach,
    double,
    gradient,
    per_token,
)

CHOSEN, REJECTED = double(-10, -30, -12), double(-14, -20, -12)
REF_CHOSEN, REF_REJECTED = double(-12, -31, -12), double(-13, -25, -12)
# log-ratios 2, 1, 0 and -1, 5, 0: margins 3, -4, 0
FOUR = (CHOSEN, REJECTED, REF_CHOSEN, REF_REJECTED)
ALL = pytest.mark.parametrize("loss", PREFERENCE_LOSSES.values(), ids=PREFERENCE_LOSSES.keys())


def test_dpo_by_hand():
    # beta 0.5: logits 1.5, -2, 0; -log sigmoid: log(1 + e^-1.5), log(1 + e^2), log 2
    torch.testing.assert_close(dpo_loss(*FOUR, beta=0.5), double(0.2014132779827524, 2.1269280110429727, math.log(2)))


def test_conservative_dpo_by_hand():
    # a quarter of labels wrong, logit 1.5: 0.75 * 0.2014132779827524 + 0.25 * (0.2014132779827524 + 1.5)
    first = dpo_loss(*FOUR, beta=0.5, label_smoothing=0.25)[0]
    torch.testing.assert_close(first, torch.tensor(0.5764132779827524, dtype=torch.float64))


def test_conservative_dpo_stops_at_the_margin_that_the_noise_allows():
    # minimum where sigmoid(beta margin) = 3/4, that is at a margin of log(3) / beta
    chosen = double(math.log(3) / 0.5, grad=True)
    loss = dpo_loss(chosen, double(0), double(0), double(0), beta=0.5, label_smoothing=0.25)
    assert gradient(loss, chosen)[0].item() == pytest.approx(0, abs=1e-15)


def test_hinge_by_hand():
    # beta 0.25: 1 - 0.75, 1 + 1, 1 - 0
    assert dpo_hinge_loss(*FOUR, beta=0.25).tolist() == [0.25, 2, 1]


def test_hinge_lets_go_of_a_pair_that_is_won():
    chosen = double(5, 3, grad=True)  # margins against zeros; beta 0.25 asks for 4
    loss = dpo_hinge_loss(chosen, double(0, 0), double(0, 0), double(0, 0), beta=0.25)
    assert gradient(loss, chosen)[0].tolist() == [0, -0.25]


def test_ipo_by_hand_in_nats_per_completion():
    # beta 0.25 draws the margin to 2: (3 - 2)^2, (-4 - 2)^2, (0 - 2)^2
    assert ipo_loss(*FOUR, beta=0.25).tolist() == [1, 36, 4]


def test_ipo_by_hand_in_nats_per_token():
    # log-ratios 2 / 4 and -1 / 2: margin 1; beta 0.25 draws it to 2
    loss = ipo_loss(*FOUR, beta=0.25, chosen_lengths=torch.tensor([4, 1, 1]), rejected_lengths=torch.tensor([2, 5, 3]))
    assert loss.tolist() == [1, (1 - 1 - 2) ** 2, 4]


def test_ipo_pulls_back_a_margin_that_went_too_far():
    chosen = double(1, 2, 3, grad=True)
    zeros = double(0, 0, 0)
    assert gradient(ipo_loss(chosen, zeros, zeros, zeros, beta=0.25), chosen)[0].tolist() == [-2, 0, 2]


def test_ipo_with_lengths_of_one_side_is_refused():
    with pytest.raises(ConfigError, match="one side only"):
        ipo_loss(*FOUR, beta=0.1, chosen_lengths=torch.tensor([1, 1, 1]))


@ALL
def test_a_policy_that_is_its_reference_has_the_same_loss_for_every_pair(loss):
    at_start = loss(CHOSEN, REJECTED, CHOSEN, REJECTED, beta=0.5)
    assert at_start.tolist() == pytest.approx([at_start[0].item()] * 3)
    assert at_start[0].item() == pytest.approx({dpo_loss: math.log(2), dpo_hinge_loss: 1.0, ipo_loss: 1.0}[loss])


@ALL
def test_what_policy_and_reference_agree_on_cancels(loss):
    shift = double(3, -50, 0.25)
    torch.testing.assert_close(
        loss(CHOSEN + shift, REJECTED, REF_CHOSEN + shift, REF_REJECTED, beta=0.3), loss(*FOUR, beta=0.3)
    )


@ALL
def test_chosen_is_pushed_up_and_rejected_down_by_the_same_amount(loss):
    chosen, rejected = CHOSEN.clone().requires_grad_(), REJECTED.clone().requires_grad_()
    up, down = gradient(loss(chosen, rejected, REF_CHOSEN, REF_REJECTED, beta=0.1), chosen, rejected)
    assert (up < 0).all()
    assert torch.equal(up, -down)


@ALL
def test_gradients_are_those_of_finite_differences(loss):
    inputs = [tensor.clone().requires_grad_() for tensor in FOUR]
    assert torch.autograd.gradcheck(lambda *four: loss(*four, beta=0.13), inputs)


def test_gradients_of_the_other_variants_are_those_of_finite_differences():
    inputs = [tensor.clone().requires_grad_() for tensor in FOUR]
    lengths = torch.tensor([3, 1, 7]), torch.tensor([2, 2, 5])
    assert torch.autograd.gradcheck(lambda *four: dpo_loss(*four, beta=0.2, label_smoothing=0.1), inputs)
    assert torch.autograd.gradcheck(
        lambda *four: ipo_loss(*four, beta=0.2, chosen_lengths=lengths[0], rejected_lengths=lengths[1]), inputs
    )


@ALL
def test_log_ratios_of_thousands_stay_finite_in_float32(loss):
    chosen = torch.tensor([-1e4, 0.0, -100.0]).requires_grad_()
    rejected, zeros = torch.tensor([0.0, -1e4, 0.0]), torch.zeros(3)
    value = loss(chosen, rejected, zeros, zeros, beta=0.5)
    assert value.isfinite().all()
    assert gradient(value, chosen)[0].isfinite().all()


def test_a_pair_lost_by_far_still_pulls_with_all_of_beta():
    chosen = torch.tensor([-1e4]).requires_grad_()
    zeros = torch.zeros(1)
    loss = dpo_loss(chosen, zeros, zeros, zeros, beta=0.5)
    assert loss.item() == 5000
    assert gradient(loss, chosen)[0].item() == -0.5


def _loss(name, logprobs, batch):
    summed = split_pairs(segment_sum(logprobs, batch.score_seq, batch.num_sequences))
    reference = split_pairs(segment_sum(per_token(batch, seed=5) - 2, batch.score_seq, batch.num_sequences))
    return PREFERENCE_LOSSES[name](*summed, *reference, beta=0.1)


@pytest.mark.parametrize("name", PREFERENCE_LOSSES)
def test_an_unscored_token_cannot_reach_it(name: str):
    check_unscored_tokens_cannot_reach(lambda logprobs, batch: _loss(name, logprobs, batch))


@pytest.mark.parametrize("name", PREFERENCE_LOSSES)
def test_two_micro_batches_equal_one(name: str):
    check_parts_add_up(lambda logprobs, part, whole: _loss(name, logprobs, part).sum() / (whole.num_sequences / 2))


def test_implicit_rewards_by_hand():
    assert implicit_rewards(CHOSEN, REF_CHOSEN, beta=0.5).tolist() == [1, 0.5, 0]


def test_the_dpo_loss_is_the_bradley_terry_loss_of_implicit_rewards():
    from rlhf.losses.reward import bradley_terry_loss

    rewards = implicit_rewards(CHOSEN, REF_CHOSEN, beta=0.3), implicit_rewards(REJECTED, REF_REJECTED, beta=0.3)
    torch.testing.assert_close(dpo_loss(*FOUR, beta=0.3), bradley_terry_loss(*rewards))


def test_pairs_are_split_in_packing_order():
    chosen, rejected = split_pairs(torch.arange(6))
    assert (chosen.tolist(), rejected.tolist()) == ([0, 2, 4], [1, 3, 5])


def test_an_odd_number_of_sequences_is_not_pairs():
    with pytest.raises(ConfigError, match="got 3 sequences"):
        split_pairs(torch.arange(3))


@ALL
def test_shapes_that_would_broadcast_are_refused(loss):
    with pytest.raises(ConfigError, match=r"shapes \[3\], \[3\], \[3, 1\], \[3\]"):
        loss(CHOSEN, REJECTED, REF_CHOSEN[:, None], REF_REJECTED, beta=0.1)
