"""Losses of reward models: scores of whole completions, compared. P is the number of pairs."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from rlhf.losses.shapes import check_same_shape


def bradley_terry_loss(
    chosen_scores: Tensor,
    rejected_scores: Tensor,
    *,
    margin: Tensor | None = None,
    label_smoothing: float | Tensor = 0.0,
) -> Tensor:
    """Negative log-likelihood of each preference under the Bradley-Terry model.

        L(d) = -log sigmoid(d - margin),   d = chosen - rejected
        loss = (1 - s) L(d) + s L(-d)

    The second line is the expected loss when the label is wrong with probability s: a swapped pair is the same pair
    with d negated, and its margin is asked for the other way round. Without a margin the minimum lies at d = log((1 -
    s) / s), so a label that is sure to three quarters asks for a difference of log 3 and no more.

    Sources: Bradley and Terry 1952; as a loss on language-model scores: Ouyang et al. 2022, eq. 1, arXiv:2203.02155;
    margin: Touvron et al. 2023 (Llama 2), eq. 2, arXiv:2307.09288.

    Args:
        chosen_scores: [P] score of the preferred completion.
        rejected_scores: [P].
        margin: [P] by how much the chosen one should win, in units of the score; None for 0.
        label_smoothing: Probability that a label is the wrong way round, in [0, 0.5]: one for all pairs, or [P] with
            1 - confidence of the annotator.

    Returns:
        [P] loss per pair. The caller reduces.
    """
    check_same_shape(chosen_scores, rejected_scores)
    difference = chosen_scores - rejected_scores
    if margin is None:
        margin = difference.new_zeros(difference.shape)
    check_same_shape(difference, margin)
    if isinstance(label_smoothing, Tensor):
        check_same_shape(difference, label_smoothing)
    kept, swapped = F.logsigmoid(difference - margin), F.logsigmoid(-difference - margin)
    return -(1 - label_smoothing) * kept - label_smoothing * swapped


def centring_penalty(chosen_scores: Tensor, rejected_scores: Tensor) -> Tensor:
    """Pulls the scores of each pair towards mean 0, which preferences alone leave open.

        (chosen + rejected)^2

    Source: Eisenstein et al. 2023, "Helping or Herding?", arXiv:2312.09244; 0.01 is a usual coefficient.

    Args:
        chosen_scores: [P].
        rejected_scores: [P].

    Returns:
        [P] penalty per pair, before its coefficient. The caller reduces.
    """
    check_same_shape(chosen_scores, rejected_scores)
    return (chosen_scores + rejected_scores).square()
