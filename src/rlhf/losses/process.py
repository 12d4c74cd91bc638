"""Losses of process reward models: scores of the steps of a solution. K steps of all solutions, S solutions, P pairs.

Steps and their aggregation: ``steps``.
"""

from __future__ import annotations

from torch import Tensor

from rlhf.losses.reward import binary_loss, bradley_terry_loss
from rlhf.losses.segments import split_pairs
from rlhf.losses.step_aggregation import aggregate_steps


def step_loss(step_scores: Tensor, labels: Tensor, *, wrong_weight: float = 1.0) -> Tensor:
    """Cross-entropy of each step's score against whether the step is right.

        -y log sigmoid(score) - w (1 - y) log sigmoid(-score)

    Where labels after the first wrong step mean nothing, take ``steps_until_first_error`` of both first.

    Sources: Uesato et al. 2022, arXiv:2211.14275; Lightman et al. 2023, "Let's verify step by step", arXiv:2305.20050;
    soft labels, the share of continuations that reach the right answer: Wang et al. 2023 (Math-Shepherd),
    arXiv:2312.08935.

    Args:
        step_scores: [K] log-odds that the step is right.
        labels: [K] 1 right, 0 wrong, or a probability.
        wrong_weight: w; more than 1 where wrong steps are rare.

    Returns:
        [K] loss per step. The caller divides by the steps of the whole optimizer step.
    """
    return binary_loss(step_scores, labels, negative_weight=wrong_weight)


def pairwise_outcome_loss(
    step_scores: Tensor,
    step_seq: Tensor,
    num_sequences: int,
    *,
    how: str,
    margin: Tensor | None = None,
    label_smoothing: float | Tensor = 0.0,
) -> Tensor:
    """Bradley-Terry loss of pairs of solutions whose strengths are the aggregated probabilities of their steps.

        P(chosen wins) = q(chosen) / (q(chosen) + q(rejected)),   log q as in ``aggregate_steps``

    Learns steps from judgments of whole solutions, alone or together with ``step_loss`` if steps are labeled too.

    Args:
        step_scores: [K] log-odds that the step is right.
        step_seq: [K] int64, never decreasing, a solution's steps in order.
        num_sequences: 2P solutions: chosen, rejected, chosen, rejected ...
        how: One of ``STEP_AGGREGATIONS``.
        margin: [P] as in ``bradley_terry_loss``, in nats.
        label_smoothing: As in ``bradley_terry_loss``.

    Returns:
        [P] loss per pair. The caller reduces.
    """
    chosen, rejected = split_pairs(aggregate_steps(step_scores, step_seq, num_sequences, how=how))
    return bradley_terry_loss(chosen, rejected, margin=margin, label_smoothing=label_smoothing)
