"""Each pair asked in both orders, so that a judge that prefers a place helps neither side."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from rlhf.rewards.pairwise.votes import Pair, PairwiseJudge, Vote

REASONS_SHOWN = 5
BothOrders = tuple[Vote, Vote]
"""Verdicts where the first completion stands first, and where it stands second; both as outcomes of the first."""


def ask_both_orders(judge: PairwiseJudge, pairs: Sequence[Pair]) -> list[BothOrders | None]:
    """Verdicts in both orders, both as outcomes of the first completion; None for equal completions, about which nobody is asked.

    Args:
        judge: One that can't care about the order is asked once.
        pairs: [n].

    Raises:
        RewardError: The judge does not answer.
    """
    open_pairs = [pair for pair in pairs if _differ(pair)]
    if judge.symmetric:
        forth = judge.votes(open_pairs) if open_pairs else []
        both = iter([(vote, replace(vote, cost=0.0)) for vote in forth])
    else:
        asked = [*open_pairs, *(pair.swapped() for pair in open_pairs)]
        votes = judge.votes(asked) if asked else []
        half = len(open_pairs)
        both = iter([(vote, back.swapped()) for vote, back in zip(votes[:half], votes[half:], strict=True)])
    return [next(both) if _differ(pair) else None for pair in pairs]


def mean_of_orders(verdicts: BothOrders | None) -> float:
    """Outcome of the first completion; 1/2 for equal ones, NaN where either order has no verdict."""
    if verdicts is None:
        return 0.5
    forth, back = verdicts
    return math.nan if forth.first is None or back.first is None else (forth.first + back.first) / 2


def unparsed_reasons(votes: Sequence[Vote]) -> dict[str, int]:
    """Why some have no verdict, the most frequent reasons first."""
    return dict(Counter(vote.reason for vote in votes if vote.first is None).most_common(REASONS_SHOWN))


def _differ(pair: Pair) -> bool:
    return (pair.first, pair.ended[0]) != (pair.second, pair.ended[1])
