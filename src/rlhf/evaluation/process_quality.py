"""Quality of a process reward model: does it find the first wrong step, and does it accept sound completions?"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlhf.data.reasoning.verify import first_wrong_step
from rlhf.errors import ConfigError
from rlhf.evaluation.intervals import (
    CONFIDENCE,
    Array,
    Estimate,
    bootstrap_interval,
    finite_or_none,
    share_interval,
    unit_means,
)
from rlhf.seeds import derive_seed

THRESHOLD = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessQuality:
    """A process reward model on completions whose steps are labeled."""

    first_wrong: Estimate
    """Share of the completions with a wrong step in which exactly the first of them is found."""
    sound: Estimate
    """Share of the completions without a wrong step in which none is found."""
    f1: Estimate
    """Harmonic mean of the two: a model that always cries wolf has 0, and so has one that never does."""
    steps: Estimate
    """Share of all steps that are judged right; flattering where most steps are right."""
    always_last: float
    """``first_wrong`` of always choosing the last step; NaN if nothing is wrong."""
    chance: float
    """``first_wrong`` of choosing a random step; NaN if nothing is wrong."""

    def to_dict(self) -> dict[str, Any]:
        """For JSON: NaN becomes null."""
        return {
            "first_wrong": self.first_wrong.to_dict(),
            "sound": self.sound.to_dict(),
            "f1": self.f1.to_dict(),
            "steps": self.steps.to_dict(),
            "always_last": finite_or_none(self.always_last),
            "chance": finite_or_none(self.chance),
        }


def process_quality(
    labels: Sequence[Sequence[bool]],
    scores: Sequence[Sequence[float]],
    *,
    seed: int,
    threshold: float = THRESHOLD,
    units: Sequence[Hashable] | None = None,
    confidence: float = CONFIDENCE,
) -> ProcessQuality:
    """Compare a model's step scores with the labels.

    The model's first wrong step is the first that scores below the threshold. Then, over S completions,

        first_wrong = P(same step | some step is wrong),   sound = P(no step found | no step is wrong)
        f1          = 2 first_wrong sound / (first_wrong + sound)

    Source: Zheng et al. 2024, "ProcessBench: Identifying Process Errors in Mathematical Reasoning" (the F1 score),
    arXiv:2412.06559.

    Args:
        labels: [S] for each completion, which of its steps are right; at least one step each. What the labels say behind
            the first wrong step does not matter to ``f1``.
        scores: [S] the model's probability that each of these steps is right.
        seed: Of the bootstrap behind the interval of ``f1``.
        threshold: Below it a step is called wrong.
        units: [S] the prompt of each completion; completions of one prompt are averaged first and count once. None
            where each has its own.
        confidence: Share of such intervals that hold the truth.

    Returns:
        See ``ProcessQuality``; everything that rests on scores is missing where one is not finite.
    """
    _check_steps(labels, scores)
    names: Sequence[Hashable] = range(len(labels)) if units is None else units
    if len(names) != len(labels):
        raise ConfigError(f"There are {len(names)} units for {len(labels)} completions; give one for each.")
    true = [first_wrong_step(each) for each in labels]
    wrong = [number for number, step in enumerate(true) if step is not None]
    always_last = [float(true[number] == len(labels[number]) - 1) for number in wrong]
    chance = [1 / len(labels[number]) for number in wrong]
    first_wrong = [first_wrong_step([score >= threshold for score in each]) for each in scores]
    hits = np.array([mine == theirs for mine, theirs in zip(first_wrong, true, strict=True)], dtype=np.float64)
    agree = [_agreement(mine, theirs, threshold) for mine, theirs in zip(scores, labels, strict=True)]
    is_wrong = np.array([step is not None for step in true], dtype=bool)
    measured = {
        "first_wrong": _share(hits[is_wrong], _chosen(names, is_wrong), "no completion has a wrong step", confidence),
        "sound": _share(hits[~is_wrong], _chosen(names, ~is_wrong), "every completion has a wrong step", confidence),
        "f1": _f1(hits, is_wrong, names, seed, confidence),
        "steps": _share(np.array(agree), list(names), "there are no completions", confidence),
    }
    if bad := sum(not math.isfinite(score) for each in scores for score in each):
        reason = f"{bad} step scores are not finite"
        measured = dict.fromkeys(measured, Estimate.missing(reason, n=len(labels)))
    return ProcessQuality(
        **measured,
        always_last=_mean(always_last, _chosen(names, is_wrong)),
        chance=_mean(chance, _chosen(names, is_wrong)),
    )


def _check_steps(labels: Sequence[Sequence[bool]], scores: Sequence[Sequence[float]]) -> None:
    if len(labels) != len(scores):
        raise ConfigError(f"There are step scores of {len(scores)} completions and labels of {len(labels)}; give both.")
    for number, (mine, theirs) in enumerate(zip(scores, labels, strict=True)):
        if len(theirs) == 0 or len(mine) != len(theirs):
            raise ConfigError(
                f"Completion {number} has {len(mine)} step scores and {len(theirs)} labels; wanted one of each for each "
                "step, and at least one step."
            )


def _agreement(scores: Sequence[float], labels: Sequence[bool], threshold: float) -> float:
    """Share of one completion's steps that are judged as they are labeled."""
    same = [(score >= threshold) == bool(right) for score, right in zip(scores, labels, strict=True)]
    return sum(same) / len(same)


def _chosen(names: Sequence[Hashable], which: np.ndarray[Any, np.dtype[np.bool_]]) -> list[Hashable]:
    return [name for name, chosen in zip(names, which, strict=True) if chosen]


def _share(outcomes: Array, names: Sequence[Hashable], why_not: str, confidence: float) -> Estimate:
    if not len(outcomes):
        return Estimate.missing(why_not)
    return share_interval(unit_means(outcomes, names), confidence=confidence)


def _mean(values: Sequence[float], names: Sequence[Hashable]) -> float:
    return float(unit_means(values, names).mean()) if values else math.nan


def _f1(
    hits: Array,
    is_wrong: np.ndarray[Any, np.dtype[np.bool_]],
    names: Sequence[Hashable],
    seed: int,
    confidence: float,
) -> Estimate:
    """Harmonic mean of both shares; prompts are drawn again with all their completions."""
    if is_wrong.all() or not is_wrong.any():
        which = "sound completions" if len(is_wrong) and is_wrong.all() else "completions with a wrong step"
        return Estimate.missing(f"there are no {which}", n=len(is_wrong))
    number: dict[Hashable, int] = {}
    at = np.array([number.setdefault(name, len(number)) for name in names], dtype=np.int64)
    columns = []
    for kind in (is_wrong, ~is_wrong):
        count = np.bincount(at, weights=kind, minlength=len(number))
        hit = np.bincount(at, weights=hits * kind, minlength=len(number))
        columns += [hit / np.maximum(count, 1), (count > 0).astype(np.float64)]
    units = np.stack(columns, axis=1)
    usual = units[:, [0, 2]].sum(axis=0) / units[:, [1, 3]].sum(axis=0)

    def harmonic_mean(draws: Array) -> Array:
        sums = draws.sum(axis=1)
        # A draw without any completion of one kind says nothing of it: it keeps the share of them all.
        rates = np.where(sums[:, [1, 3]] > 0, sums[:, [0, 2]] / np.maximum(sums[:, [1, 3]], 1), usual)
        product, total = rates.prod(axis=1), rates.sum(axis=1)
        return np.divide(2 * product, total, out=np.zeros_like(product), where=total > 0)

    return bootstrap_interval(units, harmonic_mean, seed=derive_seed(seed, "process quality"), confidence=confidence)
