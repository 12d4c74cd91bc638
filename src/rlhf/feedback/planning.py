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
from statistics import NormalDist

from rlhf.errors import ConfigError
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


def pairs_for_win_rate(
    difference: float,
    *,
    tie_frac: float = 0.0,
    label_accuracy: float = 1.0,
    confidence: float = 0.95,
    power: float = 0.8,
) -> int:
    """Prompts needed to tell a true win rate of 1/2 + difference from 1/2, each with one label.

        n    = ((z_alpha s0 + z_beta s1) / seen)^2,   s^2 = p(1 - p) - ties / 4  of outcomes 1, 1/2, 0,  p = 1/2 + seen
        seen = (2 label_accuracy - 1) difference

    A wrong label calls the loser the winner, as likely one way as the other, so what is seen shrinks towards 1/2.

    Sources: the sample size of a one-sample test of a mean, two-sided, normal approximation (Fleiss, Levin and Paik 2003,
    "Statistical methods for rates and proportions", section 2.4), with ties at one half; attenuation by wrong labels: Bross
    1954, "Misclassification in 2 x 2 tables", Biometrics 10.

    Args:
        difference: Of the true win rate from 1/2, above 0 and below 1/2.
        tie_frac: Share of ties, which narrow the spread; taken to be seen by everybody.
        label_accuracy: How often the label of a pair that is no tie is right, above 1/2: ``majority_accuracy`` of its
            judgments.
        confidence: Of the two-sided test.
        power: Chance to find a difference that is there.

    Raises:
        ConfigError: A share is out of its range, or no win rate can be so far from 1/2 with so many ties.
    """
    _check_shares(
        label_accuracy=(label_accuracy, 0.5, 1 + 1e-12),
        difference=(difference, 0, 0.5),
        tie_frac=(tie_frac, -1e-12, 1),
        power=(power, 0, 1),
        confidence=(confidence, 0, 1),
    )
    z_alpha, z_beta = NormalDist().inv_cdf((1 + confidence) / 2), NormalDist().inv_cdf(power)
    p = 0.5 + difference
    if p > 1 - tie_frac / 2:
        raise ConfigError(
            f"A win rate of {p:g} can't be with {percentage(tie_frac, 0)} ties; it is at most {1 - tie_frac / 2:g}."
        )
    seen = (2 * label_accuracy - 1) * difference
    without = math.sqrt(max(0.25 - tie_frac / 4, 0.0))
    with_it = math.sqrt(max(0.25 - seen**2 - tie_frac / 4, 0.0))
    return math.ceil(((z_alpha * without + z_beta * with_it) / seen) ** 2)


def detectable_difference(
    num_pairs: int, *, tie_frac: float = 0.0, label_accuracy: float = 1.0, confidence: float = 0.95, power: float = 0.8
) -> float:
    """The smallest distance of a true win rate from 1/2 that so many prompts find; NaN where none is found.

    The inverse of ``pairs_for_win_rate``, by bisection.
    """

    def needed(difference: float) -> int:
        return pairs_for_win_rate(
            difference, tie_frac=tie_frac, label_accuracy=label_accuracy, confidence=confidence, power=power
        )

    highest = min(0.5, 0.5 - tie_frac / 2) - 1e-9
    if num_pairs < 1 or highest <= 0 or needed(highest) > num_pairs:
        return math.nan
    low, high = 1e-6, highest
    for _ in range(60):
        middle = (low + high) / 2
        if needed(middle) <= num_pairs:
            high = middle
        else:
            low = middle
    return high


def majority_accuracy(annotator_accuracy: float, judgments: int) -> float:
    """How often the majority of independent annotators is right; an even number's draws are broken by a coin.

        sum over k > n/2 of C(n, k) p^k (1 - p)^(n - k)  +  half of k = n/2

    Source: Condorcet 1785; independence is the assumption that real annotators break first.

    Args:
        annotator_accuracy: p of each, between 0 and 1.
        judgments: n of each item, at least 1.
    """
    _check_shares(annotator_accuracy=(annotator_accuracy, -1e-12, 1 + 1e-12))
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
    """What a label that is right so often is worth beside one that always is: (2p - 1)^2, so that n of them do as n (2p - 1)^2.

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
    found = []
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
        found.append(
            OverlapPlan(
                judgments_per_pair=overlap, label_accuracy=right, needed=other, judgments=judgments, cost=cost,
            )
        )  # fmt: skip
    return found


def _check_shares(**shares: tuple[float, float, float]) -> None:
    for name, (value, low, high) in shares.items():
        if not low < value < high:
            raise ConfigError(f"{name} is {value}; it lies between {max(low, 0):g} and {min(high, 1):g}.")
