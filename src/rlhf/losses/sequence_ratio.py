"""Policy losses with one ratio per sequence: its tokens are clipped together."""

from __future__ import annotations

import torch
from torch import Tensor

from rlhf.errors import UnknownNameError, did_you_mean
from rlhf.losses.policy import clipped_policy_loss
from rlhf.losses.segments import segment_mean, segment_sum
from rlhf.losses.shapes import check_same_shape

SEQUENCE_RATIOS = ("mean", "token", "sum")
"""What ``sequence_log_ratios`` chooses from, by the name a recipe uses."""


def sequence_log_ratios(logprobs: Tensor, old_logprobs: Tensor, score_seq: Tensor, *, how: str = "mean") -> Tensor:
    """One log-ratio for all tokens of a sequence, in place of one for each.

        mean    mean over the sequence's tokens of (logprobs - old_logprobs): the length-th root of the sequences' ratio
        token   the value of "mean"; the gradient of each token is that of its own log-probability
        sum     the sum: the ratio of the probabilities of whole sequences, whose spread grows with their length

    Sources: "mean": Zheng et al. 2025 (GSPO), eq. 7, arXiv:2507.18071; "token": there, eq. 14 (GSPO-token), for
    advantages that differ within a sequence; "sum": Ahmadian et al. 2024 (RLOO), arXiv:2402.14740, with PPO's clip.

    Args:
        logprobs: [M] current policy, nats; the only input with gradient.
        old_logprobs: [M] policy the ratio is taken against.
        score_seq: [M] int64, sequence of each token. A sequence must lie in one micro-batch as a whole.
        how: One of ``SEQUENCE_RATIOS``.

    Returns:
        [M] nats. Against zeros they go where log-probabilities go: ``clipped_tokens``, ``ratio_statistics``.

    Raises:
        UnknownNameError: No such ratio.
    """
    check_same_shape(logprobs, old_logprobs, score_seq)
    num_sequences = int(score_seq.max()) + 1 if score_seq.numel() else 0
    log_ratio = logprobs - old_logprobs
    match how:
        case "mean":
            return segment_mean(log_ratio, score_seq, num_sequences)[score_seq]
        case "token":
            value = segment_mean(log_ratio.detach(), score_seq, num_sequences)[score_seq]
            return value + (logprobs - logprobs.detach())
        case "sum":
            return segment_sum(log_ratio, score_seq, num_sequences)[score_seq]
    raise UnknownNameError(
        f"No ratio of sequences is called {how!r}.{did_you_mean(how, SEQUENCE_RATIOS)} "
        f"Known: {', '.join(SEQUENCE_RATIOS)}."
    )


def sequence_policy_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    score_seq: Tensor,
    *,
    how: str = "mean",
    clip_low: float = 3e-4,
    clip_high: float = 4e-4,
    dual_clip: float | None = None,
) -> Tensor:
    """PPO's clipped surrogate with the ratio of a sequence in place of each token's.

    Every token carries its sequence's loss. ``sequence_mean`` of them is the papers' objective, each sequence once; a
    token mean would count a sequence once for every token it has. The bounds belong to the kind of ratio: those of
    GSPO (section 5.1 there) are for a mean over tokens, a thousandth of PPO's; for "sum" take 0.2.

    Sources: Zheng et al. 2025 (GSPO), eqs. 5 and 13, arXiv:2507.18071; for the others see ``sequence_log_ratios``.

    Args:
        logprobs: [M] current policy, nats; the only input with gradient.
        old_logprobs: [M] policy the ratio is taken against.
        advantages: [M], equal within a sequence but for "token".
        score_seq: [M] int64, sequence of each token. A sequence must lie in one micro-batch as a whole.
        how: Kind of ratio, one of ``SEQUENCE_RATIOS``.
        clip_low: As in ``clipped_policy_loss``.
        clip_high: As in ``clipped_policy_loss``.
        dual_clip: As in ``clipped_policy_loss``.

    Returns:
        [M] loss per token.
    """
    log_ratios = sequence_log_ratios(logprobs, old_logprobs, score_seq, how=how)
    return clipped_policy_loss(
        log_ratios, torch.zeros_like(log_ratios), advantages,
        clip_low=clip_low, clip_high=clip_high, dual_clip=dual_clip,
    )  # fmt: skip
