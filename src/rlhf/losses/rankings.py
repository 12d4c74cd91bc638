"""Losses on orders of several completions of one prompt. S is the number of completions, R that of rankings.

A ranking may have any number of completions; those of all rankings are flat, in any order, each with its rank and the
ranking that it belongs to. Only the order of ranks within a ranking matters: smaller is better, and ratings become
ranks by a minus sign.
"""

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import Tensor

from rlhf.losses.segments import segment_sum
from rlhf.losses.shapes import check_same_shape


def plackett_luce_loss(scores: Tensor, ranks: Tensor, ranking: Tensor, num_rankings: int) -> Tensor:
    """Negative log-likelihood of each ranking, read as a row of choices: the best of all, the best of the rest, ...

        P(ranking) = product over its completions i of  exp(score[i]) / (exp(score[i]) + sum of exp(score[j]))
                     where j runs over the completions ranked below i

    Partial rankings use equal ranks, between which no order is claimed:

    * The best k of n in order, the others not: give all others one rank below. The likelihood is exact, that of the
      first k choices. k = 1 is the softmax cross-entropy of the best.
    * Ties higher up: each is compared with those ranked below it and not with the other. As every factor is the exact
      probability that one completion beats a set of others (Luce's choice axiom), this is a composite likelihood
      (Lindsay 1988): scores are still estimated consistently, without the factorial of the tied orders.

    Two completions are Bradley and Terry's pair. A ranking of n adds up to n - 1 choices; divide by their number
    (``num_choices``) where a long ranking should weigh no more than a short one.

    Sources: Luce 1959; Plackett 1975, "The analysis of permutations"; as a loss of learning to rank: Xia et al. 2008
    (ListMLE); on preferences over completions: Rafailov et al. 2023, appendix A.3, arXiv:2305.18290.

    Args:
        scores: [S].
        ranks: [S] 1 for the best; any numbers, of which only the order within a ranking is used.
        ranking: [S] int64 in [0, num_rankings), in any order.
        num_rankings: R.

    Returns:
        [R] loss per ranking, the sum over its choices; 0 where all ranks are equal. The caller reduces. Memory is S * S
        numbers, for the completions of one micro-batch.
    """
    check_same_shape(scores, ranks, ranking)
    below = _below(ranks, ranking)
    lead_of_other = (scores - scores[:, None]).masked_fill(~below, -math.inf)
    choosing = below.any(1)  # a row of nothing but -inf has no gradient
    choice = -F.logsigmoid(-lead_of_other[choosing].logsumexp(1))
    return segment_sum(choice, ranking[choosing], num_rankings)


def num_choices(ranks: Tensor, ranking: Tensor, num_rankings: int) -> Tensor:
    """How many choices each ranking is made of: completions that have any other ranked below them.

    Args:
        ranks: [S].
        ranking: [S] int64 in [0, num_rankings), in any order.
        num_rankings: R.

    Returns:
        int64 [R]; 0 where all ranks are equal.
    """
    check_same_shape(ranks, ranking)
    return segment_sum(_below(ranks, ranking).any(1).long(), ranking, num_rankings)


def ranked_pairs(ranks: Tensor, ranking: Tensor) -> tuple[Tensor, Tensor]:
    """Every two completions of one ranking of which one is better, as positions to take scores at.

        better, worse = ranked_pairs(ranks, ranking)
        bradley_terry_loss(scores[better], scores[worse])

    Each completion is scored once, however many pairs it is in. Pairs of one ranking are not independent: weigh them
    by 1 / (pairs of the ranking), and keep them in one optimizer step, or the model overfits them.

    Source: Ouyang et al. 2022, section 3.5, arXiv:2203.02155.

    Args:
        ranks: [S] smaller is better.
        ranking: [S] int64, in any order.

    Returns:
        int64 [P] positions of the better and int64 [P] of the worse completions, in order of the better one's position.
    """
    check_same_shape(ranks, ranking)
    better, worse = _below(ranks, ranking).nonzero(as_tuple=True)
    return better, worse


def _below(ranks: Tensor, ranking: Tensor) -> Tensor:
    """bool [S, S]: the column's completion ranks below the row's in the same ranking."""
    return (ranking[:, None] == ranking) & (ranks[:, None] < ranks)
