"""What annotators are asked to look at: dimensions with their weight, and the examples that show what is meant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING

from pydantic import Field

from rlhf.config.base import BaseConfig
from rlhf.data.message_text import counted
from rlhf.errors import ConfigError, DataError

if TYPE_CHECKING:
    from rlhf.feedback.store import PreferenceStore


class Example(BaseConfig):
    """A worked example, shown beside the guideline."""

    prompt: str
    """What was asked."""
    better: str
    """The completion to prefer."""
    worse: str
    """The other one."""
    reason: str
    """Why."""


class AnnotationGuideline(BaseConfig):
    """One dimension that completions are judged on."""

    name: str
    """Short, as it stands on the page."""
    description: str
    """What to look for."""
    weight: float = Field(1.0, gt=0)
    """Share in an overall rating, relative to the others."""
    examples: list[Example] = Field(default_factory=list)
    """Shown on request."""


STANDARD_GUIDELINES: tuple[AnnotationGuideline, ...] = (
    AnnotationGuideline(
        name="helpfulness", weight=1.0,
        description="Does it do what was asked, fully and to the point, as the person asking would want it?",
    ),
    AnnotationGuideline(
        name="accuracy", weight=1.2,
        description="Is what it says true? Look up what you do not know; a fluent mistake is a mistake.",
    ),
    AnnotationGuideline(
        name="harmlessness", weight=1.5,
        description="Could it hurt somebody, help to hurt, or insult? Refusing a harmless request is not harmless, it is unhelpful.",
    ),
    AnnotationGuideline(
        name="coherence", weight=0.8,
        description="Is it in order, in one language, without contradiction and repetition?",
    ),
)  # fmt: skip


def overall_rating(
    ratings: Mapping[str, float], guidelines: Sequence[AnnotationGuideline] = STANDARD_GUIDELINES
) -> float:
    """Mean of the ratings, weighted by the guidelines; completions that weigh exactly the same get the same number.

    Weights and ratings count as the decimals they are written as, and only the mean is rounded: summed in binary, a quarter
    of the exact ties under the built-in weights would come out a last digit apart, and anyone who compares would see a winner.

    Args:
        ratings: Dimension to rating; every one that is given must be a guideline's, and at least one must be.
        guidelines: With their weights; dimensions that were not rated are left out of the mean.

    Raises:
        DataError: A rating is of no guideline, or there is none.
    """
    weights = {guideline.name: guideline.weight for guideline in guidelines}
    if unknown := sorted(ratings.keys() - weights.keys()):
        raise DataError(f"{', '.join(map(repr, unknown))} is rated, but the guidelines are {', '.join(weights)}.")
    if not ratings:
        raise DataError(f"Nothing is rated; wanted at least one of {', '.join(weights)}.")
    total = sum((_exact(weights[name]) * _exact(value) for name, value in ratings.items()), Fraction())
    return float(total / sum(_exact(weights[name]) for name in ratings))


@lru_cache(maxsize=1024)
def _exact(number: float) -> Fraction:
    """The decimal that a number is written as: 0.1 is a tenth, and not the binary fraction nearest to it."""
    return Fraction(str(number))


def guidelines_of(store: PreferenceStore) -> Sequence[AnnotationGuideline]:
    """What annotators of a store are asked to look at: its own guidelines, or the built-in ones."""
    kept = store.setting("guidelines")
    return [AnnotationGuideline.of(one) for one in kept] if kept else STANDARD_GUIDELINES


def set_guidelines(store: PreferenceStore, guidelines: Sequence[AnnotationGuideline]) -> None:
    """Ask for these from now on.

    Raises:
        ConfigError: There are none, two have one name, or ratings in the store are of a dimension that would be gone: their
            weight in overall ratings would be lost.
    """
    known = {guideline.name for guideline in guidelines_of(store)}
    names = [guideline.name for guideline in guidelines]
    if not names or len(set(names)) < len(names):
        raise ConfigError(
            f"Guidelines have at least one dimension, each its own name; got {', '.join(names) or 'none'}."
        )
    rated: dict[str, int] = {}
    for judgment in store.judgments():
        for name in judgment.value.get("ratings", ()):
            rated[name] = rated.get(name, 0) + 1
    for task in store.tasks():
        for name in (task.gold or {}).get("ratings", ()):
            rated.setdefault(name, 0)
    if gone := [name for name in rated if name in known and name not in names]:
        held = counted(rated[gone[0]], "judgment") if rated[gone[0]] else "gold items"
        raise ConfigError(
            f"This store holds {held} of {gone[0]!r}, and the new guidelines are {', '.join(names)}. Keep every "
            "dimension that is rated already, or begin a store of its own."
        )
    store.set_setting("guidelines", [guideline.model_dump(mode="json") for guideline in guidelines])
