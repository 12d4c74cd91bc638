from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf.errors import ConfigError, UnknownNameError
from rlhf.losses.divergences import DIVERGENCES, EXP_LINEAR_ABOVE, divergence_scores
from rlhf.losses.pair_losses import MARGIN_LOSSES, PAIR_LOSSES
from rlhf.losses.segments import segment_sum, split_pairs
from tests.unit.losses.helpers import (
    check_parts_add_up,
    check_unscored_tokens_cannot_reach,
    double,
    gradient,
    per_token,
)

ALPHA = {"alpha": 0.5}
ALL = pytest.mark.parametrize(
    "options", [{"divergence": name} | (ALPHA if name == "alpha" else {}) for name in DIVERGENCES], ids=DIVERGENCES
)


def scores(logratios: torch.Tensor, **options) -> torch.Tensor:
    return divergence_scores(logratios, torch.zeros_like(logratios), **options)


def test_scores_by_hand():
    # policy / reference = 4, 1, 1/4
    ratio = double(math.log(4), 0, -math.log(4))
    torch.testing.assert_close(scores(ratio, divergence="reverse_kl"), ratio)
    torch.testing.assert_close(scores(ratio, divergence="forward_kl"), double(0.75, 0, -3))
    torch.testing.assert_close(scores(ratio, divergence="js"), double(math.log(8 / 5), 0, math.log(2 / 5)))
    # (4^-1/2 - 1) / -1/2
    torch.testing.assert_close(scores(ratio, divergence="alpha", alpha=0.5), double(1, 0, -2))


def test_the_papers_quarter_is_three_quarters_here():
    """Wang et al. 2023: f'(u) = (1 - u^-a) / a. At a = 1/4: u = 16 gives (1 - 1/2) / (1/4), u = 1/16 gives (1 - 2) / (1/4)."""
    ratio = double(16, 1, 1 / 16).log()
    torch.testing.assert_close(scores(ratio, divergence="alpha", alpha=1 - 0.25), double(2, 0, -4))


def test_alpha_goes_from_forward_kl_to_reverse_kl():
    ratio = double(-7, -0.5, 0, 0.1, 9)
    for alpha, name in ((0.0, "forward_kl"), (1.0, "reverse_kl")):
        torch.testing.assert_close(scores(ratio, divergence="alpha", alpha=alpha), scores(ratio, divergence=name))
    near = scores(ratio, divergence="alpha", alpha=1 - 1e-9)
    torch.testing.assert_close(near, ratio, rtol=1e-7, atol=0)


@ALL
def test_scores_are_zero_where_policy_and_reference_agree_and_slope_there_is_one(options):
    start = double(0, grad=True)
    score = scores(start, **options)
    assert score.item() == pytest.approx(0, abs=1e-15)
    # f''(1) = 1 for all but Jensen-Shannon, whose usual scale is half of it
    assert gradient(score, start)[0].item() == pytest.approx(0.5 if options["divergence"] == "js" else 1)


@ALL
@settings(deadline=None, max_examples=50)
@given(low=st.floats(-2000, 2000), step=st.floats(0.01, 100))
def test_scores_keep_the_order_of_log_ratios(options, low, step):
    first, second = scores(double(low, low + step), **options).tolist()
    # where the score has reached its upper bound, float64 tells two numbers no longer apart
    assert first < second if low + step < 15 else first <= second


@ALL
def test_gradients_are_those_of_finite_differences_on_both_sides_of_the_tangent(options):
    points = double(-2 * EXP_LINEAR_ABOVE - 9, -EXP_LINEAR_ABOVE - 1, -15, -1, 0, 3, 30, grad=True)
    assert torch.autograd.gradcheck(lambda x: scores(x, **options), [points], rtol=1e-4)


@ALL
@pytest.mark.parametrize("name", sorted(MARGIN_LOSSES))
def test_losses_of_log_ratios_of_hundreds_are_finite_with_finite_gradients(options, name):
    # TRL's forward KL is NaN at log-ratios of -100 and -90: inf - inf
    chosen = torch.tensor([-100.0, -90, -1000, 1000, -1000, 100]).requires_grad_()
    rejected = torch.tensor([-90.0, -100, -1000, -1000, 1000, 100]).requires_grad_()
    won, lost = scores(chosen, **options), scores(rejected, **options)
    zeros = torch.zeros(6)
    loss = PAIR_LOSSES[name](won, lost, zeros, zeros, beta=0.1)
    assert loss.isfinite().all()
    assert all(grad.isfinite().all() for grad in gradient(loss, chosen, rejected))


def test_forward_kl_still_pulls_at_a_pair_that_is_lost_by_far():
    chosen, rejected = torch.tensor([-100.0]).requires_grad_(), torch.tensor([-90.0]).requires_grad_()
    four = scores(chosen, divergence="forward_kl"), scores(rejected, divergence="forward_kl")
    up, down = gradient(PAIR_LOSSES["sigmoid"](*four, *torch.zeros(2, 1), beta=0.1), chosen, rejected)
    assert up.item() < 0 < down.item()


@ALL
def test_an_unscored_token_cannot_reach_it_and_two_micro_batches_equal_one(options):
    def loss(logprobs, batch):
        summed = segment_sum(logprobs, batch.score_seq, batch.num_sequences)
        reference = segment_sum(per_token(batch, seed=5) - 2, batch.score_seq, batch.num_sequences)
        score = divergence_scores(summed, reference, **options)
        return PAIR_LOSSES["sigmoid"](*split_pairs(score), *split_pairs(torch.zeros_like(score)), beta=0.1)

    check_unscored_tokens_cannot_reach(loss)
    check_parts_add_up(lambda logprobs, part, whole: loss(logprobs, part).sum() / (whole.num_sequences / 2))


def test_a_divergence_that_does_not_exist_is_answered_with_the_nearest():
    with pytest.raises(UnknownNameError, match="'forward_kl'"):
        divergence_scores(double(0), double(0), divergence="forward-kl")


@pytest.mark.parametrize("options", [{"divergence": "js", "alpha": 0.5}, {"divergence": "alpha"}])
def test_an_alpha_that_would_be_ignored_or_is_missing_is_refused(options):
    with pytest.raises(ConfigError, match=r"alpha.*'alpha'"):
        divergence_scores(double(0), double(0), **options)
