from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf.errors import ConfigError, UnknownNameError
from rlhf.losses.importance import IMPORTANCE_BOUNDS, IMPORTANCE_LEVELS, importance_weights, off_policy_kl
from rlhf.losses.kl import exact_kl, kl_k3
from rlhf.losses.policy import MAX_LOG_RATIO, clipped_policy_loss
from tests.unit.losses.helpers import check_unscored_tokens_cannot_reach, double, gradient, per_token

PATIENT = settings(deadline=None)
"""The first example may have to import half of torch, which takes a second on a busy machine."""

LEVELS = pytest.mark.parametrize("level", IMPORTANCE_LEVELS)
BOUNDS = pytest.mark.parametrize("bound", IMPORTANCE_BOUNDS)
SEQ = torch.tensor([0, 0, 2, 2])
SAMPLING = double(-1, -2, -3, -4)
OLD = SAMPLING + double(8, 0.5, 0.5, 0.5).log()
"""Ratios 8 and 1/2 of sequence 0: product 4, geometric mean 2; 1/2 and 1/2 of sequence 2: 1/4 and 1/2."""


@pytest.mark.parametrize(
    ("level", "bound", "expected"),
    [
        ("token", "truncate", [3, 0.6, 0.6, 0.6]),
        ("token", "mask", [0, 0, 0, 0]),
        ("sequence", "truncate", [3, 3, 0.6, 0.6]),
        ("sequence", "mask", [0, 0, 0, 0]),
        ("geometric", "truncate", [2, 2, 0.6, 0.6]),
        ("geometric", "mask", [2, 2, 0, 0]),
    ],
)
def test_weights_by_hand_with_bounds_of_three_fifths_and_three(level: str, bound: str, expected: list[float]):
    weights = importance_weights(OLD, SAMPLING, SEQ, level=level, bound=bound, low=0.6, high=3.0)
    torch.testing.assert_close(weights.weights, double(*expected))


@BOUNDS
@pytest.mark.parametrize(
    ("level", "units", "too_low", "too_high", "ratio_sum", "ratio_max"),
    [("token", 4, 3, 1, 9.5, 8), ("sequence", 2, 1, 1, 4.25, 4), ("geometric", 2, 1, 0, 2.5, 2)],
)
def test_counts_and_sums_by_hand_tell_what_was_there_before_the_bounds(
    bound: str, level: str, units: int, too_low: int, too_high: int, ratio_sum: float, ratio_max: float
):
    # sequence 1 has no token: it is no unit, and its ratio of exp(0) must not flatter the mean
    weights = importance_weights(OLD, SAMPLING, SEQ, level=level, bound=bound, low=0.6, high=3.0)
    assert [x.item() for x in weights[1:4]] == [units, too_low, too_high]
    assert [x.item() for x in weights[4:]] == pytest.approx([ratio_sum, ratio_max])


@LEVELS
@BOUNDS
def test_a_sampler_that_agrees_changes_nothing(level: str, bound: str):
    weights = importance_weights(OLD, OLD, SEQ, level=level, bound=bound, low=1.0, high=1.0)
    assert torch.equal(weights.weights, torch.ones(4, dtype=torch.float64))
    assert weights.num_too_low == weights.num_too_high == 0
    assert weights.ratio_sum == weights.num_units


def test_without_bounds_the_weights_make_the_samplers_mean_the_policys():
    # exactly, over a vocabulary: sum over v of mu(v) * weight(v) * f(v) = sum over v of pi(v) * f(v)
    mu, pi, f = torch.randn(3, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    mu, pi = mu.log_softmax(-1), pi.log_softmax(-1)
    weights = importance_weights(pi, mu, torch.arange(9), low=0.0, high=math.inf).weights
    torch.testing.assert_close((mu.exp() * weights * f).sum(), (pi.exp() * f).sum(), rtol=1e-12, atol=0)


@LEVELS
@BOUNDS
@PATIENT
@given(st.lists(st.floats(-200, 200), min_size=1, max_size=8))
def test_weights_are_finite_and_inside_their_bounds(level: str, bound: str, log_ratios: list[float]):
    old = torch.tensor(log_ratios)
    weights = importance_weights(
        old, torch.zeros_like(old), torch.arange(len(old)) // 3, level=level, bound=bound, low=0.5
    )
    inside = (weights.weights >= 0.5) & (weights.weights <= 2)
    assert (inside | (weights.weights == 0) if bound == "mask" else inside).all()
    assert weights.ratio_sum.isfinite()


@LEVELS
@BOUNDS
def test_counts_of_two_parts_add_up_to_those_of_the_whole(level: str, bound: str):
    def of(tokens: slice):
        return importance_weights(OLD[tokens], SAMPLING[tokens], SEQ[tokens], level=level, bound=bound, low=0.6)

    first, second, whole = of(slice(0, 2)), of(slice(2, 4)), of(slice(0, 4))
    assert torch.equal(torch.cat([first.weights, second.weights]), whole.weights)
    for name in ("num_units", "num_too_low", "num_too_high", "ratio_sum"):
        torch.testing.assert_close(getattr(first, name) + getattr(second, name), getattr(whole, name))


def test_the_largest_ratio_is_cut_before_it_overflows():
    weights = importance_weights(
        torch.tensor([100.0]), torch.zeros(1), torch.zeros(1, dtype=torch.int64), high=math.inf
    )
    assert weights.weights.item() == pytest.approx(math.exp(MAX_LOG_RATIO), rel=1e-6)


def test_weights_are_constants_of_the_loss():
    assert not importance_weights(OLD.clone().requires_grad_(), SAMPLING, SEQ).weights.requires_grad


def test_no_tokens_are_no_measurement():
    for level in IMPORTANCE_LEVELS:
        weights = importance_weights(double(), double(), SEQ[:0], level=level)
        assert weights.weights.shape == (0,)
        assert weights.num_units == 0
        assert weights.ratio_max.isnan()


def test_masked_tokens_and_unscored_ones_do_not_reach_the_loss():
    def loss(logprobs, batch):
        sampling = logprobs.detach() + per_token(batch, seed=3, scale=0.1)
        weights = importance_weights(logprobs.detach(), sampling, batch.score_seq).weights
        return weights * clipped_policy_loss(logprobs, logprobs.detach(), per_token(batch, seed=4))

    check_unscored_tokens_cannot_reach(loss)
    logprobs = OLD.clone().requires_grad_()
    masked = importance_weights(OLD, SAMPLING, SEQ, bound="mask").weights
    (grad,) = gradient(masked * clipped_policy_loss(logprobs, OLD, double(1, 1, 1, 1)), logprobs)
    assert grad.tolist() == pytest.approx([0, -0.5, -0.5, -0.5])


@pytest.mark.parametrize(("low", "high"), [(0.0, 0.9), (1.1, 2.0), (-0.5, 2.0)])
def test_bounds_that_leave_out_agreement_are_refused(low: float, high: float):
    with pytest.raises(ConfigError, match=rf"are {low} and {high}"):
        importance_weights(OLD, SAMPLING, SEQ, low=low, high=high)


def test_names_are_looked_up_with_help():
    with pytest.raises(UnknownNameError, match=r"'tokn'.*'token'"):
        importance_weights(OLD, SAMPLING, SEQ, level="tokn")
    with pytest.raises(UnknownNameError, match=r"'clip'.*truncate, mask"):
        importance_weights(OLD, SAMPLING, SEQ, bound="clip")


def test_the_weighted_kl_of_a_stale_sample_is_that_of_the_policy_with_its_gradient():
    # exactly, over a vocabulary; without the weight, k3 has the gradient of the KL the other way round (test_kl.py)
    logits, old, ref = torch.randn(3, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    logits.requires_grad_()
    logprobs, old, ref = (x.log_softmax(-1) for x in (logits, old, ref))
    mean = (old.exp() * off_policy_kl(kl_k3(logprobs, ref), logprobs, old)).sum()
    exact = exact_kl(logits, ref)
    torch.testing.assert_close(mean, exact, rtol=1e-12, atol=0)
    torch.testing.assert_close(gradient(mean, logits), gradient(exact, logits), rtol=1e-10, atol=1e-14)


def test_the_weighted_kl_by_hand_and_at_extremes():
    # ratio 2, KL 3
    torch.testing.assert_close(off_policy_kl(double(3), double(0), double(-math.log(2))), double(6))
    logprobs = torch.tensor([100.0, -100.0]).requires_grad_()
    weighted = off_policy_kl(torch.ones(2), logprobs, torch.zeros(2))
    assert weighted.isfinite().all()
    assert gradient(weighted, logprobs)[0].isfinite().all()
