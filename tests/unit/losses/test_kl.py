from __future__ import annotations

import math

import pytest
import torch

from rlhf.errors import ConfigError
from rlhf.losses.aggregation import token_mean
from rlhf.losses.kl import K3_LINEAR_ABOVE, KL_ESTIMATORS, exact_kl, kl_abs, kl_k1, kl_k2, kl_k3, kl_overflows
from tests.unit.losses.helpers import (
    check_parts_add_up,
    check_unscored_tokens_cannot_reach,
    double,
    gradient,
    per_token,
)

ALL = pytest.mark.parametrize("estimator", KL_ESTIMATORS.values(), ids=KL_ESTIMATORS.keys())


@pytest.fixture
def policies() -> tuple[torch.Tensor, torch.Tensor]:
    """Logits [V] of a policy (with gradient) and a reference."""
    logits = torch.randn(2, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return logits[0].requires_grad_(), logits[1]


def test_a_token_twice_as_likely_by_hand():
    # d = log 2: k1 log 2; k2 (log 2)^2 / 2; k3 1/2 - 1 + log 2
    actual = {name: f(double(0.5).log(), double(0.25).log()).item() for name, f in KL_ESTIMATORS.items()}
    expected = {
        "k1": 0.6931471805599453,
        "k2": 0.2402265069591007,
        "k3": 0.1931471805599453,
        "abs": 0.6931471805599453,
        "mse": 0.2402265069591007,
    }
    assert actual == pytest.approx(expected, rel=1e-12)


def test_the_sign_of_k1_tells_who_is_more_sure():
    assert kl_k1(double(-1), double(-2)) > 0 > kl_k1(double(-2), double(-1))
    assert kl_abs(double(-1), double(-2)) == kl_abs(double(-2), double(-1)) == 1


@ALL
def test_equal_policies_do_not_diverge(estimator):
    logprobs = double(-0.1, -5, -50)
    assert estimator(logprobs, logprobs).tolist() == [0, 0, 0]


@pytest.mark.parametrize("estimator", [kl_k1, kl_k3])
def test_k1_and_k3_are_unbiased(estimator, policies):
    policy, reference = policies
    logprobs, ref_logprobs = policy.log_softmax(-1), reference.log_softmax(-1)
    expectation = (logprobs.exp() * estimator(logprobs, ref_logprobs)).sum()
    torch.testing.assert_close(expectation, exact_kl(policy, reference), rtol=1e-12, atol=0)


def test_the_gradient_of_k1_as_a_loss_is_nothing_but_noise(policies):
    assert _expected_gradient(kl_k1, *policies).abs().max() < 1e-15


def test_the_gradient_of_k2_as_a_loss_is_that_of_the_divergence(policies):
    policy, reference = policies
    torch.testing.assert_close(
        _expected_gradient(kl_k2, policy, reference), gradient(exact_kl(policy, reference), policy)[0]
    )


def test_the_gradient_of_k3_as_a_loss_is_that_of_the_divergence_the_other_way_round(policies):
    policy, reference = policies
    torch.testing.assert_close(
        _expected_gradient(kl_k3, policy, reference), gradient(exact_kl(reference, policy), policy)[0]
    )


def _expected_gradient(estimator, policy, reference):
    """Over tokens drawn from the policy, exactly: each token's gradient weighted by its probability."""
    logprobs = policy.log_softmax(-1)
    weighted = logprobs.exp().detach() * estimator(logprobs, reference.log_softmax(-1))
    return gradient(weighted, policy)[0]


@ALL
def test_gradients_are_those_of_finite_differences(estimator):
    logprobs, reference = double(-1, -2, -30, -3, grad=True), double(-1.5, -0.5, -5, -3.3, grad=True)
    assert torch.autograd.gradcheck(estimator, (logprobs, reference))


@pytest.mark.parametrize("name", ["k2", "k3", "abs", "mse"])
def test_all_but_k1_are_never_negative_however_close_the_policies(name: str):
    d = torch.cat([10.0 ** torch.arange(-12, 2), -(10.0 ** torch.arange(-12, 2))])
    reference = torch.full_like(d, -1.0)
    assert (KL_ESTIMATORS[name](reference + d, reference) >= 0).all()


@pytest.mark.parametrize("d", [1e-3, 1e-4, -1e-3, -1e-4])
def test_k3_of_close_policies_is_not_rounding_noise_in_float32(d: float):
    # exp(-d) - 1 + d in float32 is off by 10^-8, more than the value itself at d = 10^-4
    assert kl_k3(torch.tensor([d]), torch.zeros(1)).item() == pytest.approx(d * d / 2, rel=2e-2)


@ALL
def test_log_ratios_of_a_hundred_stay_finite_in_float32(estimator):
    logprobs = torch.tensor([100.0, -100.0, 1e4, -1e4]).requires_grad_()
    value = estimator(logprobs, torch.zeros(4))
    assert value.isfinite().all()
    assert gradient(value, logprobs)[0].isfinite().all()


def test_k3_goes_on_along_its_tangent_and_still_pulls():
    below, above = -K3_LINEAR_ABOVE + 1e-9, -K3_LINEAR_ABOVE - 1e-9
    logprobs = double(below, above, above - 1, above - 50, grad=True)
    value = kl_k3(logprobs, torch.zeros_like(logprobs))
    (grad,) = gradient(value, logprobs)
    slope = 1 - math.exp(K3_LINEAR_ABOVE)
    torch.testing.assert_close(grad, double(slope, slope, slope, slope), rtol=1e-8, atol=0)
    assert (value[2] - value[1]).item() == pytest.approx(-slope)
    assert value[1].item() == pytest.approx(value[0].item(), rel=1e-8)


def test_small_gradients_of_k3_survive_next_to_the_tangent_in_float32():
    logprobs = torch.tensor([0.01]).requires_grad_()
    (grad,) = gradient(kl_k3(logprobs, torch.zeros(1)), logprobs)
    assert grad.item() == pytest.approx(1 - math.exp(-0.01), rel=1e-4)


def _loss(estimator, logprobs, batch):
    return estimator(logprobs, per_token(batch, seed=6) - 2)


@ALL
def test_an_unscored_token_cannot_reach_it(estimator):
    check_unscored_tokens_cannot_reach(lambda logprobs, batch: _loss(estimator, logprobs, batch))


@ALL
def test_two_micro_batches_equal_one(estimator):
    check_parts_add_up(
        lambda logprobs, part, whole: token_mean(_loss(estimator, logprobs, part), num_tokens=whole.num_scored)
    )


def test_exact_divergence_of_a_coin_by_hand():
    # fair against 1:3: (log 2 + log(2/3)) / 2
    actual = exact_kl(double(0.5, 0.5).log(), double(0.25, 0.75).log())
    torch.testing.assert_close(actual, torch.tensor(0.14384103622589045, dtype=torch.float64))


def test_exact_divergence_does_not_see_the_scale_of_unnormalized_logits(policies):
    policy, reference = policies
    torch.testing.assert_close(exact_kl(policy + 5, reference - 3), exact_kl(policy, reference))


def test_exact_divergence_keeps_leading_axes_and_widens_half_precision():
    policy, reference = torch.randn(2, 2, 3, 11, generator=torch.Generator().manual_seed(0)).bfloat16()
    out = exact_kl(policy, reference)
    assert out.shape == (2, 3)
    assert out.dtype == torch.float32
    # the softmax itself is wide: in bfloat16 it would be off in the third digit
    torch.testing.assert_close(out, exact_kl(policy.double(), reference.double()).float(), rtol=1e-5, atol=0)


def test_exact_divergence_gradient_is_that_of_finite_differences(policies):
    assert torch.autograd.gradcheck(exact_kl, policies)


def test_tokens_barred_to_both_add_nothing():
    policy, reference = double(0, 1, -math.inf, grad=True), double(1, 0, -math.inf)
    value = exact_kl(policy, reference)
    torch.testing.assert_close(value, exact_kl(policy[:2], reference[:2]))
    assert gradient(value, policy)[0].isfinite().all()


def test_a_token_barred_to_the_reference_only_is_infinitely_far():
    assert exact_kl(double(0, 0), double(0, -math.inf)).item() == math.inf


def test_logits_of_ten_thousand_stay_finite_in_float32():
    policy = torch.tensor([1e4, 0.0, -1e4]).requires_grad_()
    value = exact_kl(policy, torch.tensor([0.0, 1e4, -1e4]))
    assert value.item() == 1e4
    assert gradient(value, policy)[0].isfinite().all()


@ALL
def test_shapes_that_would_broadcast_are_refused(estimator):
    with pytest.raises(ConfigError, match=r"shapes \[2\], \[2, 1\]"):
        estimator(double(1, 2), double(1, 2)[:, None])


def test_tokens_whose_exponential_would_overflow_are_counted():
    logprobs = torch.tensor([-100.0, -K3_LINEAR_ABOVE - 0.1, -K3_LINEAR_ABOVE, 100.0], requires_grad=True)
    overflows = kl_overflows(logprobs, torch.zeros(4))
    assert overflows.tolist() == [True, True, False, False]
    assert not overflows.requires_grad
