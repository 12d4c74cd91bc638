"""Credit: from scores of completions and rewards of tokens to advantages. Nothing here carries a gradient.

Where a sequence's scored tokens have gaps (a rollout of several turns scores only the model's own), the next token is
the next *scored* token: tokens in between belong to the environment.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from rlhf.errors import ConfigError, DataError
from rlhf.losses.segments import segment_count, segment_cumsum_reverse, segment_ends, segment_max, segment_mean
from rlhf.losses.shapes import check_same_shape
from rlhf.losses.whitening import moments, whiten


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
    gae_lambda: float | Tensor,
    value_gae_lambda: float | None = None,
    bootstrap_values: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Generalized advantage estimation over each sequence's tokens, and the returns the critic learns.

        delta[t]     = rewards[t] + gamma * values[t + 1] - values[t]
        advantage[t] = delta[t] + gamma * gae_lambda * advantage[t + 1]
        return[t]    = advantage[t] + values[t]

    ``values[t]`` is the estimate before token t is chosen, read where t is predicted. After the last token the value is
    0 if the sequence ended there. One that was cut by the length limit did not end: with ``bootstrap_values`` the
    estimate after its last token replaces the missing rewards.

    With ``value_gae_lambda`` the critic's returns use a separate lambda (decoupled GAE): at 1 they are the
    rewards to come, which no early mistake of the critic can bend, while the policy keeps a lambda of less variance.

    Sources: Schulman et al. 2015, eq. 16, arXiv:1506.02438; bootstrapping at a cut: Pardo et al. 2017,
    arXiv:1712.00378; decoupled: Yuan et al. 2025 (VC-PPO), arXiv:2503.01491, and Yue et al. 2025 (VAPO),
    arXiv:2504.05118, who also give each sequence its lambda (``length_adaptive_lambda``).

    Args:
        rewards: [M] with the score at its place (``add_score_at_last_token``).
        values: [M].
        score_seq: [M] int64, never decreasing.
        gamma: Discount per token; 1 for language models.
        gae_lambda: Between one-step (0) and Monte-Carlo (1) estimates; [S] for one of each sequence.
        value_gae_lambda: Lambda of the returns; None for that of the advantages.
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
    if isinstance(gae_lambda, Tensor):
        advantages = _discounted_to_end(delta, score_seq, gamma * gae_lambda.to(values.dtype)[score_seq])
    else:
        advantages = segment_cumsum_reverse(delta, score_seq, discount=gamma * gae_lambda)
    if value_gae_lambda is None:
        return advantages, advantages + values
    return advantages, segment_cumsum_reverse(delta, score_seq, discount=gamma * value_gae_lambda) + values


@torch.no_grad()
def length_adaptive_lambda(lengths: Tensor, *, alpha: float = 0.05) -> Tensor:
    """Lambda of each sequence by its length, so that the trace of ``gae`` reaches over a fixed share of its tokens.

        lambda = 1 - 1 / (alpha * length),   and 0 where that is below 0

    The weights lambda^t of what follows sum to about alpha * length. A completion of up to 1 / alpha tokens (20) is
    left with one-step estimates, which the paper's long completions never meet; raise alpha for short ones.

    Source: Yue et al. 2025 (VAPO), section 4.2, arXiv:2504.05118.

    Args:
        lengths: [S] int64, scored tokens of each sequence.
        alpha: Share of a completion that a trace reaches over; the paper uses 0.05.

    Returns:
        float64 [S] in [0, 1), for ``gae``.
    """
    if alpha <= 0:
        raise ConfigError(f"alpha of the length-adaptive lambda is {alpha}; give a number above 0, such as 0.05.")
    return (1 - 1 / (alpha * lengths.double())).clamp(min=0)


@torch.no_grad()
def reinforce_plus_plus_advantages(
    rewards: Tensor,
    scores: Tensor,
    score_seq: Tensor,
    *,
    group: Tensor | None = None,
    gamma: float = 1.0,
    add_up: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Rewards to come of each token, whitened over all tokens of the step: no critic, and no group needed.

        return[t]    = rewards[t] + gamma * return[t + 1],  with the score at the last token
        advantage[t] = (return[t] - mean) / std,  over all tokens of all micro-batches and ranks

    With ``group`` (the "baseline" form) a score counts as far as it differs from the mean of its group. The deviation is
    still that of the whole step: a group that nearly agrees is not blown up, as dividing by its own deviation would.
    A mean and deviation of one rank's share would give each rank another objective; ``add_up`` makes them global.

    Source: Hu et al. 2025 (REINFORCE++ and its baseline form), arXiv:2501.03262.

    Args:
        rewards: [M] reward of each token but for the score, such as -kl_coef * kl_k1; zeros for none.
        scores: [S] score of each completion.
        score_seq: [M] int64, never decreasing.
        group: [S] int64, the prompt each belongs to, for the baseline form; None for the plain one.
        gamma: Discount per token.
        add_up: Sums float64 [3] ``moments`` over the parts of the step that are elsewhere: an ``all_reduce``. None
            where the tokens given are all there are.

    Returns:
        [M]; 0, to rounding, where every return is the same.

    Raises:
        DataError: A sequence has no scored token, so that its score would be lost.
    """
    if group is not None:
        scores = group_advantages(scores, group, divide_by_std=False)
    returns = segment_cumsum_reverse(add_score_at_last_token(rewards, scores, score_seq), score_seq, discount=gamma)
    totals = moments(returns)
    return whiten(returns, totals if add_up is None else add_up(totals))


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
    centered, index, count = _centered(scores, group)
    if not divide_by_std:
        return centered
    freedom = (count - 1).clamp(min=1) if unbiased else count
    variance = (
        segment_mean(centered.double().square(), index, len(count)) * count / freedom
    )  # 1e20 squared is not finite in float32
    return centered / (variance.sqrt() + eps)[index].to(centered.dtype)


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
    centered, index, count = _centered(scores, group)
    return centered * (count / (count - 1).clamp(min=1))[index]


@torch.no_grad()
def batch_std_advantages(
    scores: Tensor, group: Tensor, *, eps: float = 1e-4, add_up: Callable[[Tensor], Tensor] | None = None
) -> Tensor:
    """Scores against the mean of their group, over the deviation of the whole step.

        (score - mean of group) / (std of (score - mean of group) over the step + eps)

    A group's own deviation, as in GRPO, makes easy and hard prompts (where nearly all completions agree) count most.

    Source: Khatri et al. 2025 (ScaleRL), section on advantage normalization, arXiv:2510.13786.

    Args:
        scores: [S] one score for each completion.
        group: [S] int64, the prompt each belongs to; any numbers, in any order. A group must lie in one part as a whole.
        eps: Added to the standard deviation, in units of the score.
        add_up: Sums float64 [3] ``moments`` over the parts of the step that are elsewhere; None where there are none.

    Returns:
        [S] in the dtype of ``scores``; exactly 0 for a group of equal scores.
    """
    centered, _, _ = _centered(scores, group)
    totals = moments(centered)
    total, total_of_squares, count = (totals if add_up is None else add_up(totals)).to(scores.device).unbind()
    variance = (total_of_squares - total.square() / count) / (count - 1).clamp(min=1)
    return (centered / (variance.clamp(min=0).sqrt() + eps)).to(scores.dtype)


@torch.no_grad()
def greedy_baseline_advantages(scores: Tensor, greedy_scores: Tensor, prompt: Tensor) -> Tensor:
    """Each sampled completion's score against that of the greedy completion of its prompt.

        score - score of the greedy completion

    The greedy completion is a baseline only: it was not sampled, and no loss may see it. One more rollout for each
    prompt, at temperature 0, and not one more sample.

    Source: Li et al. 2023 (ReMax), algorithm 1, arXiv:2310.10505.

    Args:
        scores: [S] one score for each sampled completion.
        greedy_scores: [Q] score of each prompt's greedy completion.
        prompt: [S] int64, prompt of each sampled completion, in [0, Q).

    Returns:
        [S]; 0 where sampling did as well as taking the likeliest token each time.
    """
    check_same_shape(scores, prompt)
    if len(prompt) and not 0 <= int(prompt.min()) <= int(prompt.max()) < len(greedy_scores):
        raise ConfigError(
            f"Completions belong to prompts {int(prompt.min())} to {int(prompt.max())}, and there are greedy scores of "
            f"{len(greedy_scores)}; give one for each prompt, numbered from 0."
        )
    return scores - greedy_scores[prompt]


def _discounted_to_end(values: Tensor, segment: Tensor, discounts: Tensor) -> Tensor:
    """``segment_cumsum_reverse`` with a discount for each token's segment, [M], by doubling.

    After k rounds a token holds the sum over the next 2^k tokens of its segment, so the rounds are the logarithm of the
    longest segment.
    """
    last, lengths = segment_ends(segment)
    to_end = torch.repeat_interleave(last, lengths) - torch.arange(len(values), device=values.device)
    sums, reach = values, 1
    while reach <= int(to_end.max() if len(to_end) else 0):
        ahead = torch.where(to_end >= reach, sums.roll(-reach), 0.0)  # chosen, not multiplied: a NaN stays at home
        sums = sums + discounts * ahead
        discounts, reach = discounts.square(), 2 * reach
    return sums


def _centered(scores: Tensor, group: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Scores less their group's mean [S], group numbers from 0 [S], and group sizes [G]."""
    check_same_shape(scores, group)
    if not scores.is_floating_point():
        raise ConfigError(f"Scores must be floating-point numbers to be centered; got {scores.dtype}.")
    numbers, index = torch.unique(group, return_inverse=True)
    # the mean of equal numbers may be off by a rounding; measured from the group's maximum they are exact zeros
    shifted = scores - segment_max(scores, index, len(numbers))[index]
    centered = shifted - segment_mean(shifted, index, len(numbers))[index]
    return centered, index, segment_count(index, len(numbers)).to(scores.dtype)
