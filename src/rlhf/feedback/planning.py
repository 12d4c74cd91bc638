"""Before anybody is asked: how many pairs, how many judgments of each, at what price, to learn or to detect what.

The kinds of answer differ in how far they can be trusted. Power is arithmetic, with the annotators' errors in it; costs are
multiplication; how many pairs a reward model of some size wants is a rule of thumb, and says so. How right a reward model will be
after so many pairs is read off the learning curve of one's own first ones (``rlhf.feedback.learning_curve``), and what other
numbers of judgments of each would make of it is arithmetic again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rlhf.errors import ConfigError, check_number
from rlhf.evaluation.sample_size import check_shares
from rlhf.feedback.learning_curve import PairsNeeded
from rlhf.formatting import percentage


@dataclass(frozen=True, slots=True)
class DatasetSizeGuidelines:
    """How many preference pairs a reward model for a policy of some size wants."""

    minimum: int
    """Fewer teach little."""
    recommended: int
    saturates: int
    """More bring little."""


DATASET_GUIDELINES: dict[str, DatasetSizeGuidelines] = {
    "7b": DatasetSizeGuidelines(minimum=5_000, recommended=20_000, saturates=100_000),
    "13b": DatasetSizeGuidelines(minimum=10_000, recommended=50_000, saturates=200_000),
    "70b": DatasetSizeGuidelines(minimum=20_000, recommended=100_000, saturates=500_000),
}
"""Size of the policy -> preference pairs; see ``GUIDANCE_SOURCE`` for how far they can be trusted."""
GUIDANCE_SOURCE = (
    "a rule of thumb that nobody measured with this library; the learning curve of your own pairs tells more"
)
"""Where ``DATASET_GUIDELINES`` come from, in words."""
NOTHING_MEASURED = (
    "nothing was measured: it depends on the model and on what is asked, and no published curve carries over; train on a quarter, "
    "a half and all of your first pairs, hold each against the same other pairs, and give what they say"
)
"""Why no number of pairs is given for a wanted accuracy of the reward model, and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a data set costs."""

    comparisons: int
    annotation: float
    generation: float

    @property
    def total(self) -> float:
        """Both together."""
        return self.annotation + self.generation


def estimate_annotation_cost(
    num_pairs: int,
    *,
    judgments_per_pair: int = 3,
    price_per_judgment: float = 0.5,
    responses_per_pair: int = 2,
    price_per_response: float = 0.02,
) -> Cost:
    """Judgments and completions, each times its price, in whatever currency the prices are in.

    Args:
        num_pairs: Preference pairs.
        judgments_per_pair: How many people judge each.
        price_per_judgment: Of one person's judgment.
        responses_per_pair: Completions that are generated for each.
        price_per_response: Of generating one.

    Raises:
        ConfigError: A number is negative, or a pair is judged less than once.
    """
    for name, value in {
        "num_pairs": num_pairs, "judgments_per_pair": judgments_per_pair, "price_per_judgment": price_per_judgment,
        "responses_per_pair": responses_per_pair, "price_per_response": price_per_response,
    }.items():  # fmt: skip
        check_number(value, name=name, expected="a number")
    if min(num_pairs, price_per_judgment, price_per_response, responses_per_pair) < 0 or judgments_per_pair < 1:
        raise ConfigError(
            "Costs need counts and prices of at least 0, and at least one judgment of each pair; got "
            f"{num_pairs} pairs, {judgments_per_pair} judgments at {price_per_judgment}, {responses_per_pair} responses at "
            f"{price_per_response}."
        )
    comparisons = num_pairs * judgments_per_pair
    return Cost(
        comparisons=comparisons,
        annotation=comparisons * price_per_judgment,
        generation=num_pairs * responses_per_pair * price_per_response,
    )


def majority_accuracy(annotator_accuracy: float, judgments: int) -> float:
    """How often the majority of independent annotators is right; an even number's draws are broken by a coin.

        sum over k > n/2 of C(n, k) p^k (1 - p)^(n - k)  +  half of k = n/2

    Source: Condorcet 1785; independence is the assumption that real annotators break first.

    Args:
        annotator_accuracy: p of each, between 0 and 1.
        judgments: n of each item, at least 1.
    """
    check_shares(annotator_accuracy=(annotator_accuracy, -1e-12, 1 + 1e-12))
    if judgments < 1:
        raise ConfigError(f"judgments is {judgments}; an item is judged at least once.")
    p, n = annotator_accuracy, judgments
    return sum(
        math.comb(n, k) * p**k * (1 - p) ** (n - k) * (1.0 if 2 * k > n else 0.5)
        for k in range(math.ceil(n / 2), n + 1)
    )


def judgments_for_accuracy(annotator_accuracy: float, wanted: float, *, limit: int = 101) -> int | None:
    """The smallest odd number of judgments whose majority is right as often as wanted; None beyond the limit."""
    return next((n for n in range(1, limit + 1, 2) if majority_accuracy(annotator_accuracy, n) >= wanted), None)


def label_worth(label_accuracy: float) -> float:
    """What a label that is right so often is worth compared with one that always is: (2p - 1)^2, so that n of them do as n (2p - 1)^2.

    Wrong labels shrink the slope of P(label) in what separates the two completions by 2p - 1, and its square is the information
    about it. That is exact for pairs that are hard to tell apart; where they are easy, labels that err are worth less still,
    so single judgments come off a little too well.

    Sources: sample complexity under random classification noise, Angluin and Laird 1988, "Learning from noisy examples", Machine
    Learning 2, theorem 2; that it can't be less, Aslam and Decatur 1996, "On the sample complexity of noise-tolerant learning",
    Information Processing Letters 57. Held against trained logistic models in ``tests/unit/feedback/test_learning_curve.py``.

    Args:
        label_accuracy: p, the same for every pair.
    """
    return (2 * label_accuracy - 1) ** 2


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlapPlan:
    """One way to reach an accuracy: so many judgments of each pair."""

    judgments_per_pair: int
    label_accuracy: float
    """Of their majority."""
    needed: PairsNeeded
    judgments: float
    """Of all pairs, at the median."""
    cost: float
    """At the median; infinite where it is."""


def overlap_plans(
    needed: PairsNeeded,
    overlaps: Sequence[int],
    *,
    measured_overlap: int,
    annotator_accuracy: float,
    price_per_judgment: float,
    price_per_response: float,
) -> list[OverlapPlan]:
    """What the same accuracy takes with other numbers of judgments of each training pair; the held-out pairs stay as they are.

    Args:
        needed: With ``measured_overlap`` judgments of each.
        overlaps: To compare.
        measured_overlap: Judgments of each pair behind the measured points.
        annotator_accuracy: Of each annotator, above 1/2.
        price_per_judgment: In any currency.
        price_per_response: Of sampling one of a pair's two completions.

    Raises:
        ConfigError: Annotators are no better than a coin.
    """
    if annotator_accuracy <= 0.5:
        raise ConfigError(
            f"Annotators who are right {percentage(annotator_accuracy, 0)} of the time say no more than a coin, so no number of pairs teaches "
            "anything."
        )
    measured = label_worth(majority_accuracy(annotator_accuracy, measured_overlap))
    plans = []
    for overlap in overlaps:
        right = majority_accuracy(annotator_accuracy, overlap)
        other = needed.times(measured / label_worth(right))
        judgments, cost = math.inf, math.inf
        if math.isfinite(other.pairs):
            whole = estimate_annotation_cost(
                math.ceil(other.pairs), judgments_per_pair=overlap, price_per_judgment=price_per_judgment,
                price_per_response=price_per_response,
            )  # fmt: skip
            judgments, cost = whole.comparisons, whole.total
        plans.append(
            OverlapPlan(
                judgments_per_pair=overlap, label_accuracy=right, needed=other, judgments=judgments, cost=cost,
            )
        )  # fmt: skip
    return plans
