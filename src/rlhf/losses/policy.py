"""Policy-gradient losses on sampled tokens, and what is worth watching about their ratios.

The ratio is exp(logprobs - old_logprobs), where "old" is the policy that the update starts from. Old log-probabilities,
advantages and everything here but the loss carry no gradient.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from rlhf.errors import ConfigError
from rlhf.losses.kl import kl_k3
from rlhf.losses.shapes import check_same_shape

MAX_LOG_RATIO = 20.0
"""Nats above which a log-ratio is cut before the exponential: exp(20) is 5e8, and float32 overflows at 88."""


def clipped_policy_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = None,
) -> Tensor:
    """PPO's clipped surrogate for each scored token, negated so that lower is better.

        ratio = exp(min(logprobs - old_logprobs, MAX_LOG_RATIO))
        loss  = -min(ratio * A, clip(ratio, 1 - clip_low, 1 + clip_high) * A)
        with dual_clip = c, where A < 0:  loss = min(loss, -c * A)

    For A < 0 the surrogate does not bound the ratio from above: a token that the update has made e^25 times as likely
    would have a loss and a gradient of 10^10. The log-ratio is therefore cut at ``MAX_LOG_RATIO``, beyond which the
    token has no gradient, as under a dual clip of 5e8; ``ratio_statistics`` counts such tokens. Set ``dual_clip`` for a
    bound that matters.

    Sources: Schulman et al. 2017, eq. 7, arXiv:1707.06347; separate bounds ("clip-higher"): Yu et al. 2025,
    arXiv:2503.14476; dual clip: Ye et al. 2019, arXiv:1912.09729.

    Args:
        logprobs: [M] current policy, nats; the only input with gradient.
        old_logprobs: [M] policy the ratio is taken against; ``logprobs.detach()`` for the first update after sampling.
        advantages: [M].
        clip_low: Ratio is not rewarded below ``1 - clip_low``.
        clip_high: Ratio is not rewarded above ``1 + clip_high``.
        dual_clip: Ratio is not punished above this, which must lie above 1 + clip_high; 3 is usual. None for no bound.

    Returns:
        [M] loss per token. The caller divides by the token count of the whole optimiser step, over micro-batches and
        ranks.
    """
    check_same_shape(logprobs, old_logprobs, advantages)
    _check_dual_clip(dual_clip, clip_high)
    ratio = (logprobs - old_logprobs).clamp(max=MAX_LOG_RATIO).exp()
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high)
    loss = -torch.minimum(ratio * advantages, clipped * advantages)
    if dual_clip is None:
        return loss
    return torch.where(advantages < 0, torch.minimum(loss, -dual_clip * advantages), loss)


@torch.no_grad()
def clipped_tokens(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = None,
) -> Tensor:
    """Which tokens the clip has taken out of the gradient.

        A > 0 and ratio > 1 + clip_high,  or  A < 0 and ratio < 1 - clip_low,  or  A < 0 and ratio > dual_clip

    A ratio outside the bounds on the other side is not clipped: there the surrogate still pulls it back. Counting both
    sides, as some code does, gives a share that is about twice as large.

    Args:
        logprobs: [M] current policy, nats.
        old_logprobs: [M].
        advantages: [M].
        clip_low: As in the loss.
        clip_high: As in the loss.
        dual_clip: As in the loss.

    Returns:
        bool [M]. Sum it over micro-batches and divide by their tokens for the clip fraction of a step.
    """
    check_same_shape(logprobs, old_logprobs, advantages)
    _check_dual_clip(dual_clip, clip_high)
    ratio = (logprobs - old_logprobs).exp()
    too_high = math.inf if dual_clip is None else dual_clip
    pushed_up = (advantages > 0) & (ratio > 1 + clip_high)
    pushed_down = (advantages < 0) & ((ratio < 1 - clip_low) | (ratio > too_high))
    return pushed_up | pushed_down


class RatioStatistics(NamedTuple):
    """How far an update has moved the policy; 0-dimensional tensors, NaN where there was no token to measure."""

    mean: Tensor
    """Mean ratio; 1 in expectation over the old policy's tokens, whatever the policy."""
    minimum: Tensor
    maximum: Tensor
    approx_kl: Tensor
    """KL(old || policy) per token by k3, the direction in which the tokens were drawn; for early stopping."""
    num_overflowed: Tensor
    """int64, tokens beyond ``MAX_LOG_RATIO``, where the loss has no gradient; more than 0: the update broke."""


@torch.no_grad()
def ratio_statistics(logprobs: Tensor, old_logprobs: Tensor) -> RatioStatistics:
    """Summary of the ratios of one set of tokens, before any clipping hides the extremes.

    Args:
        logprobs: [M] current policy, nats.
        old_logprobs: [M].

    Returns:
        See ``RatioStatistics``. Means of several micro-batches are combined with their token counts as weights.
    """
    check_same_shape(logprobs, old_logprobs)
    log_ratio = logprobs - old_logprobs
    ratio = log_ratio.clamp(max=MAX_LOG_RATIO).exp()
    nan = ratio.new_tensor(math.nan)
    return RatioStatistics(
        mean=ratio.mean(),
        minimum=ratio.min() if ratio.numel() else nan,
        maximum=ratio.max() if ratio.numel() else nan,
        approx_kl=kl_k3(old_logprobs, logprobs).mean(),
        num_overflowed=(log_ratio > MAX_LOG_RATIO).sum(),
    )


def _check_dual_clip(dual_clip: float | None, clip_high: float) -> None:
    if dual_clip is not None and dual_clip <= 1 + clip_high:
        raise ConfigError(
            f"dual_clip is {dual_clip}, inside the clip range; give a ratio above {1 + clip_high}, such as 3, or None."
        )
