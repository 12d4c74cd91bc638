"""Losses on pairs that compare each side with the reference separately, not only their margin. P is the number of pairs.

    r = chosen - ref_chosen  and  rejected - ref_rejected, nats summed over whole completions

A margin grows as well when both completions become unlikely and the rejected one does so faster. Here that has a price:
adding a number to both log-ratios of a pair changes the loss. Arguments are those of ``preference.dpo_loss``.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from rlhf.losses.shapes import check_same_shape


def nca_loss(
    chosen_logprobs: Tensor,
    rejected_logprobs: Tensor,
    ref_chosen_logprobs: Tensor,
    ref_rejected_logprobs: Tensor,
    *,
    beta: float,
) -> Tensor:
    """Noise-contrastive alignment of a pair: both completions are also negatives, at half weight.

        -log sigmoid(beta r_chosen) - 1/2 log sigmoid(-beta r_chosen) - 1/2 log sigmoid(-beta r_rejected)

    For the chosen completion alone the minimum lies at beta r = log 2: it is raised, and not without end.

    Source: Chen et al. 2024 (InfoNCA and NCA), the pairwise form, arXiv:2402.05369.

    Args:
        chosen_logprobs: [P] nats, summed over the completion's tokens.
        rejected_logprobs: [P].
        ref_chosen_logprobs: [P].
        ref_rejected_logprobs: [P].
        beta: Strength of the pull towards the reference.

    Returns:
        [P] loss per pair. The caller reduces.
    """
    chosen, rejected = _logratios(chosen_logprobs, rejected_logprobs, ref_chosen_logprobs, ref_rejected_logprobs)
    as_negatives = F.logsigmoid(-beta * chosen) + F.logsigmoid(-beta * rejected)
    return -F.logsigmoid(beta * chosen) - 0.5 * as_negatives


def bco_pair_loss(
    chosen_logprobs: Tensor,
    rejected_logprobs: Tensor,
    ref_chosen_logprobs: Tensor,
    ref_rejected_logprobs: Tensor,
    *,
    beta: float,
    shift: float = 0.0,
) -> Tensor:
    """Binary classifier optimization of a pair: the implicit reward is the logit of "this one was chosen".

        -log sigmoid(beta r_chosen - shift) - log sigmoid(-(beta r_rejected - shift))

    An upper bound of DPO's loss, whatever the shift. ``unpaired.bco_loss`` is the same for rows that are no pairs.

    Source: Jung et al. 2024, arXiv:2404.04656.

    Args:
        chosen_logprobs: [P] nats, summed over the completion's tokens.
        rejected_logprobs: [P].
        ref_chosen_logprobs: [P].
        ref_rejected_logprobs: [P].
        beta: Strength of the pull towards the reference.
        shift: Reward at which a completion is as likely chosen as not, nats times beta: ``RunningRewardShift.value``.

    Returns:
        [P] loss per pair. The caller reduces.
    """
    chosen, rejected = _logratios(chosen_logprobs, rejected_logprobs, ref_chosen_logprobs, ref_rejected_logprobs)
    return -F.logsigmoid(beta * chosen - shift) - F.logsigmoid(shift - beta * rejected)


def sppo_loss(
    chosen_logprobs: Tensor,
    rejected_logprobs: Tensor,
    ref_chosen_logprobs: Tensor,
    ref_rejected_logprobs: Tensor,
    *,
    beta: float,
    win_probabilities: Tensor | None = None,
) -> Tensor:
    """Self-play preference optimization: each log-ratio is drawn to what its win rate is worth.

        (r_chosen - (p - 1/2) / beta)^2 + (r_rejected + (p - 1/2) / beta)^2

    Source: Wu et al. 2024, eq. 4.7, arXiv:2405.00675, where 1 / beta is called eta.

    Args:
        chosen_logprobs: [P] nats, summed over the completion's tokens.
        rejected_logprobs: [P].
        ref_chosen_logprobs: [P] the policy of the last round of self-play.
        ref_rejected_logprobs: [P].
        beta: Strength of the pull towards the reference, above 0; the paper has 0.001.
        win_probabilities: [P] probability p that the chosen completion beats the rejected one; None for 1 ("hard").

    Returns:
        [P] loss per pair. The caller reduces.
    """
    chosen, rejected = _logratios(chosen_logprobs, rejected_logprobs, ref_chosen_logprobs, ref_rejected_logprobs)
    if win_probabilities is None:
        win_probabilities = chosen.new_ones(chosen.shape)
    check_same_shape(chosen, win_probabilities)
    target = (win_probabilities - 0.5) / beta
    return (chosen - target).square() + (rejected + target).square()


def apo_zero_loss(
    chosen_logprobs: Tensor,
    rejected_logprobs: Tensor,
    ref_chosen_logprobs: Tensor,
    ref_rejected_logprobs: Tensor,
    *,
    beta: float,
) -> Tensor:
    """Anchored preference optimization, chosen up and rejected down: for data better than what the policy writes.

        sigmoid(-beta r_chosen) + sigmoid(beta r_rejected)

    Source: D'Oosterlinck et al. 2024, eq. 7, arXiv:2408.06266.

    Args:
        chosen_logprobs: [P] nats, summed over the completion's tokens.
        rejected_logprobs: [P].
        ref_chosen_logprobs: [P].
        ref_rejected_logprobs: [P].
        beta: Reciprocal of the nats from the reference at which a side is nearly done with.

    Returns:
        [P] loss per pair, in (0, 2). The caller reduces.
    """
    chosen, rejected = _logratios(chosen_logprobs, rejected_logprobs, ref_chosen_logprobs, ref_rejected_logprobs)
    return (-beta * chosen).sigmoid() + (beta * rejected).sigmoid()


def apo_down_loss(
    chosen_logprobs: Tensor,
    rejected_logprobs: Tensor,
    ref_chosen_logprobs: Tensor,
    ref_rejected_logprobs: Tensor,
    *,
    beta: float,
) -> Tensor:
    """Anchored preference optimization, both down and rejected further: for data worse than what the policy writes.

        sigmoid(beta r_chosen) + sigmoid(-beta (r_chosen - r_rejected))

    Source: D'Oosterlinck et al. 2024, eq. 8, arXiv:2408.06266.

    Args:
        chosen_logprobs: [P] nats, summed over the completion's tokens.
        rejected_logprobs: [P].
        ref_chosen_logprobs: [P].
        ref_rejected_logprobs: [P].
        beta: As in ``apo_zero_loss``.

    Returns:
        [P] loss per pair, in (0, 2). The caller reduces.
    """
    chosen, rejected = _logratios(chosen_logprobs, rejected_logprobs, ref_chosen_logprobs, ref_rejected_logprobs)
    return (beta * chosen).sigmoid() + (-beta * (chosen - rejected)).sigmoid()


def _logratios(chosen: Tensor, rejected: Tensor, ref_chosen: Tensor, ref_rejected: Tensor) -> tuple[Tensor, Tensor]:
    check_same_shape(chosen, rejected, ref_chosen, ref_rejected)
    return chosen - ref_chosen, rejected - ref_rejected
