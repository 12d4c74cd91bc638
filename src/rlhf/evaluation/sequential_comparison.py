"""A win rate whose verdict may be looked at after every prompt."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from rlhf.evaluation.intervals import CONFIDENCE, Array, Estimate, check_confidence
from rlhf.evaluation.sequential import BETS, BettingProcess, mixture_interval


@dataclass(frozen=True, slots=True, kw_only=True)
class SequentialRate:
    """What outcomes in a fixed order say so far."""

    estimate: Estimate
    """Mean with an interval that holds at every number of prompts together."""
    above: bool
    """Whether the mean was shown to be above 1/2, now or after fewer prompts."""
    below: bool
    more: int | None
    """About how many more prompts would tell if the outcomes go on as they are; None where it is known, or nothing can be said."""


def sequential_rate(outcomes: ArrayLike, *, confidence: float = CONFIDENCE) -> SequentialRate:
    """Two betting processes, against a mean of at most 1/2 and of at least 1/2, each at half the error.

    Whoever looks at a fixed-n interval every 10 prompts from 50 to 1,000 calls equal systems different in 31 % of runs; here it is at most
    1 - ``confidence`` over all looks, if prompts are only ever added at the end. Source: Waudby-Smith and Ramdas 2020,
    arXiv:2010.09686; the interval: ``mixture_interval``.

    Args:
        outcomes: [n] 0 to 1, one for each prompt, in the order in which prompts were added.
        confidence: Share of comparisons of equal systems in which neither is ever shown to be better.
    """
    check_confidence(confidence)
    y = np.asarray(outcomes, dtype=np.float64)
    limit = -math.log((1 - confidence) / 2)
    sides = {}
    for side in ("above", "below"):
        process = BettingProcess(0.5, side=side)
        process.update(y)
        sides[side] = process.max_log_e >= limit
    estimate = mixture_interval(y, confidence=confidence)
    if estimate.measured:
        estimate = replace(estimate, low=max(0.0, estimate.low), high=min(1.0, estimate.high))
    return SequentialRate(
        estimate=estimate, above=sides["above"] and not sides["below"], below=sides["below"] and not sides["above"],
        more=None if any(sides.values()) else _more(y, limit),
    )  # fmt: skip


def _more(y: Array, limit: float) -> int | None:
    """Until the best of the bets reaches the limit at its mean growth so far; the average over bets costs log(number of bets)."""
    growth = max(
        (float(np.log1p(bet * sign * (y - 0.5)).mean()) for bet in BETS for sign in (1, -1)), default=0.0
    ) if y.size > 1 else 0.0  # fmt: skip
    if growth <= 0:
        return None
    return max(1, math.ceil((limit + math.log(len(BETS))) / growth) - y.size)
