from __future__ import annotations

import math

import pytest
import torch

from rlhf.errors import ConfigError
from rlhf.losses.preference import (
    discopop_loss,
    dpo_hinge_loss,
    dpo_loss,
    exo_loss,
    implicit_rewards,
    ipo_loss,
    length_normalized_dpo_loss,
    robust_dpo_loss,
)
from rlhf.losses.segments import split_pairs
from tests.unit.losses.helpers import double, gradient

CHOSEN, REJECTED = double(-10, -30, -12), double(-14, -20, -12)
REF_CHOSEN, REF_REJECTED = double(-12, -31, -12), double(-13, -25, -12)
# log-ratios 2, 1, 0 and -1, 5, 0: margins 3, -4, 0
FOUR = (CHOSEN, REJECTED, REF_CHOSEN, REF_REJECTED)
ZERO = double(0)


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


def test_length_normalized_dpo_by_hand():
    # log-ratios 2 / 4 and -1 / 2: margin 1; beta 1.5: log(1 + e^-1.5). Then 1 / 1 - 5 / 5 = 0 and 0 - 0
    lengths = {"chosen_lengths": torch.tensor([4, 1, 1]), "rejected_lengths": torch.tensor([2, 5, 3])}
    loss = length_normalized_dpo_loss(*FOUR, beta=1.5, **lengths)
    torch.testing.assert_close(loss, double(0.2014132779827524, math.log(2), math.log(2)))
    # as above: a quarter of labels wrong at a logit of 1.5
    smoothed = length_normalized_dpo_loss(*FOUR, beta=1.5, label_smoothing=0.25, **lengths)
    assert smoothed[0].item() == pytest.approx(0.5764132779827524)


def test_repeating_every_token_changes_no_length_normalized_loss():
    lengths = torch.tensor([4, 1, 1]), torch.tensor([2, 5, 3])
    once = length_normalized_dpo_loss(*FOUR, beta=2, chosen_lengths=lengths[0], rejected_lengths=lengths[1])
    twice = length_normalized_dpo_loss(
        *[2 * x for x in FOUR], beta=2, chosen_lengths=2 * lengths[0], rejected_lengths=2 * lengths[1]
    )
    torch.testing.assert_close(twice, once)


def test_robust_dpo_by_hand():
    # beta 0.5, margin 3, L = log(1 + e^-1.5): (3/4 L - 1/4 (L + 1.5)) / (1/2) = L - 3/4
    first = robust_dpo_loss(*FOUR, beta=0.5, label_smoothing=0.25)[0]
    assert first.item() == pytest.approx(0.2014132779827524 - 0.75)


def test_robust_dpo_over_noisy_labels_is_dpo_over_true_ones():
    # a label is kept with probability 0.7 and swapped with 0.3
    kept = robust_dpo_loss(*FOUR, beta=0.5, label_smoothing=0.3)
    swapped = robust_dpo_loss(REJECTED, CHOSEN, REF_REJECTED, REF_CHOSEN, beta=0.5, label_smoothing=0.3)
    torch.testing.assert_close(0.7 * kept + 0.3 * swapped, dpo_loss(*FOUR, beta=0.5))


def test_exo_by_hand():
    # the policy picks the chosen one with 1/2, the annotator with 3/4: 1/2 log(2/3) + 1/2 log 2
    assert exo_loss(ZERO, ZERO, ZERO, ZERO, beta=1, label_smoothing=0.25).item() == pytest.approx(math.log(4 / 3) / 2)


def test_exo_is_done_where_the_policy_prefers_as_the_annotator_does():
    chosen = double(math.log(3) / 0.5, grad=True)
    loss = exo_loss(chosen, ZERO, ZERO, ZERO, beta=0.5, label_smoothing=0.25)
    assert loss.item() == pytest.approx(0, abs=1e-15)
    assert gradient(loss, chosen)[0].item() == pytest.approx(0, abs=1e-15)


def test_discopop_by_hand():
    # x = 0: 1/2 log 2 + 1/2;  x = log 3 with tau 1, so w = 3/4: 1/4 log(4/3) + 3/4 * 1/3
    chosen = double(0, math.log(3))
    loss = discopop_loss(chosen, double(0, 0), double(0, 0), double(0, 0), beta=1, tau=1)
    torch.testing.assert_close(loss, double(math.log(2) / 2 + 0.5, math.log(4 / 3) / 4 + 0.25))


def test_discopop_has_a_pit_and_a_bump_near_the_start():
    chosen = double(-0.14, -0.1, 0, 0.05, 0.1, grad=True)
    zeros = torch.zeros(5, dtype=torch.float64)
    slope = gradient(discopop_loss(chosen, zeros, zeros, zeros, beta=1), chosen)[0]
    assert slope.sign().tolist() == [-1, 1, 1, 1, -1]


def test_discopop_of_a_pair_lost_by_thousands_is_dpos():
    # exp(-x) alone is infinite here, and infinity times a weight of 0 is NaN
    chosen = torch.tensor([-1900.0, -1e5]).requires_grad_()
    zeros = torch.zeros(2)
    loss = discopop_loss(chosen, zeros, zeros, zeros, beta=1)
    assert loss.tolist() == [1900, 1e5]
    assert gradient(loss, chosen)[0].tolist() == [-1, -1]


@pytest.mark.parametrize(
    ("loss", "options", "message"),
    [
        (robust_dpo_loss, {"label_smoothing": 0.5}, "label_smoothing is 0.5; wanted one from 0 to below 0.5"),
        (exo_loss, {"label_smoothing": 0.0}, "exo_loss needs .* above 0 and below 0.5; got 0.0"),
        (discopop_loss, {"tau": 2}, "discopop_loss needs a tau above 0 and at most 1; got 2"),
    ],
)
def test_options_at_which_a_loss_is_not_defined_are_refused(loss, options, message):
    with pytest.raises(ConfigError, match=message):
        loss(*FOUR, beta=0.1, **options)


def test_gradients_of_the_other_variants_are_those_of_finite_differences():
    inputs = [tensor.clone().requires_grad_() for tensor in FOUR]
    lengths = torch.tensor([3, 1, 7]), torch.tensor([2, 2, 5])
    assert torch.autograd.gradcheck(lambda *four: dpo_loss(*four, beta=0.2, label_smoothing=0.1), inputs)
    assert torch.autograd.gradcheck(
        lambda *four: ipo_loss(*four, beta=0.2, chosen_lengths=lengths[0], rejected_lengths=lengths[1]), inputs
    )
    assert torch.autograd.gradcheck(
        lambda *four: length_normalized_dpo_loss(
            *four, beta=2, chosen_lengths=lengths[0], rejected_lengths=lengths[1], label_smoothing=0.1
        ),
        inputs,
    )
    assert torch.autograd.gradcheck(lambda *four: robust_dpo_loss(*four, beta=0.2, label_smoothing=0.3), inputs)
    assert torch.autograd.gradcheck(lambda *four: exo_loss(*four, beta=0.2, label_smoothing=0.3), inputs)
    assert torch.autograd.gradcheck(lambda *four: discopop_loss(*four, beta=0.2, tau=0.5), inputs)


def test_a_pair_lost_by_far_still_pulls_with_all_of_beta():
    chosen = torch.tensor([-1e4]).requires_grad_()
    zeros = torch.zeros(1)
    loss = dpo_loss(chosen, zeros, zeros, zeros, beta=0.5)
    assert loss.item() == 5000
    assert gradient(loss, chosen)[0].item() == -0.5


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
