"""Alignment by optimal transport (AOT): compares distributions instead of pairs. P is the number of pairs.

In one dimension the optimal plan is to sort both sides, so each number is matched with the one of the same rank. **Ranks belong
to the whole step**: within a micro-batch they differ, and so would the loss. Give these functions all pairs of the
optimizer step; or call ``same_rank`` on the detached values of the whole step, bring what it matches into one
micro-batch, and apply ``dpo_loss`` to each part. That is the same loss and gradient, however the step is split.
"""

from __future__ import annotations

from torch import Tensor

from rlhf.losses.preference import dpo_loss
from rlhf.losses.shapes import check_same_shape


def aot_loss(
    chosen_logprobs: Tensor,
    rejected_logprobs: Tensor,
    ref_chosen_logprobs: Tensor,
    ref_rejected_logprobs: Tensor,
    *,
    beta: float,
    label_smoothing: float = 0.0,
) -> Tensor:
    """AOT on pairs: the policy's differences shall dominate the reference's, rank by rank.

        ``dpo_loss`` of each pair, whose reference pair is ``same_rank(chosen - rejected, ref_chosen - ref_rejected)``

    Source: Melnyk et al. 2024, the paired form, arXiv:2406.05882.

    Args:
        chosen_logprobs: [P] nats, summed over the completion's tokens; all pairs of the step.
        rejected_logprobs: [P].
        ref_chosen_logprobs: [P].
        ref_rejected_logprobs: [P].
        beta: As in ``dpo_loss``.
        label_smoothing: As in ``dpo_loss``.

    Returns:
        [P] loss per pair, in the order given. The caller reduces.
    """
    check_same_shape(chosen_logprobs, rejected_logprobs, ref_chosen_logprobs, ref_rejected_logprobs)
    match = same_rank(chosen_logprobs - rejected_logprobs, ref_chosen_logprobs - ref_rejected_logprobs)
    reference = ref_chosen_logprobs[match], ref_rejected_logprobs[match]
    return dpo_loss(chosen_logprobs, rejected_logprobs, *reference, beta=beta, label_smoothing=label_smoothing)


def aot_unpaired_loss(
    chosen_logprobs: Tensor,
    rejected_logprobs: Tensor,
    ref_chosen_logprobs: Tensor,
    ref_rejected_logprobs: Tensor,
    *,
    beta: float,
    label_smoothing: float = 0.0,
) -> Tensor:
    """AOT on two heaps: log-ratios of the chosen should dominate those of the rejected; the pairing is not used.

        ``dpo_loss`` of each chosen completion and the rejected one of the same rank among its kind, by log-ratio

    Source: Melnyk et al. 2024, the unpaired form, arXiv:2406.05882.

    Args:
        chosen_logprobs: [P] nats, summed over the completion's tokens; all of the step.
        rejected_logprobs: [P] in any order.
        ref_chosen_logprobs: [P] of the chosen completions, in their order.
        ref_rejected_logprobs: [P] of the rejected completions, in theirs.
        beta: As in ``dpo_loss``.
        label_smoothing: As in ``dpo_loss``.

    Returns:
        [P] loss per chosen completion, in the order given. The caller reduces.
    """
    check_same_shape(chosen_logprobs, rejected_logprobs, ref_chosen_logprobs, ref_rejected_logprobs)
    match = same_rank(chosen_logprobs - ref_chosen_logprobs, rejected_logprobs - ref_rejected_logprobs)
    return dpo_loss(
        chosen_logprobs,
        rejected_logprobs[match],
        ref_chosen_logprobs,
        ref_rejected_logprobs[match],
        beta=beta,
        label_smoothing=label_smoothing,
    )


def same_rank(values: Tensor, others: Tensor) -> Tensor:
    """For each value, the index of the other side's value of the same rank; ties keep their order.

    Args:
        values: [P].
        others: [P].

    Returns:
        int64 [P], a permutation: ``others[result]`` is sorted as ``values`` are.
    """
    check_same_shape(values, others)
    rank = values.detach().argsort(stable=True).argsort()
    return others.detach().argsort(stable=True)[rank]
