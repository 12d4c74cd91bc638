"""Policy-gradient losses on sampled tokens, and metrics of their ratios.

The ratio is exp(logprobs - old_logprobs), where "old" is the policy that the update starts from. Old log-probabilities,
advantages and everything here but the loss carry no gradient. The gradient weight of a token as its ratio r leaves 1:

    loss                      weight of A * grad log-probability       beyond the bounds
    reinforce_loss            1                                        no bound; for data of the present policy only
    clipped_policy_loss       r                                        0 on the side that A pushes to
    cispo_loss                r, cut at the bound                      the bound: every token keeps a gradient
    sapo_loss                 r * 4 * s(x) * (1 - s(x)), s sigmoid     fades smoothly; x = temperature * (r - 1)

At r = 1 all of them are the plain policy gradient. Losses of a whole sequence's ratio are in ``sequence_ratio``.
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
        [M] loss per token. The caller divides by the token count of the whole optimizer step, over micro-batches and
        ranks.
    """
    check_same_shape(logprobs, old_logprobs, advantages)
    _check_dual_clip(dual_clip, clip_high)
    ratio = _ratio(logprobs, old_logprobs)
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high)
    loss = -torch.minimum(ratio * advantages, clipped * advantages)
    if dual_clip is None:
        return loss
    return torch.where(advantages < 0, torch.minimum(loss, -dual_clip * advantages), loss)


def reinforce_loss(logprobs: Tensor, advantages: Tensor) -> Tensor:
    """The policy gradient itself: no ratio, no bound.

        -A * logprobs

    Right for one update on tokens of the present policy (ReMax, RLOO with whole-completion advantages, plain
    REINFORCE); a second update on the same tokens needs a ratio.

    Source: Williams 1992, "Simple statistical gradient-following algorithms", section 4.

    Args:
        logprobs: [M] current policy, nats; the only input with gradient.
        advantages: [M].

    Returns:
        [M] loss per token; its gradient means something, its value does not.
    """
    check_same_shape(logprobs, advantages)
    return -advantages * logprobs


def cispo_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    *,
    clip_low: float = 1.0,
    clip_high: float = 4.0,
) -> Tensor:
    """Policy gradient weighted by a clipped ratio that carries no gradient: a clip bounds a token, never silences it.

        weight = stop_gradient(clip(ratio, 1 - clip_low, 1 + clip_high))
        loss   = -weight * A * logprobs

    Both bounds are distances from 1, as everywhere here, so that the weight of an on-policy token is exactly 1 whatever
    they are. Code that takes ``clip_high`` for the bound itself scales the whole gradient by 0.2 under PPO's usual
    number (in TRL, ``epsilon_high`` is the bound: its 5 is 4 here).

    Sources: MiniMax 2025 (MiniMax-M1), eqs. 4 and 5, arXiv:2506.13585, without a lower bound there; bound of 5 found
    good by Khatri et al. 2025 (ScaleRL), arXiv:2510.13786.

    Args:
        logprobs: [M] current policy, nats; the only input with gradient.
        old_logprobs: [M] policy the ratio is taken against.
        advantages: [M].
        clip_low: Weight is at least ``1 - clip_low``; 1 for no lower bound.
        clip_high: Weight is at most ``1 + clip_high``.

    Returns:
        [M] loss per token; its gradient means something, its value does not.
    """
    check_same_shape(logprobs, old_logprobs, advantages)
    if not 0 <= clip_low <= 1 or clip_high < 0:
        raise ConfigError(
            f"CISPO's bounds are distances from a ratio of 1; got clip_low {clip_low} and clip_high {clip_high}. Give "
            "clip_low in [0, 1] and clip_high of at least 0, such as 4 for weights up to 5."
        )
    weight = _ratio(logprobs.detach(), old_logprobs).clamp(1 - clip_low, 1 + clip_high)
    return -weight * advantages * logprobs


def sapo_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    *,
    temperature_good: float = 1.0,
    temperature_bad: float = 1.05,
) -> Tensor:
    """A soft gate in place of the clip: what a token teaches fades as its ratio leaves 1 and never stops at once.

        loss = -A * 4 / t * sigmoid(t * (ratio - 1)),   t = temperature_good where A > 0, else temperature_bad

    The higher the temperature, the sooner a token fades; bad tokens fade sooner, since pushing them down raises
    thousands of others.

    Source: Gao et al. 2025, "Soft Adaptive Policy Optimization", arXiv:2511.20347.

    Args:
        logprobs: [M] current policy, nats; the only input with gradient.
        old_logprobs: [M] policy the ratio is taken against.
        advantages: [M].
        temperature_good: t of tokens with A > 0; above 0.
        temperature_bad: t of the others; above 0.

    Returns:
        [M] loss per token.
    """
    check_same_shape(logprobs, old_logprobs, advantages)
    if min(temperature_good, temperature_bad) <= 0:
        raise ConfigError(
            f"SAPO's temperatures are {temperature_good} and {temperature_bad}; both must be above 0, such as 1 and 1.05."
        )
    temperature = torch.full_like(advantages, temperature_bad).masked_fill(advantages > 0, temperature_good)
    gate = torch.sigmoid(temperature * (_ratio(logprobs, old_logprobs) - 1)) * 4 / temperature
    return -gate * advantages


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


def _ratio(logprobs: Tensor, old_logprobs: Tensor) -> Tensor:
    return (logprobs - old_logprobs).clamp(max=MAX_LOG_RATIO).exp()


def _check_dual_clip(dual_clip: float | None, clip_high: float) -> None:
    if dual_clip is not None and dual_clip <= 1 + clip_high:
        raise ConfigError(
            f"dual_clip is {dual_clip}, inside the clip range; give a ratio above {1 + clip_high}, such as 3, or None."
        )
