"""Quality of a reward model: does it agree with human preferences, and is it calibrated?

Measured on held-out pairs. P is the number of pairs, d = score of chosen - score of rejected.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import minimize_scalar

from rlhf.errors import ConfigError
from rlhf.evaluation.intervals import (
    CONFIDENCE,
    Array,
    Estimate,
    finite_or_none,
    mean_interval,
    share_interval,
    wilson_interval,
)
from rlhf.seeds import derive_seed

NUM_BINS = 10
NULL_DRAWS = 400
LOG_SCALE_BOUND = math.log(1e4)
"""The fitted scale is looked for between this many times smaller and larger; pairs that the scores separate perfectly
have none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bin:
    """Pairs on which the model is about equally sure."""

    low: float
    high: float
    count: int
    confidence: float
    """Mean probability that the model gives to the completion it prefers."""
    accuracy: Estimate
    """Share of the pairs in which it is right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Whether the model's probabilities are true."""

    scale: float
    """Probabilities are sigmoid(scale * d), where no threshold was learned."""
    threshold: float
    """The lead below which the model calls two completions equal, in units of scale * d; 0 for Bradley and Terry's model,
    which knows no ties."""
    log_loss: float
    """Mean of -log P(chosen beats rejected), nats; log 2 = 0.693 is a coin."""
    brier: float
    """Mean of (1 - P(chosen beats rejected))^2; 0.25 is a coin."""
    expected_error: float
    """Mean over pairs of |confidence - accuracy| of the pair's bin (ECE)."""
    expected_error_null: float
    """What ``expected_error`` would be on average if the probabilities were exactly true: with few pairs it is far
    from 0."""
    bins: tuple[Bin, ...]
    """Those with pairs in them."""

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "scale": self.scale,
            "threshold": self.threshold,
            "log_loss": finite_or_none(self.log_loss),
            "brier": finite_or_none(self.brier),
            "expected_error": finite_or_none(self.expected_error),
            "expected_error_null": finite_or_none(self.expected_error_null),
            "bins": [
                {
                    "low": b.low,
                    "high": b.high,
                    "count": b.count,
                    "confidence": b.confidence,
                    "accuracy": b.accuracy.to_dict(),
                }
                for b in self.bins
            ],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardQuality:
    """A reward model on held-out pairs."""

    accuracy: Estimate
    """Share of pairs in which the chosen completion scores higher; a tie counts half."""
    accuracy_clean: Estimate
    """The same against the true preference, if the pairs mark wrong labels (``flipped``)."""
    ties: int
    margin: Estimate
    """Mean of d."""
    calibration: Calibration | None
    """At the model's own scale; None without pairs."""
    fitted_scale: float
    """The scale at which the probabilities fit these pairs best: below 1 the model is too sure of itself; NaN where the
    scores separate the pairs perfectly (or are all equal) and no finite scale is best."""

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "accuracy": self.accuracy.to_dict(),
            "accuracy_clean": self.accuracy_clean.to_dict(),
            "ties": self.ties,
            "margin": self.margin.to_dict(),
            "calibration": self.calibration.to_dict() if self.calibration else None,
            "fitted_scale": finite_or_none(self.fitted_scale),
        }


def reward_quality(
    chosen_scores: ArrayLike,
    rejected_scores: ArrayLike,
    *,
    flipped: Sequence[bool] | None = None,
    scale: float = 1.0,
    threshold: float = 0.0,
    seed: int = 0,
    confidence: float = CONFIDENCE,
) -> RewardQuality:
    """Accuracy, ties and calibration.

    Args:
        chosen_scores: [P].
        rejected_scores: [P].
        flipped: [P] True if the label is known to be wrong (``chosen`` is the worse one); None if unknown.
        scale: What turns a score difference into Bradley-Terry logits: the deviation that normalized scores were
            divided by.
        threshold: See ``calibration``.
        seed: For the null of the calibration error.
        confidence: Share of intervals that hold the truth.
    """
    chosen, rejected = np.asarray(chosen_scores, dtype=np.float64), np.asarray(rejected_scores, dtype=np.float64)
    if chosen.shape != rejected.shape:
        raise ConfigError(f"Pairs need a score on both sides; got {chosen.size} chosen and {rejected.size} rejected.")
    if flipped is not None and len(flipped) != len(chosen):
        raise ConfigError(f"There are {len(flipped)} flip marks for {len(chosen)} pairs; give one for each.")
    difference = chosen - rejected
    usable = bool(difference.size) and bool(np.isfinite(difference).all())
    if flipped is None:
        clean = Estimate.missing("the pairs do not mark wrong labels", n=len(difference))
    else:
        clean = pair_accuracy(np.where(np.asarray(flipped, dtype=bool), -difference, difference), confidence=confidence)
    return RewardQuality(
        accuracy=pair_accuracy(difference, confidence=confidence),
        accuracy_clean=clean,
        ties=int((difference == 0).sum()),
        margin=mean_interval(difference, confidence=confidence),
        calibration=calibration(difference, scale=scale, threshold=threshold, seed=seed, confidence=confidence)
        if usable
        else None,
        fitted_scale=fitted_scale(difference) if usable else math.nan,
    )


def pair_accuracy(difference: ArrayLike, *, confidence: float = CONFIDENCE) -> Estimate:
    """Share of pairs with d > 0; d = 0 counts half, so that a constant score is right half the time and not never.

    Args:
        difference: [P] score of chosen minus rejected.
        confidence: Share of intervals that hold the truth.
    """
    d = np.asarray(difference, dtype=np.float64)
    return share_interval(np.where(np.isfinite(d), (np.sign(d) + 1) / 2, np.nan), confidence=confidence)


def calibration(
    difference: ArrayLike,
    *,
    scale: float = 1.0,
    threshold: float = 0.0,
    num_bins: int = NUM_BINS,
    seed: int = 0,
    confidence: float = CONFIDENCE,
) -> Calibration:
    """Compare how sure the model is with how often it is right.

        P = sigmoid(x),  confidence = max(P, 1 - P),  right = [d > 0], 1/2 for d = 0
        log loss = mean -log P,  Brier = mean (1 - P)^2,  ECE = sum over bins of count/P |accuracy - confidence|

    A pair has no first and second side of its own, so the reliability is that of the side the model prefers, in bins of
    equal width from 1/2 to 1. Without a threshold x = scale d. A model that was taught ties says of win, tie and loss how
    likely they are; these pairs were decided, so what it says of them is win against loss,

        x = log(sigmoid(scale d - t) / sigmoid(-scale d - t)),

    which is more confident than sigmoid(scale d): an annotator who saw a difference saw one larger than the threshold t. ECE is biased
    upwards: with true probabilities it is about 0.03 for 1,000 pairs, so the mean under that null is drawn and reported
    with it.

    Sources: Guo et al. 2017, section 2, arXiv:1706.04599 (reliability, ECE); Brier 1950; null: research/evaluation.md,
        section 2.

    Args:
        difference: [P] score of chosen minus rejected, finite, at least one.
        scale: See above.
        threshold: t, at least 0: Rao and Kupper's, or the first margin of a graded scale.
        num_bins: Bins between 1/2 and 1.
        seed: Names the draws of the null.
        confidence: Share of intervals that hold the truth.
    """
    lead = np.asarray(difference, dtype=np.float64) * scale
    d = np.logaddexp(0, lead + threshold) - np.logaddexp(0, threshold - lead) if threshold else lead
    sure = 1 / (1 + np.exp(-np.abs(d)))
    right = (np.sign(d) + 1) / 2
    which = np.minimum(((sure - 0.5) * 2 * num_bins).astype(np.int64), num_bins - 1)
    rng = np.random.default_rng(derive_seed(seed, "calibration null"))
    null = [
        _binned_error(sure, (rng.random(len(d)) < sure).astype(np.float64), which, num_bins) for _ in range(NULL_DRAWS)
    ]
    bins = []
    for b in range(num_bins):
        inside = which == b
        if inside.any():
            bins.append(
                Bin(
                    low=0.5 + b / (2 * num_bins),
                    high=0.5 + (b + 1) / (2 * num_bins),
                    count=int(inside.sum()),
                    confidence=float(sure[inside].mean()),
                    accuracy=wilson_interval(float(right[inside].sum()), int(inside.sum()), confidence=confidence),
                )
            )
    return Calibration(
        scale=scale,
        threshold=threshold,
        log_loss=float(np.logaddexp(0, -d).mean()),
        brier=float(np.square(1 / (1 + np.exp(np.clip(d, -700, 700)))).mean()),
        expected_error=_binned_error(sure, right, which, num_bins),
        expected_error_null=float(np.mean(null)),
        bins=tuple(bins),
    )


def fitted_scale(difference: ArrayLike) -> float:
    """The factor on d that minimizes the log loss: temperature scaling with T = 1 / factor.

    Source: Guo et al. 2017, section 4.2, arXiv:1706.04599.

    Args:
        difference: [P] finite.

    Returns:
        The factor; NaN where the loss has no minimum inside the bounds, because the pairs are separated perfectly, all
        wrong, or all tied.
    """
    d = np.asarray(difference, dtype=np.float64)
    if not (d > 0).any() or not (d < 0).any():
        return math.nan
    unit = float(np.abs(d).mean())

    def loss(log_factor: float) -> float:
        return float(np.logaddexp(0, -d / unit * math.exp(log_factor)).mean())

    minimum = minimize_scalar(loss, bounds=(-LOG_SCALE_BOUND, LOG_SCALE_BOUND), method="bounded")
    inside = abs(minimum.x) < 0.99 * LOG_SCALE_BOUND
    return math.exp(minimum.x) / unit if inside else math.nan


def spearman(x: ArrayLike, y: ArrayLike, *, confidence: float = CONFIDENCE) -> Estimate:
    """Rank correlation, ties sharing their mean rank.

        z = atanh(rho) +- z_{1 - alpha/2} sqrt((1 + rho^2 / 2) / (n - 3))

    Source: Bonett and Wright 2000, "Sample size requirements for estimating Pearson, Kendall and Spearman
    correlations", Psychometrika 65, for the interval.

    Args:
        x: [n] independent units.
        y: [n].
        confidence: Share of intervals that hold the truth.

    Returns:
        rho; missing for fewer than four units, or where one side is constant.
    """
    a, b = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if a.shape != b.shape:
        raise ConfigError(f"A correlation needs two values for each sample; got {a.size} and {b.size}.")
    if len(a) < 4:
        return Estimate.missing(f"a rank correlation needs at least 4 samples, there are {len(a)}", n=len(a))
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        return Estimate.missing("some values are not finite", n=len(a))
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        return Estimate.missing("one side is constant, so there is no order to compare", n=len(a))
    rho = float(np.corrcoef(average_ranks(a), average_ranks(b))[0, 1])
    if abs(rho) >= 1 - 1e-12:
        return Estimate(
            value=math.copysign(1.0, rho), low=math.copysign(1.0, rho), high=math.copysign(1.0, rho), n=len(a)
        )
    half = NormalDist().inv_cdf((1 + confidence) / 2) * math.sqrt((1 + rho**2 / 2) / (len(a) - 3))
    z = math.atanh(rho)
    return Estimate(value=rho, low=math.tanh(z - half), high=math.tanh(z + half), n=len(a), confidence=confidence)


def average_ranks(values: Array) -> Array:
    """[n] ranks from 1; equal values share the mean of theirs."""
    _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks: Array = (last - (counts - 1) / 2)[which]
    return ranks


def _binned_error(sure: Array, right: Array, which: np.ndarray[Any, Any], num_bins: int) -> float:
    gap = np.bincount(which, weights=sure - right, minlength=num_bins)
    return float(np.abs(gap).sum() / len(sure))
