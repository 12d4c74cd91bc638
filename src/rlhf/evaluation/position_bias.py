"""Whether a judge of pairs prefers a place to a completion."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rlhf.evaluation.intervals import Array, Estimate, finite_or_none, share_interval
from rlhf.formatting import percentage
from rlhf.rewards.pairwise.jury import Jury
from rlhf.rewards.pairwise.votes import PairwiseJudge, Vote


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionBias:
    """Whether the judge prefers a place to a completion; of pairs that were asked in both orders and differ."""

    first_rate: Estimate
    """How often the first place won, a tie counting half; 1/2 for a judge that does not care, whatever the systems are like."""
    consistent: Estimate
    """Share of pairs on which both orders gave the same verdict."""
    first_among_inconsistent: float
    """Of those that did not: how often the first place won. 1/2 for mere noise."""

    @property
    def is_biased(self) -> bool:
        """Whether the interval of ``first_rate`` leaves out 1/2."""
        return self.first_rate.measured and not self.first_rate.low <= 0.5 <= self.first_rate.high

    @property
    def preference(self) -> str:
        """The bias in words, without who has it."""
        rate = self.first_rate
        where = "first" if rate.value > 0.5 else "second"
        return (
            f"prefers the {where} place: the first one wins {percentage(rate.value)} [{percentage(rate.low)}, {percentage(rate.high)}] "
            f"whichever completion it is, and {percentage(self.consistent.value)} of pairs get the same verdict in both orders"
        )

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "first_rate": self.first_rate.to_dict(), "consistent": self.consistent.to_dict(),
            "first_among_inconsistent": finite_or_none(self.first_among_inconsistent), "is_biased": self.is_biased,
        }  # fmt: skip


def position_bias(
    verdicts: Sequence[tuple[Vote, Vote] | None], names: Sequence[str], confidence: float
) -> PositionBias:
    """From verdicts in both orders.

    Args:
        verdicts: [n] of the first system where it stands first, and where it stands second; None where there was nothing to ask.
        names: [n] of the pairs' prompts.
        confidence: Of the intervals.
    """
    first, same = np.full(len(verdicts), np.nan), np.full(len(verdicts), np.nan)
    for place, both in enumerate(verdicts):
        if both is None or both[0].first is None or both[1].first is None:
            continue
        forth, back = both[0].first, both[1].first
        first[place] = (forth + (1 - back)) / 2
        same[place] = float(forth == back)
    inconsistent = first[same == 0]
    return PositionBias(
        first_rate=_share(known_means(first, names), confidence),
        consistent=_share(known_means(same, names), confidence),
        first_among_inconsistent=float(inconsistent.mean()) if inconsistent.size else math.nan,
    )


def member_positions(
    judge: PairwiseJudge, verdicts: Sequence[tuple[Vote, Vote] | None], names: Sequence[str], confidence: float
) -> dict[str, PositionBias]:
    """Of each member of a jury that sees the order: two that prefer opposite places look fair together. Empty for other judges."""
    if not isinstance(judge, Jury):
        return {}
    by_member = {}
    for place, (name, member) in enumerate(zip(judge.member_names, judge.members, strict=True)):
        if not member.symmetric:
            own = [
                None if both is None else (_of_member(both[0], place), _of_member(both[1], place)) for both in verdicts
            ]
            by_member[name] = position_bias(own, names, confidence)
    return by_member


def _of_member(vote: Vote, place: int) -> Vote:
    return replace(vote, first=vote.members[place])


def _share(values: Array, confidence: float) -> Estimate:
    return (
        share_interval(values, confidence=confidence) if values.size else Estimate.missing("no pair has both verdicts")
    )


def by_prompt(values: Array, names: Sequence[str]) -> dict[str, float]:
    """Mean over each prompt's pairs that have a value; NaN where none has."""
    outcomes_of: dict[str, list[float]] = {}
    for name, value in zip(names, values, strict=True):
        own = outcomes_of.setdefault(name, [])
        if math.isfinite(value):
            own.append(float(value))
    return {name: math.fsum(own) / len(own) if own else math.nan for name, own in outcomes_of.items()}


def known_means(values: Array, names: Sequence[str]) -> Array:
    """Those of ``by_prompt`` that there are."""
    means = np.array(list(by_prompt(values, names).values()), dtype=np.float64)
    return means[np.isfinite(means)]
