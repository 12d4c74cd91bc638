"""What a human evaluation found, as numbers, JSON and text."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from rlhf.data.message_text import counted, printable
from rlhf.evaluation.intervals import Estimate, finite_or_none
from rlhf.evaluation.winrate import WinRate
from rlhf.feedback.human_evaluation.identical import Alike
from rlhf.formatting import percentage

SMALL_DIFFERENCE = 0.05
"""Of a win rate from one half: what ``Power`` says the price of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """A model's ratings on one criterion, or their weighted mean over all of them."""

    model: str
    criterion: str
    mean: Estimate
    """Prompts weigh the same and are the unit of the interval."""
    std: float
    """Of single ratings; NaN for one."""
    num_ratings: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Rating of the first model less the second's, by the same person on the same prompt."""

    first: str
    second: str
    criterion: str
    mean: Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class Versus:
    """How often the first model was preferred."""

    first: str
    second: str
    criterion: str
    rate: WinRate
    """Over prompts on which their completions differ; NaN with the reason where none was judged."""
    alike: Alike | None = None
    """Where their completions are the same on some prompts."""
    over_all: Estimate | None = None
    """And then the rate over all prompts, those counted as ties: right whatever part of the others was judged so far, where
    ties thrown in with the judgments would count for more than their share until all are in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Power:
    """What so many prompts can show."""

    num_prompts: int
    tie_frac: float
    detectable: float
    """Smallest distance of a win rate from one half that is found in four evaluations of five; NaN where none is."""
    prompts_for_small: int | None
    """Prompts that find a distance of ``SMALL_DIFFERENCE`` as often; None where so many ties leave no room for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HumanEvaluation:
    """All of it. ``overall`` is all criteria together: ratings by their weights, preferences each counting the same."""

    models: tuple[str, ...]
    num_prompts: int
    num_judgments: int
    num_annotators: int
    scores: list[Score]
    """Of ratings only."""
    differences: list[Difference]
    """Of ratings only; two intervals side by side say less."""
    win_rates: list[Versus]
    strengths: dict[str, Estimate]
    """Bradley-Terry log-odds against an average model, on prompts where completions differ; annotators weigh by their
    reliability. Empty for one model."""
    reliability: dict[str, Estimate]
    """Annotator -> probability that they report what is better, by the same fit; of those whom it could compare with others.
    Missing where the judgments say less of it than the belief that the fit starts from."""
    reliability_reason: str
    """Why there is none, or not one for everybody."""
    num_identical: int
    """Prompts on which nobody is asked to compare some models, because their completions are the same."""
    power: Power | None

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "models": list(self.models),
            "num_prompts": self.num_prompts,
            "num_judgments": self.num_judgments,
            "num_annotators": self.num_annotators,
            "scores": [
                {
                    "model": s.model, "criterion": s.criterion, **s.mean.to_dict(), "std": finite_or_none(s.std),
                    "num_ratings": s.num_ratings,
                }
                for s in self.scores
            ],
            "differences": [
                {"models": [d.first, d.second], "criterion": d.criterion, **d.mean.to_dict()} for d in self.differences
            ],
            "win_rates": [
                {
                    "models": [v.first, v.second], "criterion": v.criterion, **v.rate.to_dict(),
                    **({} if v.alike is None else {"identical": {"num_same": v.alike.num_same, "num_prompts": v.alike.num_prompts}}),
                    **({} if v.over_all is None else {"over_all_prompts": v.over_all.to_dict()}),
                }
                for v in self.win_rates
            ],
            "strengths": {model: estimate.to_dict() for model, estimate in self.strengths.items()},
            "reliability": {name: estimate.to_dict() for name, estimate in self.reliability.items()},
            **({"reliability_reason": self.reliability_reason} if self.reliability_reason else {}),
            "num_identical": self.num_identical,
            "power": None if self.power is None else {**asdict(self.power), "detectable": finite_or_none(self.power.detectable)},
        }  # fmt: skip

    def to_text(self) -> str:
        """For a terminal; names come from files, and what would steer it in them is escaped."""
        return "".join(f"{printable(line)}\n" for line in _lines(self))


def _lines(results: HumanEvaluation) -> Iterator[str]:
    yield (
        f"{counted(results.num_judgments, 'judgment')} of {counted(results.num_prompts, 'prompt')} by "
        f"{counted(results.num_annotators, 'annotator')}; models: {', '.join(results.models)}. Brackets: 95 %, over prompts."
    )
    if results.num_identical:
        yield (
            f"  On {counted(results.num_identical, 'prompt')} completions of some models are the same to the letter: nobody is asked "
            "which is better, and they count as ties."
        )
    for score in results.scores:
        yield (
            f"  {score.criterion:14} {score.model:20} {_words(score.mean)}, deviation {score.std:.2f} of "
            f"{counted(score.num_ratings, 'rating')}"
        )
    for difference in results.differences:
        yield f"  {difference.criterion:14} {difference.first} less {difference.second}: {_words(difference.mean, '+.2f')}"
    for versus in results.win_rates:
        yield f"  {versus.criterion:14} {versus.first} over {versus.second}: {versus.rate}{_alike_words(versus)}"
    if results.strengths:
        listed = ", ".join(f"{model} {_words(strength, '+.2f')}" for model, strength in results.strengths.items())
        yield f"  strengths (Bradley-Terry, log-odds against the average, annotators weighed by reliability): {listed}"
        yield f"  reliability of annotators (how often they report what is better): {_reliability_words(results)}"
    if results.power is not None:
        yield _power_words(results.power)


def _reliability_words(results: HumanEvaluation) -> str:
    """Those measured, each with its interval; those not, by their reasons."""
    known = [f"{name} {_words(one)}" for name, one in results.reliability.items() if one.measured]
    why: dict[str, list[str]] = defaultdict(list)
    for name, one in results.reliability.items():
        if not one.measured:
            why[one.reason].append(name)
    known += [f"not measured of {', '.join(names)}: {reason}" for reason, names in why.items()]
    return ", ".join([*known, *([results.reliability_reason] if results.reliability_reason else [])])


def _alike_words(versus: Versus) -> str:
    if versus.alike is None or versus.over_all is None:
        return ""
    return (
        f"; over all {counted(versus.alike.num_prompts, 'prompt')} {_words(versus.over_all, '.3f')}, counting "
        f"{counted(versus.alike.num_same, 'prompt')} with identical completions as tied"
    )


def _power_words(power: Power) -> str:
    if math.isfinite(power.detectable):
        least = f"find a win rate that is {power.detectable:.2f} from one half in four evaluations of five"
    else:
        least = "find no win rate with any certainty"
    more = "" if power.prompts_for_small is None else f"; for {SMALL_DIFFERENCE:g} it takes {power.prompts_for_small:,}"
    ties = f" with {percentage(power.tie_frac, 0)} ties" if power.tie_frac else ""
    return f"  {counted(power.num_prompts, 'prompt')}{ties} can {least}{more}. No difference seen is not no difference."


def _words(estimate: Estimate, form: str = ".2f") -> str:
    if not estimate.measured:
        return f"not measured: {estimate.reason}"
    ends = (
        f" [{estimate.low:{form}}, {estimate.high:{form}}]" if math.isfinite(estimate.low) else f" ({estimate.reason})"
    )
    return f"{estimate.value:{form}}{ends}"
