"""Kullback-Leibler divergence of the policy from the reference, KL(policy || reference), always in this direction.

A per-token estimator sees one token drawn from the policy and d = log policy - log reference of it. Properties of each
(Tang and Munos 2025, arXiv:2506.09477; Liu et al. 2025, arXiv:2510.01555):

    name  formula           in the reward (no gradient)              as a loss term
    k1    d                 unbiased; the principled choice           useless: its gradient has mean 0 on-policy
    k2    d^2 / 2           biased, low variance, never negative      gradient is that of the reverse KL on-policy
    k3    exp(-d) - 1 + d   unbiased, never negative; biased as a     a surrogate (that of the forward KL), heavy-tailed
                            policy gradient                           where the policy is far below the reference
    abs   |d|               a distance, not a KL estimate             sign(d) per token: bounded
    mse   d^2 / 2           another name for k2, in older PPO code

Source of k1 to k3: Schulman 2020, "Approximating KL Divergence", joschu.net/blog/kl-approx.html. The arguments can be
any two policies: with tokens drawn from the old policy, ``kl_k3(old_logprobs, logprobs)`` estimates KL(old || policy).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from rlhf.losses.shapes import check_same_shape

K3_LINEAR_ABOVE = 20.0
"""Nats that the reference may lie above the policy before k3 goes on as a straight line."""


def kl_k1(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """log policy - log reference: unbiased, of either sign.

    Args:
        logprobs: [M] policy, nats.
        ref_logprobs: [M] reference, nats.

    Returns:
        [M] estimate per token, nats.
    """
    check_same_shape(logprobs, ref_logprobs)
    return logprobs - ref_logprobs


def kl_k2(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """Half the squared log-ratio: biased where the policies are far apart, never negative.

    Args:
        logprobs: [M] policy, nats.
        ref_logprobs: [M] reference, nats.

    Returns:
        [M] estimate per token.
    """
    return kl_k1(logprobs, ref_logprobs).square() / 2


def kl_k3(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """exp(-d) - 1 + d with d = log policy - log reference: unbiased, never negative, small variance near d = 0.

    The exponential is computed as ``expm1``: near d = 0 the plain formula would return rounding noise that is larger
    than the estimate and may be negative. Where the reference is more than ``K3_LINEAR_ABOVE`` nats above the policy,
    the curve goes on along its tangent: value and gradient stay finite, and the token is still pulled back (a clamp
    would let go of it).

    Also the estimator of Shao et al. 2024 (GRPO), eq. 4, arXiv:2402.03300.

    Args:
        logprobs: [M] policy, nats.
        ref_logprobs: [M] reference, nats.

    Returns:
        [M] estimate per token.
    """
    excess = -kl_k1(logprobs, ref_logprobs)
    bounded = excess.clamp(max=K3_LINEAR_ABOVE)
    # relu, not (excess - bounded): below the limit a slope of 5e8 must not enter the gradient, even to cancel
    return torch.expm1(bounded) - bounded + math.expm1(K3_LINEAR_ABOVE) * F.relu(excess - K3_LINEAR_ABOVE)


@torch.no_grad()
def kl_overflows(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """Which tokens k3 is a straight line at, since its exponential would overflow: worth a metric, which should be 0.

    Args:
        logprobs: [M] policy, nats.
        ref_logprobs: [M] reference, nats.

    Returns:
        bool [M]. Sum it over micro-batches.
    """
    return -kl_k1(logprobs, ref_logprobs) > K3_LINEAR_ABOVE


def kl_abs(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """Absolute log-ratio.

    Args:
        logprobs: [M] policy, nats.
        ref_logprobs: [M] reference, nats.

    Returns:
        [M] per token, nats.
    """
    return kl_k1(logprobs, ref_logprobs).abs()


KL_ESTIMATORS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "k1": kl_k1,
    "k2": kl_k2,
    "k3": kl_k3,
    "abs": kl_abs,
    "mse": kl_k2,
}
"""Estimators ``(logprobs, ref_logprobs) -> [M]`` by the name a recipe uses."""


def exact_kl(logits: Tensor, ref_logits: Tensor) -> Tensor:
    """KL(policy || reference) of whole next-token distributions: no sampling, no variance.

        sum over v of p(v) (log p(v) - log q(v))

    Args:
        logits: [..., V] of the policy, at the temperature meant. -inf bars a token.
        ref_logits: [..., V] of the reference.

    Returns:
        [...] nats, in float32 or wider. Tokens barred to the policy add 0; one that is barred to the reference only
        makes it inf.
    """
    wide = torch.promote_types(logits.dtype, torch.float32)
    logprobs = logits.to(wide).log_softmax(-1)
    difference = logprobs - ref_logits.to(wide).log_softmax(-1)
    # -inf - (-inf) is NaN, and NaN times a probability of 0 still is
    difference = difference.masked_fill(logits == -math.inf, 0.0)
    return (logprobs.exp() * difference).sum(-1)
