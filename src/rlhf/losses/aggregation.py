"""From one loss per token to one number, with denominators of the whole optimizer step.

A denominator counts over all micro-batches and ranks of the step, never over the current tensor: then the parts of a
batch add up to the whole, gradients too, however it was split. With data-parallel training that averages gradients over
ranks, the caller multiplies by the number of ranks.
"""

from __future__ import annotations

from torch import Tensor

from rlhf.errors import ConfigError, TrainingError, UnknownNameError, did_you_mean
from rlhf.losses.segments import segment_count
from rlhf.losses.shapes import check_same_shape


def token_mean(losses: Tensor, *, num_tokens: int) -> Tensor:
    """This part's share of the mean over all tokens: a long completion weighs more than a short one.

    Source: as "token-level policy gradient loss", Yu et al. 2025 (DAPO), arXiv:2503.14476; for SFT the usual
    cross-entropy.

    Args:
        losses: [M] of one micro-batch; may be empty.
        num_tokens: Scored tokens of the whole optimizer step.

    Returns:
        0-dimensional; sums to the mean over the parts.
    """
    return losses.sum() / _positive(num_tokens, "scored token")


def sequence_mean(losses: Tensor, score_seq: Tensor, *, num_sequences: int) -> Tensor:
    """This part's share of the mean over sequences of each one's token mean: every completion weighs the same.

    A token of a long completion weighs less than one of a short completion: GRPO's bias by length. With one advantage
    per completion, a wrong one of twice the length is pushed down half as hard at each token, so wrong answers grow;
    ``token_mean`` and ``constant_mean`` are free of it (Liu et al. 2025, section 3.1, arXiv:2503.20783). A sequence
    without scored tokens adds 0 and still counts if ``num_sequences`` counts it. A sequence must lie in one part as a
    whole.

    Source: Shao et al. 2024 (GRPO), eq. 3, arXiv:2402.03300.

    Args:
        losses: [M] of one micro-batch; may be empty.
        score_seq: [M] int64, sequence of each token.
        num_sequences: Sequences of the whole optimizer step.

    Returns:
        0-dimensional; sums to the mean over the parts.
    """
    check_same_shape(losses, score_seq)
    local = int(score_seq.max()) + 1 if score_seq.numel() else 0
    lengths = segment_count(score_seq, local)[score_seq]
    return (losses / lengths).sum() / _positive(num_sequences, "sequence")


def constant_mean(losses: Tensor, *, num_sequences: int, constant: float) -> Tensor:
    """This part's share of sum / (sequences * constant): no weight depends on any completion's length.

    Source: Liu et al. 2025 (Dr. GRPO), arXiv:2503.20783, where the constant is the longest completion allowed.

    Args:
        losses: [M] of one micro-batch; may be empty.
        num_sequences: Sequences of the whole optimizer step.
        constant: Tokens, the same for the whole run, such as the limit on a completion's length.

    Returns:
        0-dimensional; sums to the whole over the parts.
    """
    if constant <= 0:
        raise ConfigError(f"The constant to divide by is {constant}; give a number of tokens above 0.")
    return losses.sum() / (_positive(num_sequences, "sequence") * constant)


AGGREGATIONS = ("token", "sequence", "constant")
"""What ``aggregate`` chooses from, by the name a recipe uses."""


def aggregate(
    losses: Tensor,
    score_seq: Tensor,
    *,
    how: str,
    num_tokens: int,
    num_sequences: int,
    constant: float | None = None,
) -> Tensor:
    """The aggregation that a recipe names.

    Args:
        losses: [M] of one micro-batch; may be empty.
        score_seq: [M] int64, sequence of each token.
        how: One of ``AGGREGATIONS``.
        num_tokens: Scored tokens of the whole optimizer step.
        num_sequences: Sequences of the whole optimizer step.
        constant: Tokens per sequence to divide by; needed for "constant" only.

    Returns:
        0-dimensional; sums to the whole over the parts.

    Raises:
        UnknownNameError: No aggregation has this name.
        TrainingError: The denominator is 0: the step holds nothing to learn from.
    """
    match how:
        case "token":
            return token_mean(losses, num_tokens=num_tokens)
        case "sequence":
            return sequence_mean(losses, score_seq, num_sequences=num_sequences)
        case "constant":
            if constant is None:
                raise ConfigError('The aggregation "constant" needs its constant: tokens to divide each sequence by.')
            return constant_mean(losses, num_sequences=num_sequences, constant=constant)
    raise UnknownNameError(
        f"No aggregation is called {how!r}.{did_you_mean(how, AGGREGATIONS)} Known: {', '.join(AGGREGATIONS)}."
    )


def _positive(count: int, what: str) -> int:
    if count < 1:
        raise TrainingError(f"The optimizer step has {count} {what}s to average over; it needs at least one.")
    return count
