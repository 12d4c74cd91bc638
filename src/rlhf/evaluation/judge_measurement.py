"""How a judge of pairs does on pairs that people have judged, with people beside it on the same pairs.

A person's vote v and any other verdict u on a pair are outcomes of its first completion: 1, 0, or 1/2 for a tie. Where v prefers one,

    credit(u, v) = u where v = 1,  1 - u where v = 0

is 1 where u sides with v, 0 where it sides against, 1/2 for a tie. *Agreement* of the judge is the mean credit of its verdict, the place
of each completion drawn at random, against one person's vote; agreement of people is the same with another person in the judge's place.
Both are 1/2 for a judge that guesses. The prompt is the unit of every interval.

If judge and people err independently, right with probability p_j and p_h, then 2 agreement - 1 is (2 p_j - 1)(2 p_h - 1) of the judge and
(2 p_h - 1)^2 of people, so that

    signal kept = (agreement of the judge - 1/2) / (agreement of people - 1/2) = (2 p_j - 1) / (2 p_h - 1)

says how much of a person's signal a judge has: the noise of the labels cancels (Bross 1954, "Misclassification in 2 x 2 tables",
Biometrics 10). A comparison by the judge wants 1 / signal^2 times as many prompts as one by single votes of people.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import permutations
from statistics import fmean
from typing import Any

import numpy as np

from rlhf.data.expand import prompt_names
from rlhf.evaluation.intervals import (
    CONFIDENCE,
    Array,
    Estimate,
    check_confidence,
    mean_interval,
    paired_difference,
    share_interval,
)
from rlhf.evaluation.labeled_pairs import LabeledPair, own_side
from rlhf.evaluation.position_bias import PositionBias, by_prompt, member_positions, position_bias
from rlhf.rewards.pairwise.both_orders import BothOrders, ask_both_orders, mean_of_orders, unparsed_reasons
from rlhf.rewards.pairwise.votes import PairwiseJudge, Vote

HALF_SIGNAL = 0.5
"""Part of a person's signal that ``beyond_people`` compares with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeMeasurement:
    """What was found. Estimates are shares of 0 to 1 over prompts unless said."""

    num_pairs: int
    num_prompts: int
    """With a verdict and a vote that prefers one: the labels that agreement rests on."""
    num_votes: int
    num_people: int
    num_shared: int
    """Prompts with votes of two people on one pair."""
    agreement: Estimate
    """Of the judge with a person; see the top of this file."""
    agreement_where_shared: Estimate
    """The same on the pairs that two people or more judged."""
    people: Estimate
    """Of one person with another, on those pairs."""
    beyond_people: Estimate
    """(agreement - 1/2) - (people - 1/2) / 2 on those pairs: above 0 where the judge keeps more than half of a person's signal."""
    same_verdict: Estimate
    """Judge and person say the same, a tie being a verdict of its own."""
    people_same_verdict: Estimate
    position: PositionBias | None
    """None of a judge that can't see the order."""
    longer: Estimate
    """How often the longer completion wins by the judge, a tie half."""
    people_longer: Estimate
    """By people, on the same pairs."""
    longer_beyond_people: Estimate
    """The difference of the two, from -1 to 1."""
    own: Estimate
    """How often the judge prefers what its own model wrote to what another one did."""
    people_own: Estimate
    own_beyond_people: Estimate
    ties: Estimate
    """Share of the judge's verdicts that are ties."""
    people_ties: Estimate
    unparsed: Estimate
    """Share of the judge's verdicts that could not be read."""
    asked: int
    """Verdicts asked for, both orders counted."""
    num_unparsed: int
    unparsed_reasons: Mapping[str, int]
    member_positions: Mapping[str, PositionBias]
    """Of each member of a jury that sees the order."""
    cost: float
    """Dollars, what a cache had recorded included."""
    agreement_variance: float
    """Of the agreement of single prompts; NaN where it is not known."""
    shared_variance: float
    """Of ``beyond_people`` of single prompts."""

    def to_dict(self) -> dict[str, Any]:
        """For JSON; NaN becomes null."""
        document: dict[str, Any] = {}
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, Estimate | PositionBias):
                value = value.to_dict()
            elif each.name == "member_positions":
                value = {name: position.to_dict() for name, position in value.items()}
            elif isinstance(value, Mapping):
                value = dict(value)
            elif isinstance(value, float) and not math.isfinite(value):
                value = None
            document[each.name] = value
        return document


def measure_judge(
    judge: PairwiseJudge,
    pairs: Sequence[LabeledPair],
    *,
    own_models: Collection[str] = (),
    confidence: float = CONFIDENCE,
) -> JudgeMeasurement:
    """Ask a judge about pairs in both orders, and compare with what people said.

    Args:
        judge: Of pairs.
        pairs: At least one; of a prompt there may be several.
        own_models: Names of the judge's own model in the pairs' ``models``.
        confidence: Of all intervals.

    Raises:
        RewardError: The judge does not answer.
    """
    check_confidence(confidence)
    verdicts = ask_both_orders(judge, [one.pair for one in pairs])
    names = prompt_names_of(pairs)
    y = np.array([mean_of_orders(each) for each in verdicts], dtype=np.float64)
    said = [vote for each in verdicts if each is not None for vote in (each[:1] if judge.symmetric else each)]
    units = _Units(names, confidence)
    people = np.array([fmean(one.votes.values()) for one in pairs])
    agreement = _each(pairs, y, lambda one, value: _credit_of(value, list(one.votes.values())))
    shared = np.array([_between(list(one.votes.values()), _credit) for one in pairs])
    where_shared = np.where(np.isfinite(shared), agreement, np.nan)
    beyond = (where_shared - 0.5) - HALF_SIGNAL * (shared - 0.5)
    longer = np.array([np.sign(len(one.pair.first) - len(one.pair.second)) for one in pairs], dtype=np.float64)
    own = np.array([_sign_of_own(one, own_models) for one in pairs])
    no_own = "no pair is of the judge's own model and another one, as far as the labels tell"
    return JudgeMeasurement(
        num_pairs=len(pairs),
        num_prompts=units.known(agreement).size,
        num_votes=sum(len(one.votes) for one in pairs),
        num_people=len({person for one in pairs for person in one.votes}),
        num_shared=units.known(shared).size,
        agreement=units.share(agreement, "no pair has both a verdict that can be read and a vote that prefers one"),
        agreement_where_shared=units.share(where_shared, "no pair was judged by two people"),
        people=units.share(shared, "no pair was judged by two people"),
        beyond_people=units.mean(beyond, "no pair was judged by two people"),
        same_verdict=units.share(
            _each(pairs, verdicts, lambda one, both: _same(both, list(one.votes.values()))), "no verdict can be read"
        ),
        people_same_verdict=units.share(
            np.array([_between(list(one.votes.values()), lambda u, v: float(u == v)) for one in pairs]),
            "no pair was judged by two people",
        ),
        position=None if judge.symmetric else position_bias(verdicts, names, confidence),
        **_preference("longer", y, people, longer, units, "no two completions differ in length"),
        **_preference("own", y, people, own, units, no_own),
        ties=units.share(_share_of(verdicts, lambda vote: vote.first == 0.5, of_known=True), "no verdict can be read"),
        people_ties=units.share(np.array([fmean(v == 0.5 for v in one.votes.values()) for one in pairs]), ""),
        unparsed=units.share(_share_of(verdicts, lambda vote: vote.first is None, of_known=False), "nothing was asked"),
        asked=len(said),
        num_unparsed=sum(vote.first is None for vote in said),
        unparsed_reasons=unparsed_reasons(said),
        member_positions=member_positions(judge, verdicts, names, confidence),
        cost=math.fsum(vote.cost for each in verdicts if each is not None for vote in each),
        agreement_variance=_variance(units.known(agreement)),
        shared_variance=_variance(units.known(beyond)),
    )


def prompt_names_of(pairs: Sequence[LabeledPair]) -> list[str]:
    """[n] a name of each pair's prompt, the same for pairs of one prompt."""
    texts: dict[Any, Any] = {}
    keys = [one.pair.key[0] for one in pairs]
    for key, one in zip(keys, pairs, strict=True):
        texts.setdefault(key, one.pair.prompt)
    names = dict(zip(texts, prompt_names(texts.values()), strict=True))
    return [names[key] for key in keys]


@dataclass(frozen=True, slots=True)
class _Units:
    """Values of pairs become means of prompts, and these intervals."""

    names: Sequence[str]
    confidence: float

    def known(self, values: Array) -> Array:
        means = np.array(list(by_prompt(values, self.names).values()), dtype=np.float64)
        return means[np.isfinite(means)]

    def share(self, values: Array, why_none: str) -> Estimate:
        known = self.known(values)
        return share_interval(known, confidence=self.confidence) if known.size else Estimate.missing(why_none)

    def mean(self, values: Array, why_none: str) -> Estimate:
        known = self.known(values)
        return mean_interval(known, confidence=self.confidence) if known.size else Estimate.missing(why_none)

    def difference(self, before: Array, after: Array, why_none: str) -> Estimate:
        both = np.isfinite(before) & np.isfinite(after)
        first, second = (self.known(np.where(both, values, np.nan)) for values in (before, after))
        if not first.size:
            return Estimate.missing(why_none)
        return paired_difference(first, second, shares=True, confidence=self.confidence)


def _credit(u: float, v: float) -> float:
    """Of a verdict against a vote; NaN where the vote is a tie."""
    return math.nan if v == 0.5 else u if v > 0.5 else 1 - u


def _credit_of(verdict: float, votes: Sequence[float]) -> float:
    """Mean over the votes that prefer one; NaN where there is no verdict, or no such vote."""
    known = [_credit(verdict, vote) for vote in votes if vote != 0.5]
    return fmean(known) if known else math.nan


def _between(votes: Sequence[float], alike: Callable[[float, float], float]) -> float:
    """Mean over ordered pairs of people; NaN where no two of them can be compared."""
    known = [value for u, v in permutations(votes, 2) if math.isfinite(value := alike(u, v))]
    return fmean(known) if known else math.nan


def _same(both: BothOrders | None, votes: Sequence[float]) -> float:
    """How often verdict and vote are of one class: first, second, tie."""
    if both is None or both[0].first is None or both[1].first is None:
        return math.nan
    return fmean(float(np.sign(vote.first - 0.5) == np.sign(v - 0.5)) for vote in both for v in votes)  # type: ignore[operator]


def _each(
    pairs: Sequence[LabeledPair], values: Sequence[Any] | Array, of: Callable[[LabeledPair, Any], float]
) -> Array:
    return np.array([of(one, value) for one, value in zip(pairs, values, strict=True)], dtype=np.float64)


def _preference(name: str, y: Array, people: Array, sign: Array, units: _Units, why_none: str) -> dict[str, Estimate]:
    """How often judge and people prefer the completion that has something (sign 1: the first), on the same pairs."""
    ours, theirs = (np.where(sign > 0, each, np.where(sign < 0, 1 - each, np.nan)) for each in (y, people))
    theirs = np.where(np.isfinite(ours), theirs, np.nan)
    return {
        name: units.share(ours, why_none),
        f"people_{name}": units.share(theirs, why_none),
        f"{name}_beyond_people": units.difference(theirs, ours, why_none),
    }


def _sign_of_own(one: LabeledPair, own: Collection[str]) -> float:
    side = own_side(one.models, own)
    return math.nan if side is None else 1.0 - 2 * side


def _share_of(verdicts: Sequence[BothOrders | None], is_so: Callable[[Vote], bool], *, of_known: bool) -> Array:
    """[n] share of a pair's verdicts."""
    shares = []
    for both in verdicts:
        votes = [vote for vote in both or () if vote.first is not None or not of_known]
        shares.append(fmean(map(is_so, votes)) if votes else math.nan)
    return np.array(shares, dtype=np.float64)


def _variance(values: Array) -> float:
    return float(values.var(ddof=1)) if values.size > 1 else math.nan
