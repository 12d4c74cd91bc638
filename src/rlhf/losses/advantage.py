"""Credit: from scores of completions and rewards of tokens to advantages. Nothing here carries a gradient.

Where a sequence's scored tokens have gaps (a rollout of several turns scores only the model's own), the next token is
the next *scored* token: what stands between belongs to the environment.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rlhf.errors import ConfigError, DataError
from rlhf.losses.segments import segment_count, segment_cumsum_reverse, segment_ends, segment_max, segment_mean
from rlhf.losses.shapes import check_same_shape


@torch.no_grad()
def add_score_at_last_token(rewards: Tensor, scores: Tensor, score_seq: Tensor) -> Tensor:
    """Token rewards with each sequence's score added at its last scored token, the one whose choice ended it.

    There is no place after that token, so the score can't land on padding or one step late.

    Args:
        rewards: [M] reward of each token, such as a KL penalty.
        scores: [S] score of each completion.
        score_seq: [M] int64, never decreasing.

    Returns:
        [M] new tensor in the dtype of ``rewards``.

    Raises:
        DataError: A sequence has no scored token, so that its score would be lost.
    """
    check_same_shape(rewards, score_seq)
    last, _ = segment_ends(score_seq)
    if len(last) != len(scores):
        empty = (segment_count(score_seq, len(scores)) == 0).nonzero().flatten().tolist()
        raise DataError(
            f"Sequences {empty} of this batch have no scored token to carry their score; leave them out of the batch."
        )
    return rewards.index_add(0, last, scores.to(rewards.dtype))


@torch.no_grad()
def gae(
    rewards: Tensor,
    values: Tensor,
    score_seq: Tensor,
    *,
    gamma: float,
    lam: float,
    bootstrap_values: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation over each sequence's tokens, and the returns the critic learns.

        delta[t]     = rewards[t] + gamma * values[t + 1] - values[t]
        advantage[t] = delta[t] + gamma * lam * advantage[t + 1]
        return[t]    = advantage[t] + values[t]

    ``values[t]`` is the estimate before token t is chosen, read where t is predicted. After the last token the value is
    0 if the sequence ended there. One that was cut by the length limit did not end: with ``bootstrap_values`` the
    estimate after its last token stands for what would have come.

    Source: Schulman et al. 2015, eq. 16, arXiv:1506.02438; bootstrapping at a cut: Pardo et al. 2017, arXiv:1712.00378.

    Args:
        rewards: [M] with the score at its place (``add_score_at_last_token``).
        values: [M].
        score_seq: [M] int64, never decreasing.
        gamma: Discount per token; 1 for language models.
        lam: Between one-step (0) and Monte-Carlo (1) estimates.
        bootstrap_values: [S] value after the last scored token: 0 for a sequence that ended, the critic's estimate for
            a truncated one. None: every sequence is taken as ended.

    Returns:
        [M] advantages and [M] returns, without gradient.
    """
    check_same_shape(rewards, values, score_seq)
    last, _ = segment_ends(score_seq)
    next_values = values.roll(-1)
    next_values[last] = 0 if bootstrap_values is None else bootstrap_values[score_seq[last]].to(values.dtype)
    delta = rewards + gamma * next_values - values
    advantages = segment_cumsum_reverse(delta, score_seq, discount=gamma * lam)
    return advantages, advantages + values


@torch.no_grad()
def group_advantages(
    scores: Tensor, group: Tensor, *, divide_by_std: bool = True, eps: float = 1e-4, unbiased: bool = True
) -> Tensor:
    """How much better each completion scored than its siblings of the same prompt.

        (score - mean of group) / (std of group + eps)        without the division: divide_by_std=False

    A group of equal scores, or of one completion, teaches nothing: its advantages are exactly 0, not rounding noise
    over eps.

    Sources: Shao et al. 2024 (GRPO), section 4.1.2, arXiv:2402.03300; without the division: Liu et al. 2025 (Dr. GRPO),
    arXiv:2503.20783. Most implementations, TRL's among them, use the unbiased deviation and 1e-4.

    Args:
        scores: [S] one score for each completion.
        group: [S] int64, the prompt each belongs to; any numbers, in any order.
        divide_by_std: False keeps the score's own scale, and does not blow up groups that are nearly equal.
        eps: Added to the standard deviation, in units of the score.
        unbiased: Divide squares by group size - 1 rather than by group size.

    Returns:
        [S] in the dtype of ``scores``.
    """
    centred, index, count = _centred(scores, group)
    if not divide_by_std:
        return centred
    freedom = (count - 1).clamp(min=1) if unbiased else count
    variance = segment_mean(centred.square(), index, len(count)) * count / freedom
    return centred / (variance.sqrt() + eps)[index]


@torch.no_grad()
def leave_one_out_advantages(scores: Tensor, group: Tensor) -> Tensor:
    """Each completion's score against the mean of its siblings', itself left out: an unbiased baseline.

        score - mean of the other K - 1  =  K / (K - 1) * (score - mean of group)

    Sources: Kool et al. 2019, "Buy 4 REINFORCE samples, get a baseline for free!"; Ahmadian et al. 2024 (RLOO),
    arXiv:2402.14740.

    Args:
        scores: [S] one score for each completion.
        group: [S] int64, the prompt each belongs to; any numbers, in any order.

    Returns:
        [S]; 0 for a completion without siblings, which has no baseline.
    """
    centred, index, count = _centred(scores, group)
    return centred * (count / (count - 1).clamp(min=1))[index]


def _centred(scores: Tensor, group: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Scores less their group's mean [S], group numbers from 0 [S], and group sizes [G]."""
    check_same_shape(scores, group)
    if not scores.is_floating_point():
        raise ConfigError(f"Scores must be floating-point numbers to be centred; got {scores.dtype}.")
    numbers, index = torch.unique(group, return_inverse=True)
    # the mean of equal numbers may be off by a rounding; measured from the group's maximum they are exact zeros
    shifted = scores - segment_max(scores, index, len(numbers))[index]
    centred = shifted - segment_mean(shifted, index, len(numbers))[index]
    return centred, index, segment_count(index, len(numbers)).to(scores.dtype)
