"""Plackett-Luce strengths from rankings."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import pairwise

import numpy as np

from rlhf.errors import ConfigError, DataError
from rlhf.evaluation.intervals import CONFIDENCE, Array, check_confidence
from rlhf.evaluation.ratings.fitted import Ratings, centered, newton, prior_terms, sandwich
from rlhf.evaluation.ratings.matches import Matches, check_identified, scores_by_unit


def plackett_luce_ratings(
    rankings: Sequence[Sequence[Hashable]], *, prior: float = 0.0, confidence: float = CONFIDENCE
) -> Ratings:
    """Strengths from rankings, each a choice of the best, then of the best of the others, and so on.

        P(ranking) = prod_k e^{th_k} / sum_{j >= k} e^{th_j},   mean th = 0

    Intervals are over rankings (``sandwich``): the pairs within one are dependent, so Bradley-Terry on all pairs of a
    ranking of five promises intervals that are far too narrow.

    Sources: Luce 1959, "Individual Choice Behavior"; Plackett 1975, "The analysis of permutations", Applied Statistics 24.

    Args:
        rankings: Systems from best to worst; a ranking may leave some out, and has no ties.
        prior: As in ``bradley_terry_ratings``.
        confidence: Of the intervals.

    Raises:
        DataError: A ranking has fewer than two systems or one twice, or the rankings do not say how far systems are apart.
    """
    check_confidence(confidence)
    if prior < 0:
        raise ConfigError(f"The prior is {prior}; it is 0 or more.")
    for number, ranking in enumerate(rankings):
        if len(set(ranking)) != len(ranking) or len(ranking) < 2:
            raise DataError(
                f"Ranking {number} is {list(ranking)!r}; wanted at least two systems, each once, the best first."
            )
    pairs = Matches.of((better, worse, 1.0) for ranking in rankings for better, worse in pairwise(ranking))
    if prior == 0:
        check_identified(pairs)
    stages = _Stages(rankings, pairs.names)
    k = len(pairs.names)
    gauge = 0.0 if prior > 0 else 1.0

    def objective(at: Array) -> tuple[float, Array, Array]:
        value, scores, hessian = stages.likelihood(at)
        before, pull, bend = prior_terms(at, prior)
        return (
            -value + before + gauge * at.sum() ** 2 / 2,
            -scores.sum(axis=0) + pull + gauge * at.sum(),
            hessian + np.diag(bend) + gauge,
        )

    solution = newton(objective, np.zeros(k))
    value, scores, _ = stages.likelihood(solution)
    by_ranking = scores_by_unit(scores, stages.ranking, len(rankings))
    covariance, free = sandwich(objective(solution)[2], by_ranking.T @ by_ranking, len(rankings))
    to_mean = np.eye(k) - 1 / k
    return Ratings(
        strengths=centered(pairs.names, solution),
        covariance=to_mean @ covariance @ to_mean,
        loss=-value,
        num_units=len(rankings),
        degrees_of_freedom=free,
        confidence=confidence,
    )


class _Stages:
    """Every choice in every ranking: who was left, and who was chosen. S choices among K systems."""

    def __init__(self, rankings: Sequence[Sequence[Hashable]], names: Sequence[Hashable]) -> None:
        place = {name: number for number, name in enumerate(names)}
        left, chosen, ranking = [], [], []
        for number, ranked in enumerate(rankings):
            places = [place[name] for name in ranked]
            for stage in range(len(places) - 1):
                row = np.zeros(len(names), dtype=bool)
                row[places[stage:]] = True
                left.append(row)
                chosen.append(places[stage])
                ranking.append(number)
        self.left, self.chosen, self.ranking = np.array(left), np.array(chosen), np.array(ranking)

    def likelihood(self, strengths: Array) -> tuple[float, Array, Array]:
        """Log-likelihood, scores [S, K], and the negative of its Hessian [K, K]."""
        logits = np.where(self.left, strengths, -np.inf)
        top = logits.max(axis=1, keepdims=True)
        weights = np.exp(logits - top)
        total = weights.sum(axis=1, keepdims=True)
        p = weights / total
        value = float((strengths[self.chosen] - top[:, 0] - np.log(total[:, 0])).sum())
        scores = -p
        scores[np.arange(len(p)), self.chosen] += 1
        return value, scores, np.diag(p.sum(axis=0)) - p.T @ p
