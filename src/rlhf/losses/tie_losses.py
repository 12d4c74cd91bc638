"""Comparisons with more than two outcomes: ties, and graded preferences. P is the number of pairs.

``graded_loss`` and ``rao_kupper_loss`` share one model: an annotator perceives the lead d = chosen - rejected
with logistic noise, and reports the interval that contains it. Davidson's model differs: in it a tie
is weighted by the geometric mean of the two strengths. With margin 0 or weight 0 all of them are Bradley and Terry's.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from rlhf.errors import ConfigError
from rlhf.losses.shapes import check_same_shape


def graded_loss(chosen_scores: Tensor, rejected_scores: Tensor, grades: Tensor, *, margins: Tensor) -> Tensor:
    """Negative log-likelihood of judgments on an ordered scale, whose margins can be learned with the scores.

        P(grade k) = sigmoid(d - m[k]) - sigmoid(d - m[k + 1]),   d = chosen - rejected
        P(tie)     = sigmoid(d + m[1]) - sigmoid(d - m[1]),       grade 0

    with m[K + 1] infinite. Margin m[k] is the lead at which half of all judgments are of grade k or above: what "much
    better" is worth, found in the data and not guessed. It can be learned because every judgment says both what was
    passed and what was not; ``bradley_terry_loss`` knows only the first, so a margin learned by it would vanish.

    One margin and no ties is Bradley and Terry's model (margin 0); one margin and ties is Rao and Kupper's.

    Sources: cumulative logits: McCullagh 1980, "Regression models for ordinal data"; for paired comparisons: Agresti
    1992, "Analysis of ordinal paired comparison data".

    Args:
        chosen_scores: [P] score of the preferred completion; of either one of a tied pair.
        rejected_scores: [P].
        grades: [P] int64 in [0, K]: 0 for a tie, 1 for the weakest preference, K for the clearest.
        margins: [K] increasing from 0 or above, in units of the score: fixed, or ``ordered_margins`` of a parameter.
            The first is 0 if there is no grade for ties, and must be above 0 if there is.

    Returns:
        [P] loss per pair; inf for a tie where the first margin is 0. The caller reduces.

    Raises:
        ConfigError: Margins are negative or not in increasing order.
    """
    check_same_shape(chosen_scores, rejected_scores, grades)
    given = margins.detach()
    if len(given) == 0 or bool((given[:1] < 0).any() | (given.diff() <= 0).any()):
        raise ConfigError(
            f"Margins of a scale rise from 0 or above, each larger than the one before; got {given.tolist()}."
        )
    edges = torch.cat([-margins[:1], margins, margins.new_full((1,), math.inf)]).to(chosen_scores.dtype)
    lead, low, high = chosen_scores - rejected_scores, edges[grades], edges[grades + 1]
    # log(sigmoid(a) - sigmoid(b)) without the difference of two numbers near 1
    passed, stopped = F.logsigmoid(lead - low), F.logsigmoid(high - lead)
    return -(passed + stopped + torch.log(-torch.expm1(low - high)))


def ordered_margins(raw: Tensor) -> Tensor:
    """Free numbers as margins that are above 0 and rise: what an optimizer can move without breaking their order.

        m[k] = softplus(raw[1]) + ... + softplus(raw[k])

    Args:
        raw: [K], any numbers; a parameter.

    Returns:
        [K] for ``graded_loss``.
    """
    return F.softplus(raw).cumsum(0)


def rao_kupper_loss(
    chosen_scores: Tensor, rejected_scores: Tensor, tied: Tensor, *, threshold: float | Tensor
) -> Tensor:
    """Negative log-likelihood of wins and ties where leads below a threshold are not perceived.

        P(win) = sigmoid(d - t),   P(tie) = sigmoid(d + t) - sigmoid(d - t),   d = chosen - rejected

    In the paper's terms t = log(theta). Dropping ties instead biases the scores: that two completions are alike is
    knowledge about both.

    Sources: Rao and Kupper 1967, "Ties in paired-comparison experiments"; as a loss on language-model scores: Liu et
    al. 2024, "Reward learning from preference with ties", arXiv:2410.05328.

    Args:
        chosen_scores: [P] score of the preferred completion; of either one of a tied pair.
        rejected_scores: [P].
        tied: [P] bool.
        threshold: t, above 0 in units of the score; or a parameter's positive function, [] or [1], to be learned. 0 is
            Bradley and Terry's model and leaves ties no probability.

    Returns:
        [P] loss per pair; inf for a tie at threshold 0. The caller reduces.
    """
    margins = torch.as_tensor(threshold, dtype=chosen_scores.dtype, device=chosen_scores.device).reshape(1)
    return graded_loss(chosen_scores, rejected_scores, (~tied).long(), margins=margins)


def rao_kupper_logprobs(first_scores: Tensor, second_scores: Tensor, *, threshold: float | Tensor) -> Tensor:
    """Log-probabilities of the three outcomes that ``rao_kupper_loss`` is the likelihood of.

    Args:
        first_scores: [P].
        second_scores: [P].
        threshold: As in the loss.

    Returns:
        [P, 3]: the first is better, tie, the second is better.
    """
    tied = torch.zeros_like(first_scores, dtype=torch.bool)
    first = rao_kupper_loss(first_scores, second_scores, tied, threshold=threshold)
    tie = rao_kupper_loss(first_scores, second_scores, ~tied, threshold=threshold)
    second = rao_kupper_loss(second_scores, first_scores, tied, threshold=threshold)
    return -torch.stack([first, tie, second], dim=1)


def davidson_loss(
    chosen_scores: Tensor, rejected_scores: Tensor, tied: Tensor, *, tie_weight: float | Tensor
) -> Tensor:
    """Negative log-likelihood of wins and ties where a tie weighs the geometric mean of the strengths.

        P(win) : P(tie) : P(loss) = exp(d / 2) : nu : exp(-d / 2),   d = chosen - rejected

    Equal completions tie with probability nu / (2 + nu). Unlike in Rao and Kupper's model, the odds of win against
    loss are exp(d) whatever nu is, and at the maximum likelihood a tie counts as half a win and half a loss.

    Source: Davidson 1970, "On extending the Bradley-Terry model to accommodate ties in paired comparison experiments".

    Args:
        chosen_scores: [P] score of the preferred completion; of either one of a tied pair.
        rejected_scores: [P].
        tied: [P] bool.
        tie_weight: nu, above 0; or a parameter's positive function, [] or [1], to be learned. 0 is Bradley and Terry's
            model and leaves ties no probability.

    Returns:
        [P] loss per pair; inf for a tie at weight 0. The caller reduces.
    """
    logprobs = davidson_logprobs(chosen_scores, rejected_scores, tie_weight=tie_weight)
    check_same_shape(chosen_scores, tied)
    return -torch.where(tied, logprobs[:, 1], logprobs[:, 0])


def davidson_logprobs(first_scores: Tensor, second_scores: Tensor, *, tie_weight: float | Tensor) -> Tensor:
    """Log-probabilities of the three outcomes that ``davidson_loss`` is the likelihood of.

    Args:
        first_scores: [P].
        second_scores: [P].
        tie_weight: As in the loss.

    Returns:
        [P, 3]: the first is better, tie, the second is better.

    Raises:
        ConfigError: The weight is below 0.
    """
    check_same_shape(first_scores, second_scores)
    weight = torch.as_tensor(tie_weight, dtype=first_scores.dtype, device=first_scores.device).reshape(1)
    if bool((weight.detach() < 0).any()):
        raise ConfigError(f"The weight of a tie is {weight.item():g}; it must be 0 or above.")
    half = (first_scores - second_scores) / 2
    return torch.stack([half, weight.log().expand_as(half), -half], dim=1).log_softmax(1)
