"""Sums, means, maxima and backward sums over the tokens of each sequence: a flat layout uses these instead of a mask.

[M] scored tokens, [S] sequences; ``segment[m]`` is the sequence that token m belongs to (``score_seq`` of a packed
batch), or the group that a sequence belongs to. Results have the dtype of the values. On CUDA, sums run in a fixed
order only under ``torch.use_deterministic_algorithms(True)``.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rlhf.errors import ConfigError
from rlhf.losses.shapes import check_same_shape


def segment_sum(values: Tensor, segment: Tensor, num_segments: int) -> Tensor:
    """Sum of the values that belong to each segment.

    Args:
        values: [M] one number per scored token.
        segment: [M] int64, the sequence each token belongs to, in [0, num_segments), in any order.
        num_segments: S.

    Returns:
        [S] sums; 0 for a segment without tokens.
    """
    check_same_shape(values, segment)
    return values.new_zeros(num_segments).index_add(0, segment, values)


def segment_count(segment: Tensor, num_segments: int) -> Tensor:
    """How many tokens each segment has.

    Args:
        segment: [M] int64, in [0, num_segments), in any order.
        num_segments: S.

    Returns:
        int64 [S].
    """
    return segment.new_zeros(num_segments).index_add(0, segment, torch.ones_like(segment))


def segment_mean(values: Tensor, segment: Tensor, num_segments: int) -> Tensor:
    """Mean of the values that belong to each segment.

    Args:
        values: [M] one number per scored token.
        segment: [M] int64, in [0, num_segments), in any order.
        num_segments: S.

    Returns:
        [S] means. 0 for a segment without tokens, so that it adds nothing to a loss and no NaN to a gradient; where a
        mean is reported as a measurement, leave out the segments whose ``segment_count`` is 0.
    """
    count = segment_count(segment, num_segments).clamp(min=1)
    return segment_sum(values, segment, num_segments) / count


def segment_max(values: Tensor, segment: Tensor, num_segments: int) -> Tensor:
    """Largest of the values that belong to each segment.

    Args:
        values: [M] floats.
        segment: [M] int64, in [0, num_segments), in any order.
        num_segments: S.

    Returns:
        [S] maxima; -inf for a segment without tokens. NaN where one of its values is NaN.
    """
    check_same_shape(values, segment)
    lowest = values.new_full((num_segments,), -math.inf)
    return lowest.scatter_reduce(0, segment, values, "amax")


@torch.no_grad()
def segment_cumsum_reverse(values: Tensor, segment: Tensor, *, discount: float = 1.0) -> Tensor:
    """Discounted sum from each token to the end of its segment.

        out[t] = values[t] + discount * out[t + 1],  and out[last] = values[last]

    One step of the loop advances every segment that is still running, from its end: the work is M elements over as many
    steps as the longest segment has tokens, and nothing is padded. Segments can't reach each other, not even by a NaN.

    Args:
        values: [M], the tokens of each segment side by side and in order.
        segment: [M] int64, never decreasing.
        discount: Weight of the next token's sum, in [0, 1].

    Returns:
        [M], without gradient.

    Raises:
        ConfigError: ``segment`` decreases somewhere.
    """
    check_same_shape(values, segment)
    out = torch.empty_like(values)
    last, lengths = segment_ends(segment)
    lengths, order = lengths.sort(descending=True)
    last = last[order]  # longest first: the segments still running at a step are the first ones
    finished = torch.bincount(lengths).cumsum(0)[:-1]  # by step t, those of at most t tokens
    carry = torch.zeros_like(values[: len(lengths)])
    for step, running in enumerate((len(lengths) - finished).tolist()):
        rows = last[:running] - step
        carry = values[rows] + discount * carry[:running]
        out[rows] = carry
    return out


def segment_ends(segment: Tensor) -> tuple[Tensor, Tensor]:
    """Index of the last token and number of tokens of every segment that has any.

    Args:
        segment: [M] int64, never decreasing.

    Returns:
        int64 [K] last indices and int64 [K] lengths, in order; K is at most S, as empty segments don't occur in
        ``segment``.

    Raises:
        ConfigError: ``segment`` decreases somewhere, so that a segment's tokens are not side by side.
    """
    ids, lengths = torch.unique_consecutive(segment, return_counts=True)
    if bool((ids.diff() < 0).any()):
        at = int((segment.diff() < 0).nonzero()[0]) + 1
        raise ConfigError(
            f"Token {at} belongs to sequence {int(segment[at])} and the token before it to {int(segment[at - 1])}; "
            "the tokens of a sequence must be contiguous, sequences in order."
        )
    return lengths.cumsum(0) - 1, lengths


def split_pairs(values: Tensor) -> tuple[Tensor, Tensor]:
    """Chosen and rejected halves of per-sequence values, in the order in which packing lays a pair's branches.

    Args:
        values: [2P] one number per sequence: chosen, rejected, chosen, rejected ...

    Returns:
        [P] of the chosen and [P] of the rejected completions.

    Raises:
        ConfigError: The number of sequences is odd.
    """
    if len(values) % 2:
        raise ConfigError(f"Pairs come as two sequences each; got {len(values)} sequences, which is odd.")
    return values[0::2], values[1::2]
