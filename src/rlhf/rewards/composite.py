"""Composite rewards: a weighted sum."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rlhf.data.contracts import Prompt
from rlhf.data.verifiable import VERIFIABLE, is_verifiable
from rlhf.errors import ConfigError, RewardError, check_type
from rlhf.rewards.types import Abstaining, CompletionLike, OnError, Scorer, ScoreResult, ask_scorer, sample_name

SQUARES_OVERFLOW = 1e100
"""Scores beyond this are brought nearer before they are squared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """One judge and how much it counts."""

    scorer: Scorer
    weight: float = 1.0
    normalize: bool = False
    """Shift and scale its scores to mean 0 and deviation 1 over each call (in training: over each rollout), before the
    weight. Then the sum of two rollouts can't be compared; the raw scores among the components still can."""

    def __post_init__(self) -> None:
        how = (
            "a scorer, such as LearnedReward(folder); RewardFunctionFactory().from_function(f) makes one of a function"
        )
        check_type(self.scorer, Scorer, name="scorer", expected=how)


class CompositeReward:
    """The weighted sum of what applies to each sample.

    A function that returns None for a sample is left out of that sample's sum; a sample to which none applies is an
    error. A sample that one component fails on has no score at all, and plays no part in how the others' are
    normalized.
    """

    def __init__(
        self, components: Sequence[Component], *, name: str = "composite", on_error: OnError = "raise"
    ) -> None:
        """Combine judges.

        Args:
            components: At least one; two of the same name are distinguished by a number.
            name: What metrics and errors call the sum.
            on_error: ``report`` puts a sample to which none applies into the result's ``errors`` instead of raising;
                the components each have their own setting.

        Raises:
            ConfigError: There is no component, or a weight is not a finite number.
        """
        if not components:
            raise ConfigError("A composite reward needs at least one component.")
        for component in components:
            check_type(component, Component, name="A component", expected="Component(scorer=..., weight=...)")
            if not math.isfinite(component.weight):
                raise ConfigError(
                    f"The weight of {component.scorer.name!r} is {component.weight}; wanted a finite number."
                )
        self.components = list(components)
        self.names = distinct_names([component.scorer.name for component in components])
        self._name = name
        self.on_error = on_error

    @property
    def name(self) -> str:
        """What metrics and errors call it."""
        return self._name

    def score(self, prompts: Sequence[Prompt], completions: Sequence[CompletionLike]) -> ScoreResult:
        """Judge each completion.

        Raises:
            RewardError: From a component, or because none applies to a sample or a sum is beyond all numbers.
        """
        asked = ask_components(self.names, self.components, prompts, completions)
        errors = dict(asked.errors)
        totals: list[float | None] = [None] * len(completions)
        for component, verdicts in zip(self.components, asked.verdicts.values(), strict=True):
            sound = [None if place in errors else verdict for place, verdict in enumerate(verdicts)]
            for place, verdict in enumerate(standardized(sound) if component.normalize else sound):
                if verdict is not None:
                    totals[place] = (totals[place] or 0.0) + component.weight * verdict
        said = [{name: asked.verdicts[name][place] for name in self.names} for place in range(len(completions))]
        wrong = {p: self._fault(total, said[p]) for p, total in enumerate(totals) if p not in errors}
        wrong = {place: reason for place, reason in wrong.items() if reason}
        if wrong and self.on_error == "raise":
            place, reason = min(wrong.items())
            raise RewardError(f"Sample {sample_name(prompts[place], completions[place])} has no reward: {reason}.")
        errors |= wrong
        scores = [math.nan if total is None or place in errors else total for place, total in enumerate(totals)]
        return ScoreResult(scores, {**asked.parts, **_verifiable(prompts)}, errors)

    def _fault(self, total: float | None, said: Mapping[str, float | None]) -> str:
        """Why a sum is not a score; the empty text where it is one."""
        if total is None:
            return f"no reward applies to it: {', '.join(said)} all returned None; add one that judges every sample"
        if not math.isfinite(total):
            given = ", ".join(f"{name} gave {value:.3g}" for name, value in said.items() if value is not None)
            return f"the weighted sum is {total} ({given}); lower the weights, or bring the scores to a common scale"
        return ""

    def close(self) -> None:
        """End the processes of the components."""
        for component in self.components:
            close = getattr(component.scorer, "close", None)
            if close is not None:
                close()


def _verifiable(prompts: Sequence[Prompt]) -> dict[str, list[float | None]]:
    """1 for a sample whose row may be verified, 0 where it says `verifiable: false`; nothing where no row says either."""
    if not any(VERIFIABLE in prompt.columns for prompt in prompts):
        return {}
    with contextlib.suppress(ValueError):  # a verifier among the components names the row
        return {VERIFIABLE: [float(is_verifiable(prompt.columns) is not False) for prompt in prompts]}
    return {}


def standardized(verdicts: Sequence[float | None]) -> list[float | None]:
    """Shifted and scaled to mean 0 and deviation 1 over those that are not None; all 0 where they are equal."""
    numbers = [verdict for verdict in verdicts if verdict is not None]
    if not numbers:
        return list(verdicts)
    largest = max(map(abs, numbers))
    if largest > SQUARES_OVERFLOW:
        return standardized([None if verdict is None else verdict / largest for verdict in verdicts])
    mean = math.fsum(numbers) / len(numbers)
    deviation = math.sqrt(math.fsum((number - mean) ** 2 for number in numbers) / len(numbers))
    if deviation <= 1e-12 * max(1.0, abs(mean)):
        return [None if verdict is None else 0.0 for verdict in verdicts]
    return [None if verdict is None else (verdict - mean) / deviation for verdict in verdicts]


@dataclass(frozen=True, slots=True)
class Asked:
    """The verdicts of several judges."""

    verdicts: dict[str, list[float | None]]
    """Name -> [n] raw verdicts, in the order of the judges."""
    parts: dict[str, list[float | None]]
    """The same, with the components of each judge's score after it, if it reports them."""
    errors: dict[int, str]
    """Place of a completion -> which judge failed on it first, and why."""


def ask_components(
    names: Sequence[str],
    components: Sequence[Component],
    prompts: Sequence[Prompt],
    completions: Sequence[CompletionLike],
) -> Asked:
    """Ask each judge, under its name.

    Raises:
        RewardError: From a judge.
    """
    asked = Asked({}, {}, {})
    for name, component in zip(names, components, strict=True):
        verdicts, parts, wrong = _verdicts(component.scorer, prompts, completions)
        asked.verdicts[name] = verdicts
        asked.parts[name] = verdicts
        for part, values in parts.items():
            # Two judges of one kind are distinguished by a number, and so are their parts: learned_std, learned_2_std.
            own = part.replace(component.scorer.name, name, 1) if part.startswith(component.scorer.name) else part
            asked.parts.setdefault(own if own not in names else f"{name}/{own}", values)
        asked.errors.update({p: f"{name}: {why}" for p, why in wrong.items() if p not in asked.errors})
    return asked


def _verdicts(
    scorer: Scorer, prompts: Sequence[Prompt], completions: Sequence[CompletionLike]
) -> tuple[list[float | None], Mapping[str, list[float | None]], Mapping[int, str]]:
    """A component's raw verdicts, its own parts, and what went wrong; some may be None, which ``score`` would reject."""
    if isinstance(scorer, Abstaining):
        said, wrong = scorer.checked_verdicts(prompts, completions)
        return said, {}, wrong
    result = ask_scorer(scorer, prompts, completions)
    verdicts = [None if place in result.errors else score for place, score in enumerate(result.scores)]
    parts = {name: values for name, values in result.per_component.items() if name != scorer.name}
    return verdicts, parts, result.errors


def distinct_names(names: list[str]) -> list[str]:
    """Repeated names get a number: rules, rules_2."""
    seen: dict[str, int] = {}
    distinct = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        distinct.append(name if seen[name] == 1 else f"{name}_{seen[name]}")
    return distinct
