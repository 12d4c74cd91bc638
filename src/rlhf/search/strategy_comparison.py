"""Strategies on the same problems: what each solves, what it costs, and which to take.

How sure a share or a difference is, is computed by functions that the caller hands over (``evaluation.intervals`` has them).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from rlhf.errors import DataError
from rlhf.search.contract import Cost, SearchResult, total_cost
from rlhf.search.strategies.votes_on_answers import tally, vote_weights
from rlhf.seeds import derive_seed

SUBSETS = 100
"""Random sets of k of a problem's samples that stand for all of them where votes are counted."""


class Interval(Protocol):
    """A number with its ends; ``rlhf.evaluation.intervals.Estimate`` is one."""

    @property
    def value(self) -> float: ...
    @property
    def low(self) -> float: ...
    @property
    def high(self) -> float: ...
    def to_dict(self) -> dict[str, Any]: ...


ShareInterval = Callable[[Sequence[float]], Interval]
Difference = Callable[[Sequence[float], Sequence[float]], Interval]
"""Of ``(before, after)``, paired by problem."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyOutcome:
    """One strategy on all problems."""

    title: str
    kind: str
    """Of the strategy."""
    solved: Sequence[float]
    """[P] 1 for a solved problem, else 0; one without an answer is not solved."""
    cost: Cost
    """Of all problems."""
    accuracy: Interval
    stopped: int = 0
    """Problems whose search a limit ended: of the budget, or a model's length."""
    unanswered: int = 0
    """Of these, problems without an answer."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Further numbers of the judge, averaged."""
    curve: Sequence[Mapping[str, float]] = ()
    """Accuracy with fewer samples, from the same pool."""

    @property
    def total_tokens(self) -> float:
        """For each problem, of policy and scorer."""
        return self.cost.total_tokens / len(self.solved)

    def to_dict(self) -> dict[str, Any]:
        """For JSON; costs are for each problem."""
        count = len(self.solved)
        return {
            "title": self.title,
            "kind": self.kind,
            "accuracy": self.accuracy.to_dict(),
            "cost": {name: value / count for name, value in self.cost.to_dict().items()},
            "stopped": self.stopped,
            "unanswered": self.unanswered,
            "metrics": dict(self.metrics),
            "curve": list(self.curve),
            "solved": [int(value) if value in (0, 1) else value for value in self.solved],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Which strategy to take."""

    best: str
    """The most accurate."""
    take: str
    """The cheapest, in total tokens, that surely solves hardly less."""
    undecided: str | None
    """The cheapest below that of which the data does not tell whether it does."""
    outdone: Mapping[str, str]
    """Strategy -> another that costs no more in total and is surely better."""
    sentences: Sequence[str]


def outcome_of(
    title: str,
    kind: str,
    results: Sequence[SearchResult],
    solved: Sequence[float],
    *,
    share: ShareInterval,
    metrics: Mapping[str, float] | None = None,
    curve: Sequence[Mapping[str, float]] = (),
) -> StrategyOutcome:
    """Put together what one strategy did.

    Raises:
        DataError: There is no result, or not one verdict for each.
    """
    if not results or len(results) != len(solved):
        raise DataError(
            f"The strategy {title!r} has {len(results)} results and {len(solved)} verdicts; wanted one each."
        )
    return StrategyOutcome(
        title=title,
        kind=kind,
        solved=list(solved),
        cost=total_cost(results),
        accuracy=share(solved),
        stopped=sum(result.stopped_by is not None for result in results),
        unanswered=sum(result.completion is None for result in results),
        metrics=dict(metrics or {}),
        curve=curve,
    )


def advise(outcomes: Sequence[StrategyOutcome], difference: Difference, *, tolerance: float) -> Advice:
    """Say which strategy to take, by the total of tokens; what intervals leave open is said to be open.

    Args:
        outcomes: At least one, all on the same problems.
        difference: The paired difference of two strategies, with its interval.
        tolerance: Share of solved problems that fewer tokens are worth.
    """
    best = max(outcomes, key=lambda each: (each.accuracy.value, -each.total_tokens))
    lacks = {each.title: difference(each.solved, best.solved) for each in outcomes if each is not best}
    by_cost = sorted(outcomes, key=lambda each: each.total_tokens)
    take = next(each for each in by_cost if each is best or lacks[each.title].high <= tolerance)
    cheaper = [each for each in by_cost if each.total_tokens < take.total_tokens]
    undecided = next((each for each in cheaper if lacks[each.title].low <= tolerance), None)
    outdone: dict[str, str] = {}
    for each in outcomes:
        rivals = (one for one in by_cost if one is not each and one.total_tokens <= each.total_tokens)
        better = next((one for one in rivals if difference(each.solved, one.solved).low > 0), None)
        if better is not None:
            outdone[each.title] = better.title
    sentences = [f"The most accurate is {_described(best)}."]
    if take is best:
        sentences.append(f"Take it: of no cheaper strategy is it sure that it solves at most {tolerance:g} less.")
    else:
        sentences.append(
            f"Take {_described(take)}: it surely solves at most {tolerance:g} less ({_range(lacks[take.title])})."
        )
    if undecided is not None:
        sentences.append(
            f"These {len(best.solved)} problems do not tell whether {_described(undecided)} would do ({_range(lacks[undecided.title])} "
            "less than the most accurate); more problems would."
        )
    steps: list[StrategyOutcome] = []
    for each in cheaper:
        if each.accuracy.value > max((one.accuracy.value for one in steps), default=-1.0):
            steps.append(each)
    if steps:
        sentences.append("For fewer tokens: " + "; ".join(map(_described, steps)) + ".")
    sentences += [
        f"{title} is not worth its tokens: {other} surely solves more for no more of them."
        for title, other in outdone.items()
    ]
    return Advice(
        best=best.title,
        take=take.title,
        undecided=None if undecided is None else undecided.title,
        outdone=outdone,
        sentences=sentences,
    )


def _range(lack: Interval) -> str:
    return f"{lack.value:.3f}, 95 % interval {lack.low:+.3f} to {lack.high:+.3f}"


def _described(each: StrategyOutcome) -> str:
    return (
        f"{each.title} ({each.accuracy.value:.3f} [{each.accuracy.low:.3f}, {each.accuracy.high:.3f}] for "
        f"{each.total_tokens:,.0f} tokens a problem)"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Whole completions that a strategy drew of one problem before it decided anything."""

    texts: Sequence[str]
    truncated: Sequence[bool]
    scores: Sequence[float]
    """Empty where it scored none."""


def pool_of(result: SearchResult) -> Pool | None:
    """The pool of a search whose samples all begin at the prompt; None for one that went by steps."""
    texts: dict[int, str] = {}
    reasons: dict[int, str] = {}
    scores: dict[int, float] = {}
    for event in result.trace:
        if event["did"] == "sampled":
            if event["from"] is not None:
                return None
            texts |= dict(zip(event["candidates"], event["texts"], strict=True))
            reasons |= dict(zip(event["candidates"], event["finish_reasons"], strict=True))
        elif event["did"] == "scored":
            scores |= dict(zip(event["candidates"], event["scores"], strict=True))
    return Pool(
        texts=list(texts.values()),
        truncated=[reason == "length" for reason in reasons.values()],
        scores=[scores[number] for number in texts] if len(scores) == len(texts) else [],
    )


def vote_curve(
    answers: Sequence[Sequence[str | None]],
    correct: Sequence[Sequence[float]],
    weights: Sequence[Sequence[float]] | None,
    ks: Sequence[int],
    *,
    seed: int,
) -> dict[int, float]:
    """k -> mean accuracy of the vote of k of each problem's samples, over ``SUBSETS`` random sets of them (all samples: the one set).

    Args:
        answers: [P] of each problem's samples.
        correct: [P] the judge's verdict on each sample.
        weights: [P] of each sample's vote; None for one each.
        ks: Each at most the number of a problem's samples.
        seed: Of the sets.
    """
    curve: dict[int, float] = {}
    for k in ks:
        total = 0.0
        for place, (said, right) in enumerate(zip(answers, correct, strict=True)):
            weight = [1.0] * len(said) if weights is None else vote_weights(weights[place])
            rng = np.random.default_rng(derive_seed(seed, "votes", place, k))
            sets = [range(len(said))] if k == len(said) else [
                sorted(rng.choice(len(said), k, replace=False)) for _ in range(SUBSETS)
            ]  # fmt: skip
            total += float(np.mean([_vote(said, right, weight, chosen) for chosen in sets]))
        curve[k] = total / len(answers)
    return curve


def _vote(
    answers: Sequence[str | None], correct: Sequence[float], weights: Sequence[float], chosen: Sequence[int]
) -> float:
    votes = tally([answers[i] for i in chosen], [weights[i] for i in chosen])
    if not votes:
        return correct[max(chosen, key=lambda i: weights[i])]
    winner = max(votes, key=lambda answer: votes[answer])
    return correct[max((i for i in chosen if answers[i] == winner), key=lambda i: weights[i])]
