"""Token-level parts of preference losses: exclude excess length, weight a pair, keep the chosen completion likely.

[M] scored tokens, [S] sequences, [P] pairs. Sequences are chosen, rejected, chosen, rejected ..., as packing lays them;
the tokens of a sequence are contiguous.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rlhf.errors import ConfigError
from rlhf.losses.segments import segment_count, segment_ends, segment_mean, segment_sum, split_pairs
from rlhf.losses.shapes import check_same_shape


def chosen_nll(logprobs: Tensor, score_seq: Tensor, num_sequences: int) -> Tensor:
    """Negative log-likelihood per token of each chosen completion: the SFT term of RPO and CPO.

    Sources: Pang et al. 2024 (RPO), eq. 1, arXiv:2404.19733; Xu et al. 2024 (CPO), section 3, arXiv:2401.08417.

    Args:
        logprobs: [M] policy, nats per token.
        score_seq: [M] int64, the sequence of each token.
        num_sequences: S.

    Returns:
        [P] mean per token of each chosen completion, before its weight. The caller reduces.
    """
    chosen, _ = split_pairs(segment_mean(-logprobs, score_seq, num_sequences))
    return chosen


def length_desensitized_logprobs(logprobs: Tensor, score_seq: Tensor, num_sequences: int, *, alpha: float) -> Tensor:
    """LD-DPO: sums in which the tokens that only the longer completion of a pair has count for less.

        sum over the first n tokens + alpha * sum over those after,  n = min(chosen length, rejected length)

    They take the place of plain sums under the policy *and* under the reference, in any loss on pairs.

    Source: Liu et al. 2024 (LD-DPO), arXiv:2409.06411.

    Args:
        logprobs: [M] nats per token.
        score_seq: [M] int64, the sequence of each token, never decreasing.
        num_sequences: S, even.
        alpha: In [0, 1]: 1 is the plain sum, 0 cuts both completions to one length.

    Returns:
        [S] nats per completion.

    Raises:
        ConfigError: ``alpha`` is outside [0, 1], or tokens or pairs are out of order.
    """
    if not 0 <= alpha <= 1:
        raise ConfigError(f"length_desensitized_logprobs needs an alpha from 0 to 1; got {alpha}.")
    shared = torch.minimum(*split_pairs(segment_count(score_seq, num_sequences))).repeat_interleave(2)
    last, lengths = segment_ends(score_seq)  # of sequences that have tokens; also checks the order
    first = (last + 1 - lengths).repeat_interleave(lengths)
    is_shared = torch.arange(len(score_seq), device=score_seq.device) - first < shared[score_seq]
    return segment_sum(torch.where(is_shared, logprobs, alpha * logprobs), score_seq, num_sequences)


@torch.no_grad()
def wpo_weights(logprobs: Tensor, log_collision_probs: Tensor, score_seq: Tensor, num_sequences: int) -> Tensor:
    """WPO: pairs that the policy could have written itself count for more. Multiply each pair's loss by its weight.

        w(y) = exp(mean over tokens of (log p(y_t) - log sum over v of p(v)^2)),   weight = w(chosen) w(rejected)

    The second term is the log-probability that two samples of the same distribution agree: a completion sampled from
    the policy has a weight near 1, not one that shrinks with the policy's entropy. A completion without scored tokens
    weighs 1.

    Source: Zhou et al. 2024, eq. 2 and its "sampled alignment", arXiv:2406.11827.

    Args:
        logprobs: [M] policy, nats per token.
        log_collision_probs: [M] of the policy at the same places: ``log_collision_probs(logits)``.
        score_seq: [M] int64, the sequence of each token.
        num_sequences: S, even.

    Returns:
        [P] weights, without gradient.
    """
    check_same_shape(logprobs, log_collision_probs)
    chosen, rejected = split_pairs(segment_mean(logprobs - log_collision_probs, score_seq, num_sequences))
    return (chosen + rejected).exp()


def log_collision_probs(logits: Tensor) -> Tensor:
    """log of the sum over v of p(v)^2: how likely two samples of one distribution agree.

    Args:
        logits: [..., V].

    Returns:
        [...] nats in float32 or wider: 0 for a certain distribution, -log V for a uniform one.
    """
    wide = torch.promote_types(logits.dtype, torch.float32)
    return (2 * logits.to(wide).log_softmax(-1)).logsumexp(-1)
