"""Online Elo, for display: a leaderboard's familiar number, not a basis for a decision."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from rlhf.errors import ConfigError
from rlhf.evaluation.ratings.matches import Match, Matches


def compute_elo_ratings(matches: Iterable[Match], initial: float = 1000.0, k: float = 32.0) -> dict[Hashable, float]:
    """Elo ratings after the matches in the order given.

        E_a = 1 / (1 + 10^((R_b - R_a) / 400)),   R_a += k (y - E_a),   R_b -= k (y - E_a)

    They depend on the order: PandaLM's 999 matches in 500 random orders give each model a standard deviation of 42 to 44 points
    at k = 32, and the order of Bradley-Terry's strengths in 26 % of them. They have no interval. To decide anything use
    ``rlhf.evaluation.ratings.bradley_terry.bradley_terry_ratings``, whose ``elo()`` is on the same scale.

    Source: Elo 1978, "The Rating of Chessplayers, Past and Present".

    Args:
        matches: (first, second, outcome), outcome 1 if the first won, 0 if the second, 0.5 for a tie.
        initial: Rating of a system before its first match.
        k: Points at stake in a match.

    Returns:
        Rating of each system, in the order in which they first appear.

    Raises:
        DataError: There is no match, or one has another outcome.
    """
    if not k > 0:
        raise ConfigError(f"k is {k}; it is above 0.")
    table = Matches.of(matches)
    ratings = [float(initial)] * len(table.names)
    for a, b, y in zip(table.first.tolist(), table.second.tolist(), table.outcome.tolist(), strict=True):
        expected = 1 / (1 + 10 ** ((ratings[b] - ratings[a]) / 400))
        ratings[a] += k * (y - expected)
        ratings[b] -= k * (y - expected)
    return dict(zip(table.names, ratings, strict=True))
