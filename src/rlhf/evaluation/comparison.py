"""Which of two systems is better, by a judge of pairs: a win rate with its interval, and a verdict in words.

Every pair is asked in both orders, its outcome is the mean of the two, samples of one prompt are averaged, and the prompt is the unit of
every interval. What the judge did not say in a form that can be read is counted, and is neither a tie nor a loss.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

import numpy as np

from rlhf.data.contracts import Text
from rlhf.data.expand import prompt_names, text_key
from rlhf.data.message_text import counted
from rlhf.errors import ConfigError, MissingExtraError
from rlhf.evaluation.intervals import CONFIDENCE, Array, Estimate, check_confidence, finite_or_none, share_interval
from rlhf.evaluation.label_correction import Correction, corrected_by
from rlhf.evaluation.position_bias import PositionBias, by_prompt, known_means, member_positions, position_bias
from rlhf.evaluation.ratings.style_control import LengthControlled, length_controlled_win_rate
from rlhf.evaluation.sample_size import more_prompts_for_win_rate
from rlhf.evaluation.sequential_comparison import sequential_rate
from rlhf.formatting import percentage
from rlhf.rewards.pairwise.both_orders import ask_both_orders, mean_of_orders, unparsed_reasons
from rlhf.rewards.pairwise.building import build_judge
from rlhf.rewards.pairwise.human_votes import HumanVotes
from rlhf.rewards.pairwise.votes import Pair, digest, judge_hash

SCHEMA = 1
MIN_PARSED = 0.95
"""Share of verdicts that must be readable before anything is decided."""
LENGTH_RESAMPLES = 200
"""A fit each, of some 10 ms."""


class Answer(StrEnum):
    """What a comparison says of the first system."""

    BETTER = "better"
    WORSE = "worse"
    NOT_YET_KNOWN = "not yet known"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What a judge says of two systems, a and b."""

    win_rate: Estimate
    """Of a over b, ties half; the prompt is the unit."""
    verdict: Answer
    """Of a: from the corrected rate where labels of people allowed one, else from the judge's."""
    more_prompts: int | None
    """About how many more prompts would tell, if the rate seen is the true one; None where the verdict is known or nothing can be said."""
    reason: str
    """Why it is not yet known, apart from too few prompts."""
    wins: int
    """Pairs that a won in the mean of both orders."""
    ties: int
    losses: int
    identical: int
    """Pairs of equal completions, among the ties; the judge is not asked about them."""
    num_prompts: int
    """That have an outcome."""
    asked: int
    """Verdicts that the judge was asked for."""
    unparsed: int
    """Of them, those that could not be read."""
    unparsed_reasons: Mapping[str, int]
    """Why, and how often."""
    silent_members: Mapping[str, int]
    """Member of a jury -> of how many verdicts it had none; those that always had one are left out."""
    missing_pairs: int
    """Pairs without an outcome, for one order or both have no verdict."""
    position: PositionBias | None
    """None for a judge to which the order can't matter."""
    member_positions: Mapping[str, PositionBias]
    """Member of a jury -> the same of its own verdicts; without members to which the order can't matter."""
    length: LengthControlled | None
    """The win rate at equal length; None where it was not asked for."""
    longer_won: Estimate
    """How often the longer completion won, where lengths differ."""
    correction: Correction | None
    """By labels of people; None where none were given."""
    judge: Mapping[str, Any]
    """Name, identity and hash."""
    prompts_hash: str
    per_prompt: Mapping[str, float | None] = field(repr=False)
    """Name of the prompt -> mean outcome of a, None where there is none."""
    cost: float = 0.0
    """Dollars of all verdicts, those that were kept from before included."""
    confidence: float = CONFIDENCE
    any_time: bool = False
    """Whether the interval of the win rate holds however often it is looked at."""

    @property
    def parse_rate(self) -> float:
        """Share of verdicts that could be read; NaN where none was asked for."""
        return 1 - self.unparsed / self.asked if self.asked else math.nan

    @property
    def decided_on(self) -> Estimate:
        """The rate that the verdict rests on."""
        return (
            self.correction.rate.estimate
            if self.correction is not None and self.correction.rate is not None
            else self.win_rate
        )

    def sentence(self, a: str = "a", b: str = "b") -> str:
        """The verdict with its numbers."""
        rate = self.decided_on
        corrected = ", corrected by labels of people" if rate is not self.win_rate else ""
        if not rate.measured:
            return f"Whether {a} is better than {b} is not yet known: {self.reason or rate.reason}."
        numbers = (
            f"it wins {percentage(rate.value)} [{percentage(rate.low)}, {percentage(rate.high)}] of "
            f"{counted(self.num_prompts, 'prompt')}{corrected}"
        )
        if self.verdict is not Answer.NOT_YET_KNOWN:
            return f"{a} is {self.verdict} than {b}: {numbers}."
        more = (
            f"; about {self.more_prompts:,} more prompts would tell if that is its true rate"
            if self.more_prompts
            else ""
        )
        why = f"; {self.reason}" if self.reason else ""
        return f"Whether {a} is better than {b} is not yet known: {numbers}{more}{why}."

    def notes(self) -> list[str]:
        """What a reader must know in addition to the verdict, a sentence each."""
        notes = []
        if self.unparsed:
            reason = max(self.unparsed_reasons, key=lambda why: self.unparsed_reasons[why])
            notes.append(
                f"{self.unparsed:,} of {self.asked:,} verdicts could not be read ({reason}); they are left out, "
                "and are neither ties nor losses."
            )
        notes += [
            f"{member}, of the jury, has no verdict in {counted(times, 'case')} of {self.asked:,}."
            for member, times in self.silent_members.items()
        ]
        if self.position is not None and self.position.is_biased:
            notes.append(
                f"The judge {self.position.preference}. Both orders are asked, so neither system gains by it, but what is left to see is "
                "less."
            )
        notes += [
            f"{member}, of the jury, {position.preference}."
            for member, position in self.member_positions.items()
            if position.is_biased
        ]
        if self.length is not None and self.length.moved_far:
            notes.append("At equal length the win rate moves so far that the fit is not to be trusted.")
        if self.correction is not None and self.correction.refusal:
            notes.append(f"Labels of people do not correct it: {self.correction.refusal}.")
        return notes

    def to_dict(self) -> dict[str, Any]:
        """For JSON; NaN becomes null."""
        return {
            "schema": SCHEMA,
            "verdict": self.verdict.value,
            "win_rate": self.win_rate.to_dict(),
            "more_prompts": self.more_prompts,
            "reason": self.reason,
            "wins": self.wins, "ties": self.ties, "losses": self.losses, "identical": self.identical,
            "num_prompts": self.num_prompts,
            "asked": self.asked, "unparsed": self.unparsed, "parse_rate": finite_or_none(self.parse_rate),
            "unparsed_reasons": dict(self.unparsed_reasons), "missing_pairs": self.missing_pairs,
            "silent_members": dict(self.silent_members),
            "position": None if self.position is None else self.position.to_dict(),
            "member_positions": {name: each.to_dict() for name, each in self.member_positions.items()},
            "length_controlled": None if self.length is None else self.length.to_dict(),
            "longer_won": self.longer_won.to_dict(),
            "correction": None if self.correction is None else self.correction.to_dict(),
            "judge": dict(self.judge),
            "prompts_hash": self.prompts_hash,
            "cost": self.cost,
            "confidence": self.confidence, "any_time": self.any_time,
            "per_prompt": {"win_rate": dict(self.per_prompt)},
        }  # fmt: skip


def compare_completions(
    prompts: Sequence[Text],
    a: Sequence[str],
    b: Sequence[str],
    judge: Any,
    *,
    confidence: float = CONFIDENCE,
    ended_a: Sequence[bool] | None = None,
    ended_b: Sequence[bool] | None = None,
    columns: Mapping[str, Sequence[Any]] | None = None,
    clusters: Sequence[Hashable] | None = None,
    labels: HumanVotes | None = None,
    any_time: bool = False,
    length_control: bool = True,
) -> Comparison:
    """Ask a judge about two systems' completions of the same prompts.

        y_i  = (outcome with a first + outcome with b first) / 2,   1 where a is better, 0 where b is, 1/2 for a tie
        rate = mean over prompts of the mean of y over the prompt's pairs

    Sources: both orders: Zheng et al. 2023, arXiv:2306.05685; the prompt as the unit: Miller 2024, arXiv:2411.00640.

    Args:
        prompts: [n] one for each pair; the same one several times where there are several samples.
        a: [n] completions of the first system.
        b: [n] of the second.
        judge: Whatever ``rlhf.rewards.pairwise.building.build_judge`` takes.
        confidence: Of all intervals.
        ended_a: [n] whether each came to its own end; by default all did.
        ended_b: [n].
        columns: What else the prompts' rows carry, [n] each.
        clusters: [n] what tells prompts apart; by default their texts.
        labels: Votes of people on some of these pairs, a random sample of the prompts, that correct the judge where they can.
        any_time: Interval and verdict hold at all numbers of prompts together, so that a comparison may be repeated with more of them,
            added at the end, until it tells (``sequential_rate``). Otherwise they are for a number of prompts that was chosen before.
        length_control: Fit the win rate at equal length, which takes seconds.

    Raises:
        ConfigError: The lists differ in length, or the judge's settings are wrong.
        RewardError: The judge does not answer.
    """
    check_confidence(confidence)
    judge = build_judge(judge)
    if not len(prompts) == len(a) == len(b):
        raise ConfigError(
            f"A comparison needs one prompt and one completion of each system; got {len(prompts)} prompts, "
            f"{len(a)} and {len(b)} completions."
        )
    pairs = _pairs(prompts, a, b, ended_a, ended_b, columns or {})
    verdicts = ask_both_orders(judge, pairs)
    keys = [text_key(prompt) for prompt in prompts] if clusters is None else list(clusters)
    names = _names(prompts, keys)
    y = np.array([mean_of_orders(each) for each in verdicts], dtype=np.float64)
    per_prompt = by_prompt(y, names)
    known = np.array([value for value in per_prompt.values() if math.isfinite(value)], dtype=np.float64)
    rate = share_interval(known, confidence=confidence) if known.size else Estimate.missing("no pair has a verdict")
    correction = None
    if labels is not None and any_time:
        raise ConfigError("labels: a corrected rate holds for one look at it; leave out any_time or labels.")
    if labels is not None:
        correction = corrected_by(labels, pairs, y, names, confidence=confidence)
    votes = [vote for each in verdicts if each is not None for vote in (each[:1] if judge.symmetric else each)]
    comparison = Comparison(
        win_rate=rate,
        verdict=Answer.NOT_YET_KNOWN,
        more_prompts=None,
        reason="",
        wins=int((y > 0.5).sum()),
        ties=int((y == 0.5).sum()),
        losses=int((y < 0.5).sum()),
        identical=sum(each is None for each in verdicts),
        num_prompts=int(known.size),
        asked=len(votes),
        unparsed=sum(vote.first is None for vote in votes),
        unparsed_reasons=unparsed_reasons(votes),
        silent_members=dict(Counter(member for vote in votes for member in vote.silent)),
        missing_pairs=int((~np.isfinite(y)).sum()),
        position=None if judge.symmetric else position_bias(verdicts, names, confidence),
        member_positions=member_positions(judge, verdicts, names, confidence),
        length=_at_equal_length(y, pairs, names, confidence) if length_control else None,
        longer_won=_longer_won(y, pairs, names, confidence),
        correction=correction,
        judge={"name": judge.name, "identity": dict(judge.identity), "hash": judge_hash(judge)},
        prompts_hash=digest(sorted(set(map(str, keys)))),
        per_prompt={name: finite_or_none(value) for name, value in per_prompt.items()},
        cost=math.fsum(vote.cost for each in verdicts if each is not None for vote in each),
        confidence=confidence,
        any_time=any_time,
    )
    return _decided(comparison, known)


def too_few_read(asked: int, unparsed: int) -> str:
    """Why nothing is decided of a judge's verdicts, with the count; empty where enough of them can be read."""
    if not asked or 1 - unparsed / asked >= MIN_PARSED:
        return ""
    return (
        f"only {percentage(1 - unparsed / asked)} of the judge's verdicts can be read ({unparsed:,} of {asked:,} can't), and it takes "
        f"{percentage(MIN_PARSED, 0)}: those that can may be a selection"
    )


def _decided(comparison: Comparison, outcomes: Array) -> Comparison:
    """With the verdict, and the price of one where there is none."""
    steps = (
        sequential_rate(outcomes, confidence=comparison.confidence) if comparison.any_time and outcomes.size else None
    )
    if steps is not None:
        comparison = replace(comparison, win_rate=steps.estimate)
    rate = comparison.decided_on
    if reason := too_few_read(comparison.asked, comparison.unparsed):
        return replace(comparison, reason=reason)
    if not rate.measured:
        return replace(comparison, reason=rate.reason)
    if steps is not None:
        if steps.above or steps.below:
            return replace(comparison, verdict=Answer.BETTER if steps.above else Answer.WORSE)
        return replace(comparison, more_prompts=steps.more)
    if rate.low > 0.5 or rate.high < 0.5:
        return replace(comparison, verdict=Answer.BETTER if rate.low > 0.5 else Answer.WORSE)
    return replace(
        comparison, more_prompts=more_prompts_for_win_rate(rate.value, outcomes, confidence=comparison.confidence)
    )


def _pairs(
    prompts: Sequence[Text],
    a: Sequence[str],
    b: Sequence[str],
    ended_a: Sequence[bool] | None,
    ended_b: Sequence[bool] | None,
    columns: Mapping[str, Sequence[Any]],
) -> list[Pair]:
    n = len(prompts)
    ends = [list(ended) if ended is not None else [True] * n for ended in (ended_a, ended_b)]
    for name, values in {"ended_a": ends[0], "ended_b": ends[1], **columns}.items():
        if len(values) != n:
            raise ConfigError(f"{name} has {len(values)} values for {n} pairs; give one for each.")
    return [
        Pair(
            prompt=prompt, first=a[i], second=b[i], ended=(bool(ends[0][i]), bool(ends[1][i])),
            columns={name: values[i] for name, values in columns.items()},
        )
        for i, prompt in enumerate(prompts)
    ]  # fmt: skip


def _names(prompts: Sequence[Text], keys: Sequence[Hashable]) -> list[str]:
    """[n] a name of each pair's prompt: the cluster's where it is a short text, else made of the prompt's text."""
    firsts: dict[Hashable, Text] = {}
    for key, prompt in zip(keys, prompts, strict=True):
        firsts.setdefault(key, prompt)
    names = dict(zip(firsts, prompt_names(firsts.values()), strict=True))
    return [names[key] for key in keys]


def _longer_won(y: Array, pairs: Sequence[Pair], names: Sequence[str], confidence: float) -> Estimate:
    differences = np.array([len(pair.first) - len(pair.second) for pair in pairs])
    won = np.where(differences > 0, y, np.where(differences < 0, 1 - y, np.nan))
    known = known_means(won, names)
    return share_interval(known, confidence=confidence) if known.size else Estimate.missing("no two lengths differ")


def _at_equal_length(y: Array, pairs: Sequence[Pair], names: Sequence[str], confidence: float) -> LengthControlled:
    """AlpacaEval's, on prompts; characters. Missing, with what to install, where the package that fits it is not there."""
    own = [name for name, value in zip(names, y, strict=True) if math.isfinite(value)]
    kept = [pair for pair, value in zip(pairs, y, strict=True) if math.isfinite(value)]
    mine, theirs = (
        np.array([len(text) for text in texts], dtype=np.float64)
        for texts in ([pair.first for pair in kept], [pair.second for pair in kept])
    )
    outcomes = known_means(y[np.isfinite(y)], own)
    try:
        return length_controlled_win_rate(
            outcomes, known_means(mine, own), known_means(theirs, own),
            seed=0, confidence=confidence, num_resamples=LENGTH_RESAMPLES,
        )  # fmt: skip
    except MissingExtraError as err:  # verdicts were paid for: what else they say is not lost
        raw = share_interval(outcomes, confidence=confidence)
        return LengthControlled(
            rate=Estimate.missing(str(err).rstrip(".")),
            raw=raw,
            length_effect=math.nan,
            longer_frac=math.nan,
            moved_far=False,
        )
