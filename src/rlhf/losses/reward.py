"""Losses of reward models: scores of whole completions, compared or judged one by one.

[P] pairs, [S] completions. Ties and preferences of several strengths are in ``ties``, orders of more than two
completions in ``rankings``, steps of a solution in ``process``.
"""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor

from rlhf.losses.shapes import check_same_shape, check_smoothing


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

    A margin is given, not learned: the loss falls with it without end, so one that carries a gradient would shrink to
    nothing. ``graded_loss`` learns margins.

    Sources: Bradley and Terry 1952; as a loss on language-model scores: Ouyang et al. 2022, eq. 1, arXiv:2203.02155;
    margin: Touvron et al. 2023 (Llama 2), eq. 2, arXiv:2307.09288.

    Args:
        chosen_scores: [P] score of the preferred completion.
        rejected_scores: [P].
        margin: [P] by how much the chosen one should win, in units of the score; None for 0.
        label_smoothing: Probability that a label is the wrong way round, in [0, 0.5]: one for all pairs, or [P] such
            as ``label_noise`` makes of the rows' ``label_probability``.

    Returns:
        [P] loss per pair. The caller reduces.

    Raises:
        ConfigError: One ``label_smoothing`` for all pairs is outside its range.
    """
    if not isinstance(label_smoothing, Tensor) and label_smoothing != 0.5:  # half: the labels carry no information
        check_smoothing(label_smoothing)
    check_same_shape(chosen_scores, rejected_scores)
    difference = chosen_scores - rejected_scores
    if margin is None:
        margin = difference.new_zeros(difference.shape)
    check_same_shape(difference, margin)
    if isinstance(label_smoothing, Tensor):
        check_same_shape(difference, label_smoothing)
    kept, swapped = F.logsigmoid(difference - margin), F.logsigmoid(-difference - margin)
    return -(1 - label_smoothing) * kept - label_smoothing * swapped


def label_noise(label_probability: Tensor, *, label_smoothing: float = 0.0) -> Tensor:
    """Probability that each label is the wrong way round: the one place where rows' probabilities become smoothing.

        g = 1 - label_probability
        s (1 - g) + (1 - s) g                   wrong by one cause and not put right by the other

    The loss's soft label is one minus this. A probability of 1/2, a guess, teaches nothing but equal scores.

    Args:
        label_probability: [P] (or [S]) that each label is right, in [0.5, 1].
        label_smoothing: s, share of labels that are wrong whatever their probability, in [0, 0.5].

    Returns:
        [P] in [label_smoothing, 0.5], for ``label_smoothing`` of the losses here.
    """
    guessed_wrong = 1 - label_probability
    return label_smoothing * (1 - guessed_wrong) + (1 - label_smoothing) * guessed_wrong


def loss_under_label_noise(
    loss: Callable[[Tensor, Tensor], Tensor],
    chosen_scores: Tensor,
    rejected_scores: Tensor,
    *,
    label_smoothing: float | Tensor,
) -> Tensor:
    """Expected loss of each pair when its label is the wrong way round with probability s.

        (1 - s) loss(chosen, rejected) + s loss(rejected, chosen)

    A tie is its own mirror image: a loss that is symmetric in it, as those of ``ties`` are, stays as it is.

    Source: as label smoothing of preferences: Mitchell 2023, "A note on DPO with noisy preferences", eq. 3.

    Args:
        loss: Gives [P] of two sides [P].
        chosen_scores: [P] score of the preferred completion.
        rejected_scores: [P].
        label_smoothing: s in [0, 0.5]: one for all pairs, or [P] such as ``label_noise`` makes.

    Returns:
        [P] loss per pair. The caller reduces.

    Raises:
        ConfigError: One ``label_smoothing`` for all pairs is outside its range.
    """
    check_same_shape(chosen_scores, rejected_scores)
    if isinstance(label_smoothing, Tensor):
        check_same_shape(chosen_scores, label_smoothing)
    elif label_smoothing == 0:
        return loss(chosen_scores, rejected_scores)
    elif label_smoothing != 0.5:  # half: the labels carry no information
        check_smoothing(label_smoothing)
    kept, swapped = loss(chosen_scores, rejected_scores), loss(rejected_scores, chosen_scores)
    return (1 - label_smoothing) * kept + label_smoothing * swapped


def hinge_margin_loss(
    chosen_scores: Tensor,
    rejected_scores: Tensor,
    *,
    margin: float | Tensor = 1.0,
    label_smoothing: float | Tensor = 0.0,
) -> Tensor:
    """What is missing of the margin by which each chosen completion should lead.

        L(d) = max(0, margin - d),   d = chosen - rejected
        loss = (1 - s) L(d) + s L(-d)

    A pair that keeps its margin teaches nothing, and all that miss theirs pull alike. The size of the margin sets the
    scale of the scores.

    With s > 0 the minimum stays at d = margin, for any s below 1/2: unlike ``bradley_terry_loss``, where an unsure label
    asks for a smaller lead, here it pulls with a weight of 1 - 2 s, and back with s beyond the margin. At 1/2 all leads
    up to the margin are alike.

    Source: Herbrich, Graepel and Obermayer 2000, "Large margin rank boundaries for ordinal regression".

    Args:
        chosen_scores: [P] score of the preferred completion.
        rejected_scores: [P].
        margin: Above 0, in units of the score: one for all pairs, or [P].
        label_smoothing: s, as in ``bradley_terry_loss``.

    Returns:
        [P] loss per pair. The caller reduces.
    """
    if isinstance(margin, Tensor):
        check_same_shape(chosen_scores, margin)
    return loss_under_label_noise(
        lambda chosen, rejected: F.relu(margin - (chosen - rejected)),
        chosen_scores,
        rejected_scores,
        label_smoothing=label_smoothing,
    )


def rating_loss(scores: Tensor, ratings: Tensor) -> Tensor:
    """Squared error of each score against a rating, so that scores keep the raters' scale.

        (score - rating)^2

    Its minimum is the mean of the ratings that a completion would get, where the raters differ.

    Source: regression reward models: Wang et al. 2024 (HelpSteer2), arXiv:2406.08673.

    Args:
        scores: [S].
        ratings: [S] in the units that scores are to have.

    Returns:
        [S] loss per completion. The caller reduces.
    """
    check_same_shape(scores, ratings)
    return (scores - ratings).square()


def binary_loss(
    scores: Tensor, labels: Tensor, *, label_smoothing: float | Tensor = 0.0, negative_weight: float = 1.0
) -> Tensor:
    """Cross-entropy of each score, read as the log-odds of "good", against a label.

        -y log sigmoid(score) - w (1 - y) log sigmoid(-score),   y = (1 - s) label + s (1 - label)

    Without a weight and smoothing its minimum is the log-odds of the label's mean, so sigmoid(score) is a probability.
    A weight other than 1 shifts all scores by -log w.

    Sources: logistic regression; as outcome reward model of whole solutions: Uesato et al. 2022, arXiv:2211.14275.

    Args:
        scores: [S] log-odds.
        labels: [S] floats in [0, 1]: 1 good, 0 bad, between them a probability.
        label_smoothing: s, probability that a label is wrong, in [0, 0.5]: one for all, or [S].
        negative_weight: w, above 0; more than 1 where bad ones are rare and must not be missed.

    Returns:
        [S] loss per completion. The caller reduces.
    """
    check_same_shape(scores, labels)
    good = label_smoothing + (1 - 2 * label_smoothing) * labels.to(scores.dtype)
    return -good * F.logsigmoid(scores) - negative_weight * (1 - good) * F.logsigmoid(-scores)


def centering_penalty(chosen_scores: Tensor, rejected_scores: Tensor) -> Tensor:
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
