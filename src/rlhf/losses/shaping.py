"""Score processing before advantages: length penalties, and which groups are informative."""

from __future__ import annotations

import torch
from torch import Tensor

from rlhf.errors import ConfigError
from rlhf.losses.segments import segment_max
from rlhf.losses.shapes import check_same_shape


@torch.no_grad()
def overlong_penalty(lengths: Tensor, *, max_tokens: int, buffer_tokens: int) -> Tensor:
    """Soft punishment of completions that come near the length limit, to be added to their scores.

         0                                              length <= max - buffer
        (max - buffer - length) / buffer                between: falls in a straight line
        -1                                              length > max

    A score that is simply wrong for every truncated completion punishes sound reasoning for being long, all at once.

    Source: Yu et al. 2025 (DAPO), eq. 13, arXiv:2503.14476: max 20,480 and buffer 4,096 tokens.

    Args:
        lengths: [S] int64, tokens of each completion.
        max_tokens: Limit on a completion's length.
        buffer_tokens: Tokens before the limit in which the penalty grows, from 1 to ``max_tokens``.

    Returns:
        float32 [S] in [-1, 0].
    """
    if not 1 <= buffer_tokens <= max_tokens:
        raise ConfigError(
            f"The overlong penalty grows over {buffer_tokens} tokens before a limit of {max_tokens}; give a buffer of "
            "at least 1 token and at most the limit."
        )
    return ((max_tokens - buffer_tokens - lengths).float() / buffer_tokens).clamp(-1, 0)


@torch.no_grad()
def teaching_groups(scores: Tensor, group: Tensor, *, min_spread: float = 0.0) -> Tensor:
    """Which completions belong to a group whose scores differ; the others' advantages are all 0.

        max of group - min of group > min_spread

    Dynamic sampling draws prompts until enough groups teach, so that a step's batch is full of gradient rather than of
    zeros. Filtering alone, without drawing again, only changes denominators.

    Source: Yu et al. 2025 (DAPO), eq. 11, arXiv:2503.14476, there for scores of 0 and 1.

    Args:
        scores: [S] one score for each completion.
        group: [S] int64, the prompt each belongs to; any numbers, in any order.
        min_spread: Difference of scores, in their units, that still counts as none: for graded scores with noise.

    Returns:
        bool [S], equal within a group. False for a completion without siblings, and where a score is NaN.
    """
    check_same_shape(scores, group)
    if min_spread < 0:
        raise ConfigError(f"min_spread is {min_spread}; it is a difference of scores, at least 0.")
    numbers, index = torch.unique(group, return_inverse=True)
    highest, lowest = segment_max(scores, index, len(numbers)), -segment_max(-scores, index, len(numbers))
    return (highest - lowest > min_spread)[index]
