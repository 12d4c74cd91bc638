"""What annotators are asked to look at: dimensions with their weight, and the examples that show what is meant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import lru_cache

from pydantic import Field

from rlhf.config.base import BaseConfig
from rlhf.errors import DataError


class Example(BaseConfig):
    """A worked example, shown next to the guideline."""

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
    """Short, as it is on the page."""
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
