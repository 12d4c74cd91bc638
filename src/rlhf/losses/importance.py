"""Correction for a sampler that differs slightly from the policy: other kernels, rounding, or older weights.

Tokens were drawn from the policy as the engine computed it (``sampling_logprobs``); the update starts from the policy
as the trainer computes it (``old_logprobs``). Each token's loss is multiplied by a bounded ratio of the two:

    losses = importance_weights(old_logprobs, sampling_logprobs, score_seq, ...).weights * clipped_policy_loss(...)

PPO's own ratio then still runs from ``old_logprobs`` to the current policy (Hilton et al. 2021, arXiv:2110.00641).
Where ``sampling_logprobs`` are given to the loss as its ``old_logprobs``, that ratio is the whole correction, and
weights on top would count it twice.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from rlhf.errors import ConfigError, UnknownNameError, did_you_mean
from rlhf.losses.policy import MAX_LOG_RATIO
from rlhf.losses.segments import segment_mean, segment_sum
from rlhf.losses.shapes import check_same_shape

IMPORTANCE_LEVELS = ("token", "sequence", "geometric")
"""Whose ratio bounds apply to, by the name a recipe uses."""

IMPORTANCE_BOUNDS = ("truncate", "mask")
"""What happens to a ratio out of bounds, by the name a recipe uses."""


class ImportanceWeights(NamedTuple):
    """Weights of the tokens, and what the bounds did; taken before them, so that nothing thrown away is hidden.

    A unit is a token at level "token", else a sequence. Sums and counts of several micro-batches and ranks add up.
    """

    weights: Tensor
    """[M] multiplies each token's loss; without gradient."""
    num_units: Tensor
    """int64, ratios that were measured."""
    num_too_low: Tensor
    """int64, units below the lower bound: raised to it, or masked."""
    num_too_high: Tensor
    """int64, units above the upper bound: cut to it, or masked."""
    ratio_sum: Tensor
    """Sum of the ratios before the bounds; over ``num_units`` it is 1 on average where the two policies agree."""
    ratio_max: Tensor
    """Largest ratio before the bounds, at most exp(MAX_LOG_RATIO); NaN where there was no unit."""


@torch.no_grad()
def importance_weights(
    old_logprobs: Tensor,
    sampling_logprobs: Tensor,
    score_seq: Tensor,
    *,
    level: str = "token",
    bound: str = "truncate",
    low: float = 0.0,
    high: float = 2.0,
) -> ImportanceWeights:
    """Bounded ratios of the trainer's to the sampler's probabilities.

        ratio      token: exp(old - sampling) of each    sequence: exp(its sum)    geometric: exp(its mean)
        truncate   clip(ratio, low, high)
        mask       ratio inside [low, high], else 0: what the sampler and the trainer see too differently is left out

    Per token, the correction leaves out how a prefix changes what follows, and is biased by that; per sequence it is
    right before truncation, and its variance grows with the length. The geometric mean is neither: it notices a
    sequence that is off as a whole, long or short, and is meant for masks.

    Sources: token, truncated (high 2): Yao et al. 2025, "Your efficient RL framework secretly brings you off-policy RL
    training", fengyao.notion.site/off-policy-rl; truncation as such: Ionides 2008, "Truncated importance sampling";
    token, masked (0.5 to 5, "IcePop"): Ling team 2025, arXiv:2510.18855; sequence, masked (3) is TRL's default.

    Args:
        old_logprobs: [M] sampled tokens under the policy as the trainer computes it, nats.
        sampling_logprobs: [M] the same tokens as the engine reported them, at the same temperature.
        score_seq: [M] int64, sequence of each token. A sequence must lie in one part as a whole, but for "token".
        level: One of ``IMPORTANCE_LEVELS``.
        bound: One of ``IMPORTANCE_BOUNDS``.
        low: Smallest ratio allowed, in [0, 1].
        high: Largest ratio allowed, at least 1; infinity for none, where exp(MAX_LOG_RATIO) still holds.

    Returns:
        See ``ImportanceWeights``.

    Raises:
        UnknownNameError: No such level or bound.
        ConfigError: The bounds leave out a ratio of 1.
    """
    check_same_shape(old_logprobs, sampling_logprobs, score_seq)
    _check_name(level, IMPORTANCE_LEVELS, "level of importance weights")
    _check_name(bound, IMPORTANCE_BOUNDS, "bound of importance weights")
    if not 0 <= low <= 1 <= high:
        raise ConfigError(
            f"The bounds of importance weights are {low} and {high}; a ratio of 1, where sampler and trainer agree, must "
            "lie between them, such as 0 and 2."
        )
    unit, ratio = _ratios(old_logprobs - sampling_logprobs, score_seq, level)
    too_low, too_high = ratio < low, ratio > high
    bounded = ratio.clamp(low, high) if bound == "truncate" else ratio.masked_fill(too_low | too_high, 0.0)
    return ImportanceWeights(
        weights=bounded[unit],
        num_units=torch.tensor(ratio.numel(), device=ratio.device),
        num_too_low=too_low.sum(),
        num_too_high=too_high.sum(),
        ratio_sum=ratio.sum(),
        ratio_max=ratio.max() if ratio.numel() else ratio.new_tensor(math.nan),
    )


def off_policy_kl(kl: Tensor, logprobs: Tensor, old_logprobs: Tensor) -> Tensor:
    """A KL estimate on tokens of the old policy, weighted so that its mean is that on tokens of the current one.

        exp(min(logprobs - old_logprobs, MAX_LOG_RATIO)) * kl

    As a loss term of k3 on-policy, it has the gradient of KL(policy || reference): the weight supplies the part that k3
    alone misses.

    Source: DeepSeek-AI 2025 (DeepSeek-V3.2), "unbiased KL estimate", arXiv:2512.02556; TRL calls it
    ``use_bias_correction_kl``.

    Args:
        kl: [M] estimate per token, such as ``kl_k3(logprobs, ref_logprobs)``.
        logprobs: [M] current policy, nats.
        old_logprobs: [M] policy that the tokens were drawn from.

    Returns:
        [M] per token, differentiable through the weight too.
    """
    check_same_shape(kl, logprobs, old_logprobs)
    return (logprobs - old_logprobs).clamp(max=MAX_LOG_RATIO).exp() * kl


def _ratios(log_ratio: Tensor, score_seq: Tensor, level: str) -> tuple[Tensor, Tensor]:
    """Unit of each token [M], and the ratio of each unit [U]."""
    if level == "token":
        unit = torch.arange(len(log_ratio), device=log_ratio.device)
        return unit, log_ratio.clamp(max=MAX_LOG_RATIO).exp()
    # renumbered: a sequence without tokens is not a unit, and must not count as one whose ratio is 1
    numbers, unit = torch.unique(score_seq, return_inverse=True)
    over_tokens = segment_sum if level == "sequence" else segment_mean
    return unit, over_tokens(log_ratio, unit, len(numbers)).clamp(max=MAX_LOG_RATIO).exp()


def _check_name(name: str, known: tuple[str, ...], kind: str) -> None:
    if name not in known:
        raise UnknownNameError(f"No {kind} is called {name!r}.{did_you_mean(name, known)} Known: {', '.join(known)}.")
