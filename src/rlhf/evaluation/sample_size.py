"""How many prompts a comparison takes, and how small a difference so many can show. Normal approximations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from rlhf.errors import ConfigError
from rlhf.formatting import percentage

POWER = 0.8
"""Chance to find what is there, by default."""


def prompts_for_difference(
    difference: float, *, variance: float, confidence: float = 0.95, power: float = POWER
) -> int:
    """Prompts needed to tell a mean difference from 0, two-sided.

        n = (z_alpha + z_beta)^2 variance / difference^2

    Two systems right or wrong on the same prompts, differing on a share d of them: variance = d - difference^2. A win rate
    of 1/2 + difference with a share t of ties: variance = (1 - t) / 4 - difference^2.

    Source: Fleiss, Levin and Paik 2003, "Statistical methods for rates and proportions", section 2.4.

    Args:
        difference: True mean, not 0.
        variance: Of the paired differences of single prompts.
        confidence: Of the two-sided test.
        power: Chance to find the difference.
    """
    if difference == 0:
        raise ConfigError("No number of prompts tells a difference of 0 from 0; give the smallest that matters.")
    return _count((1 + confidence) / 2, power, variance, difference)


def prompts_for_noninferiority(
    margin: float, *, variance: float, difference: float = 0.0, confidence: float = 0.95, power: float = POWER
) -> int:
    """Prompts needed for ``noninferiority`` to pass, by default a system that is as good as the old one.

        n = (z_alpha + z_beta)^2 variance / (margin + difference)^2,   z_alpha one-sided

    At 95 % and 80 % it is 6.18 variance / margin^2: with 15 % of prompts discordant 371 for a margin of 5 points and 2,319
    for 2.

    Source: Julious 2004, "Sample sizes for clinical trials with normal data", Statistics in Medicine 23, section 5.

    Args:
        margin: Loss that is tolerated, above 0.
        variance: Of the paired differences; for outcomes of 0 and 1 about the share of prompts that change.
        difference: True mean of new - old, above -margin.
        confidence: One-sided.
        power: Chance to pass.
    """
    if margin + difference <= 0:
        raise ConfigError(
            f"A system that differs by {difference:g} is not within a margin of {margin:g}, so no number of prompts shows it."
        )
    return _count(confidence, power, variance, margin + difference)


def prompts_for_win_rate(
    difference: float,
    *,
    tie_frac: float = 0.0,
    label_accuracy: float = 1.0,
    confidence: float = 0.95,
    power: float = POWER,
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
        label_accuracy: How often the label of a pair that is no tie is right, above 1/2 (of several judgments of one pair:
            ``rlhf.feedback.planning.majority_accuracy``).
        confidence: Of the two-sided test.
        power: Chance to find a difference that is there.

    Raises:
        ConfigError: A share is out of its range, or no win rate can be so far from 1/2 with so many ties.
    """
    check_shares(
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


def more_prompts_for_win_rate(
    rate: float, outcomes: Sequence[float] | NDArray[np.float64], *, confidence: float = 0.95, power: float = POWER
) -> int | None:
    """Prompts beyond those that there are to tell a win rate from 1/2, if its true value is the one seen.

    Ties are counted by how much less outcomes vary than wins and losses would. Where one side won everything, the rate that one more win
    and one more loss would give is taken.

    Args:
        rate: That was seen, perhaps corrected.
        outcomes: [n] of the prompts, in [0, 1].
        confidence: Of the two-sided test.
        power: Chance to find the difference.

    Returns:
        At least 1; None where the rate is 1/2, which no number of prompts tells from it, or there is no prompt.
    """
    y = np.asarray(outcomes, dtype=np.float64)
    if not y.size or rate == 0.5 or not math.isfinite(rate):
        return None
    n, difference = int(y.size), abs(rate - 0.5)
    if difference >= 0.5 or n == 1:
        y = np.append(y, [0.0, 1.0])
        difference = abs(float(y.mean()) - 0.5)
        if difference == 0:
            return None
    ties = min(max(4 * (0.25 - difference**2 - float(np.var(y))), 0.0), 1 - 2 * difference)
    return max(1, prompts_for_win_rate(difference, tie_frac=ties, confidence=confidence, power=power) - n)


def detectable_difference(
    num_prompts: int,
    *,
    tie_frac: float = 0.0,
    label_accuracy: float = 1.0,
    confidence: float = 0.95,
    power: float = POWER,
) -> float:
    """The smallest distance of a true win rate from 1/2 that so many prompts find; NaN where none is found.

    The inverse of ``prompts_for_win_rate``, by bisection.
    """

    def needed(difference: float) -> int:
        return prompts_for_win_rate(
            difference, tie_frac=tie_frac, label_accuracy=label_accuracy, confidence=confidence, power=power
        )

    highest = min(0.5, 0.5 - tie_frac / 2) - 1e-9
    if num_prompts < 1 or highest <= 0 or needed(highest) > num_prompts:
        return math.nan
    low, high = 1e-6, highest
    for _ in range(60):
        middle = (low + high) / 2
        if needed(middle) <= num_prompts:
            high = middle
        else:
            low = middle
    return high


def check_shares(**shares: tuple[float, float, float]) -> None:
    """Refuse a number that is not between two others, by its name."""
    for name, (value, low, high) in shares.items():
        if not low < value < high:
            raise ConfigError(f"{name} is {value}; it lies between {max(low, 0):g} and {min(high, 1):g}.")


def _count(level: float, power: float, variance: float, distance: float) -> int:
    check_shares(confidence=(level, 0, 1), power=(power, 0, 1))
    if not (math.isfinite(variance) and variance >= 0):
        raise ConfigError(f"The variance is {variance}; it is finite and 0 or more.")
    z = NormalDist().inv_cdf(level) + NormalDist().inv_cdf(power)
    return max(2, math.ceil(z**2 * variance / distance / distance))  # distance**2 may overflow
