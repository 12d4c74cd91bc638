"""From decoded judgments to scores, win rates and strengths of models, and how small a difference could have been found."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np

from rlhf.config.guidelines import AnnotationGuideline, overall_rating
from rlhf.data.message_text import counted
from rlhf.evaluation.intervals import Estimate, mean_interval, share_with_ties_interval, unit_means
from rlhf.evaluation.ratings.matches import Matches, are_connected, components
from rlhf.evaluation.sample_size import detectable_difference, prompts_for_win_rate
from rlhf.evaluation.winrate import win_rate
from rlhf.feedback.agreement import MAX_VOID_FRAC, MIN_ITEMS
from rlhf.feedback.human_evaluation.criteria import OVERALL, Judged
from rlhf.feedback.human_evaluation.identical import Alike, alike_of, not_compared
from rlhf.feedback.human_evaluation.results import SMALL_DIFFERENCE, Difference, HumanEvaluation, Power, Score, Versus
from rlhf.feedback.readings import values_of
from rlhf.feedback.strengths import Comparison, Strengths, crowd_bradley_terry
from rlhf.formatting import percentage
from rlhf.seeds import derive_seed

MIN_RATED = 10
"""Prompts below which a mean rating has no interval. Of Student's intervals for differences of two ratings from 1 to 5, 95 to
99 % of those that can be given at 10 prompts hold the truth; of two and three prompts up to two thirds are points."""


@dataclass(frozen=True, slots=True)
class _Outcome:
    item: str
    criterion: str
    first: str
    second: str
    y: float
    """1 where the first is better, 0, or 1/2."""
    annotator: str


def evaluate(
    judged: Sequence[Judged],
    criteria: Sequence[AnnotationGuideline],
    *,
    key: Sequence[Mapping[str, Any]],
    seed: int,
    resamples: int,
) -> HumanEvaluation:
    """What people said of the models: ``HumanEvalProtocol.analyze`` gives it.

    Args:
        judged: Decoded judgments.
        criteria: They were judged by.
        key: ``models`` and ``item`` of every comparison, and ``identical`` of those that nobody is asked; empty where unknown.
        seed: Of the draws.
        resamples: Draws of prompts behind the intervals of strengths.
    """
    models = tuple(
        sorted({model for one in judged for model in one.models} | {m for row in key for m in row["models"]})
    )
    outcomes = [outcome for one in judged for outcome in _outcomes(one, criteria)]
    rated = [one for one in judged if one.kind == "rating"]
    win_rates = sorted(_win_rates(outcomes, alike_of(key)), key=lambda versus: _place(versus.criterion, "", criteria))
    pooled = _by_prompt(_pooled(outcomes))
    fitted = _fit(pooled, with_intervals=True)
    comparable = _comparable(_pooled(outcomes))
    return HumanEvaluation(
        models=models,
        num_prompts=len({one.item for one in judged}),
        num_judgments=len(judged),
        num_annotators=len({one.annotator for one in judged}),
        scores=_scores(rated, criteria),
        differences=_differences(rated, criteria),
        win_rates=win_rates,
        strengths=_strengths(fitted, pooled, seed=seed, resamples=resamples) if fitted else {},
        reliability={str(n): e for n, e in fitted.reliability_intervals.items() if n in comparable} if fitted else {},
        reliability_reason=_unreliable_words(_pooled(outcomes), comparable),
        num_identical=len(set().union(*not_compared(key).values())),
        power=_power(win_rates),
    )


def _outcomes(one: Judged, criteria: Sequence[AnnotationGuideline]) -> Iterator[_Outcome]:
    """A judgment as wins, losses and ties between models."""
    if one.kind == "rating":
        for criterion, ratings in _ratings(one, criteria).items():
            for i, j in combinations(range(len(one.models)), 2):
                yield _outcome(one, criterion, i, j, ratings[i] - ratings[j])
        return
    for part, value in values_of(one.kind, one.value).items():
        i, j = (int(str(place)) for place in part) if part else (0, 1)
        lead = {"a": 1, "tie": 0, "b": -1}[value] if isinstance(value, str) else value
        yield _outcome(one, one.criterion, i, j, lead)


def _outcome(one: Judged, criterion: str, i: int, j: int, lead: float) -> _Outcome:
    """With the models in the order of their names, so that the two orders of a pair are one."""
    if one.models[j] < one.models[i]:
        i, j, lead = j, i, -lead
    return _Outcome(one.item, criterion, one.models[i], one.models[j], (np.sign(lead) + 1) / 2, one.annotator)


def _ratings(one: Judged, criteria: Sequence[AnnotationGuideline]) -> dict[str, list[float]]:
    """Criterion -> [models] ratings, the weighted mean of all with them."""
    given: Mapping[str, Sequence[float]] = one.value["ratings"]
    together = [
        overall_rating({name: ratings[place] for name, ratings in given.items()}, criteria)
        for place in range(len(one.models))
    ]
    return {**{name: list(ratings) for name, ratings in given.items()}, OVERALL: together}


def _scores(rated: Sequence[Judged], criteria: Sequence[AnnotationGuideline]) -> list[Score]:
    table: dict[tuple[str, str], list[tuple[str, float]]] = defaultdict(list)
    for one in rated:
        for criterion, ratings in _ratings(one, criteria).items():
            for model, rating in zip(one.models, ratings, strict=True):
                table[criterion, model].append((one.item, rating))
    return [
        Score(
            model=model, criterion=criterion, mean=_mean_by_item(given), num_ratings=len(given),
            std=float(np.std([rating for _, rating in given], ddof=1)) if len(given) > 1 else math.nan,
        )
        for (criterion, model), given in sorted(table.items(), key=lambda entry: _place(entry[0][0], entry[0][1], criteria))
    ]  # fmt: skip


def _differences(rated: Sequence[Judged], criteria: Sequence[AnnotationGuideline]) -> list[Difference]:
    table: dict[tuple[str, str, str], list[tuple[str, float]]] = defaultdict(list)
    for one in rated:
        for criterion, ratings in _ratings(one, criteria).items():
            of = dict(zip(one.models, ratings, strict=True))
            for first, second in combinations(sorted(of), 2):
                table[criterion, first, second].append((one.item, of[first] - of[second]))
    return [
        Difference(first=first, second=second, criterion=criterion, mean=_mean_by_item(given))
        for (criterion, first, second), given in sorted(
            table.items(), key=lambda entry: _place(entry[0][0], entry[0][1] + entry[0][2], criteria)
        )
    ]


def _mean_by_item(given: Sequence[tuple[str, float]]) -> Estimate:
    """Student's interval, which few steps of a scale do not fill: equal values by chance would make it a point."""
    means = unit_means([value for _, value in given], [item for item, _ in given])
    estimate = mean_interval(means)
    if len(means) < MIN_RATED:
        why = _too_few(len(means), MIN_RATED)
    elif np.ptp(means) < 1e-9:
        why = "no interval: all prompts have the same value, which shows no spread"
    else:
        return estimate
    return replace(estimate, low=math.nan, high=math.nan, reason=why)


def _too_few(num_prompts: int, wanted: int) -> str:
    return f"no interval: {counted(num_prompts, 'prompt')}, and it takes {wanted}"


def _place(criterion: str, rest: str, criteria: Sequence[AnnotationGuideline]) -> tuple[int, str]:
    """``overall`` first, then the criteria as they stand."""
    names = [OVERALL, *(c.name for c in criteria), criterion]
    return names.index(criterion), rest


def _pooled(outcomes: Sequence[_Outcome]) -> list[_Outcome]:
    """What strengths are fitted to: overall verdicts where there are any, else those on all criteria."""
    return [o for o in outcomes if o.criterion == OVERALL] or list(outcomes)


def _comparable(outcomes: Sequence[_Outcome]) -> set[str]:
    """Annotators who judged two models that somebody else judged, too: of others a fit can only say whether they agree with
    themselves."""
    of_pair: dict[tuple[str, str], set[str]] = defaultdict(set)
    for outcome in outcomes:
        of_pair[outcome.first, outcome.second].add(outcome.annotator)
    return {name for names in of_pair.values() if len(names) > 1 for name in names}


def _unreliable_words(outcomes: Sequence[_Outcome], comparable: set[str]) -> str:
    names = {outcome.annotator for outcome in outcomes}
    if not names - comparable:
        return ""
    if len(names) == 1:
        return f"not measured: {next(iter(names))} alone judged, and there is nobody to compare with"
    return f"not measured of {', '.join(sorted(names - comparable))}: nobody else judged the same models"


def _win_rates(outcomes: Sequence[_Outcome], alike: Mapping[tuple[str, str], Alike]) -> list[Versus]:
    table: dict[tuple[str, str, str], list[_Outcome]] = defaultdict(list)
    for outcome in _pooled(outcomes):
        table[OVERALL, outcome.first, outcome.second].append(outcome)
    for outcome in outcomes:
        if outcome.criterion != OVERALL:
            table[outcome.criterion, outcome.first, outcome.second].append(outcome)
    for pair in alike:  # of which nothing was judged, or nothing can be
        table.setdefault((OVERALL, *pair), [])
    return [
        _versus(criterion, first, second, given, alike.get((first, second)))
        for (criterion, first, second), given in table.items()
    ]


def _versus(criterion: str, first: str, second: str, given: Sequence[_Outcome], alike: Alike | None) -> Versus:
    y, items = np.array([outcome.y for outcome in given]), [outcome.item for outcome in given]
    rate = win_rate(y, 1 - y, clusters=items)
    if not given and alike is not None:
        same = alike.num_same == alike.num_prompts
        rate = replace(rate, reason="their completions are the same everywhere" if same else "nobody judged them yet")
    if alike is None or not alike.num_same:
        return Versus(first=first, second=second, criterion=criterion, rate=rate)
    over_all = share_with_ties_interval(
        unit_means(y, items), num_tied=alike.num_same, num_open=alike.num_prompts - alike.num_same
    )
    if not over_all.measured:
        over_all = replace(over_all, reason=rate.reason)
    return Versus(first=first, second=second, criterion=criterion, rate=rate, alike=alike, over_all=over_all)


def _by_prompt(outcomes: Sequence[_Outcome]) -> list[list[_Outcome]]:
    of_item: dict[str, list[_Outcome]] = defaultdict(list)
    for outcome in outcomes:
        of_item[outcome.item].append(outcome)
    return list(of_item.values())


def _fit(prompts: Sequence[Sequence[_Outcome]], *, with_intervals: bool = False) -> Strengths | None:
    """A prompt that was drawn twice is two prompts."""
    comparisons = [
        Comparison(
            o.annotator, *((o.first, o.second) if o.y >= 0.5 else (o.second, o.first)), is_tie=o.y == 0.5, item=(place, o.criterion)
        )
        for place, outcomes in enumerate(prompts)
        for o in outcomes
    ]  # fmt: skip
    return crowd_bradley_terry(comparisons, with_intervals=with_intervals) if comparisons else None


def _strengths(
    fitted: Strengths, items: Sequence[Sequence[_Outcome]], *, seed: int, resamples: int
) -> dict[str, Estimate]:
    """Percentile intervals over prompts; a draw without a model says nothing of it."""
    everything = [outcome for outcomes in items for outcome in outcomes]
    reason = _too_few(len(items), MIN_ITEMS) if len(items) < MIN_ITEMS else _why_boundless(everything)
    rng = np.random.default_rng(derive_seed(seed, "human-eval", "bootstrap"))
    drawn: dict[str, list[float]] = defaultdict(list)
    num_boundless = 0
    for _ in range(0 if reason else resamples):
        again = [items[place] for place in rng.integers(0, len(items), len(items))]
        num_boundless += bool(_why_boundless([outcome for outcomes in again for outcome in outcomes]))
        refitted = _fit(again)
        assert refitted is not None, "every prompt has an outcome"
        for model, strength in refitted.strengths.items():
            drawn[str(model)].append(strength)
    if num_boundless > MAX_VOID_FRAC * resamples:
        reason = (
            f"no interval: in {percentage(num_boundless / resamples, 0)} of draws of the prompts some models won every comparison with the "
            "others, or had none"
        )
    return {
        str(model): _strength(value, drawn[str(model)], len(items), reason)
        for model, value in sorted(fitted.strengths.items(), key=lambda entry: -entry[1])
    }


def _strength(value: float, drawn: Sequence[float], num_items: int, reason: str) -> Estimate:
    if not reason and not drawn:
        reason = "no interval: no draws of the prompts were asked for"
    elif not reason and np.ptp(drawn) < 1e-9:
        reason = "no interval: every draw of the prompts gives the same, which shows no spread"
    low, high = (math.nan, math.nan) if reason else np.quantile(drawn, [0.025, 0.975])
    return Estimate(value=value, low=float(low), high=float(high), n=num_items, reason=reason)


def _why_boundless(outcomes: Sequence[_Outcome]) -> str:
    """Why likelihood alone would put no bound to the distance between some models, so that only the prior of the fit does.

    Source: Ford 1957, "Solution of a ranking problem from binary comparisons", Am. Math. Monthly 64: strengths exist where, of
    every split of the competitors in two, each part has won against the other.
    """
    matches = Matches.of((outcome.first, outcome.second, outcome.y) for outcome in outcomes)
    if len(components(matches)) == 1:
        return ""
    if not are_connected(matches):
        return "no interval: some models were never compared with the others"
    return (
        "no interval: some models won every comparison with the others, which puts no bound to how far they are ahead"
    )


def _power(win_rates: Sequence[Versus]) -> Power | None:
    """Of the pair of models that was compared on the fewest prompts."""
    overall = [versus.rate for versus in win_rates if versus.criterion == OVERALL and versus.rate.n]
    if not overall:
        return None
    rate = min(overall, key=lambda each: each.num_prompts)
    ties = rate.ties / rate.n
    possible = 0.5 - ties / 2 > SMALL_DIFFERENCE
    return Power(
        num_prompts=rate.num_prompts,
        tie_frac=ties,
        detectable=detectable_difference(rate.num_prompts, tie_frac=ties) if ties < 1 else math.nan,
        prompts_for_small=prompts_for_win_rate(SMALL_DIFFERENCE, tie_frac=ties) if possible else None,
    )
