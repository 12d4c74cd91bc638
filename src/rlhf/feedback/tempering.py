"""How sure Dawid-Skene may be: its probabilities, tempered on judgments that it was not learned from.

Dawid-Skene multiplies the judgments of an item as if annotators erred independently. On an item that is hard for
everybody they err together, and forty such judgments make a wrong label certain. So n judgments of an item count as

    n / T,   T = 1 + (n - 1) correlation

which is the design effect of samples drawn in clusters: one judgment counts fully, and many correlated ones together
as at most 1 / correlation. The correlation is the one number that predicts held-out judgments best:

    P(annotator a says v of item i)  =  (1 - slip) * sum over c of P(truth of i = c | other judgments, correlation) * confusion[a, c, v]
                                        + slip * share of v among all judgments

The slip, fitted next to it, takes up that tables of confusion are learned from truths which the same judgments decided, and so
flatter everybody a little, on every item alike. Without it an independent crowd would be called correlated.

Sources: Kish 1965, "Survey sampling", section 5.4 (design effect); Guo et al. 2017, "On calibration of modern neural
networks", arXiv:1706.04599 (one temperature, fitted on held-out data).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar

from rlhf.data.message_text import counted
from rlhf.feedback.agreement import Labels
from rlhf.feedback.label_aggregation import Array, DawidSkene, dawid_skene, posterior

NUM_FOLDS = 5
"""Each judgment is held out once, with at most about a fifth of its item's others."""
MIN_ITEMS = 20
"""Items with three judgments or more below which nothing is fitted: with two, one is left when the other is held out, and
one judgment is correlated with nothing."""
MIN_GAIN = 10.0
"""Nats of held-out log-likelihood, over all judgments, that a correlation must gain. Simulated crowds that err independently (100
to 10,000 items, three to five judgments each) gained up to 10 in 48 runs, whatever their size; VADER's raters gain hundreds."""
MAX_ROUNDS = 200
"""Of the iteration that finds the slip."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tempering:
    """What held-out judgments said of the probabilities."""

    correlation: float = 0.0
    """Of the judgments of one item, beyond what its truth explains; 0 leaves Dawid-Skene's probabilities as they are."""
    num_held_out: int = 0
    """Judgments that were predicted from others."""
    before: float = math.nan
    """Mean negative log-likelihood of those judgments without tempering, in nats; with the best slip, as ``after`` is."""
    after: float = math.nan
    """And with it."""
    reason: str = ""
    """Why nothing was measured; empty where it was."""

    def effective(self, num_judgments: float) -> float:
        """How many independent judgments so many of one item count as."""
        return num_judgments / (1 + max(num_judgments - 1, 0) * self.correlation)

    def to_dict(self) -> dict[str, object]:
        """For JSON."""
        if self.reason:
            return {"correlation": None, "reason": self.reason}
        held_out = {"num_judgments": self.num_held_out, "nll_before": self.before, "nll_after": self.after}
        return {"correlation": self.correlation, "held_out": held_out}

    def __str__(self) -> str:
        """One sentence or two for anyone who reads the probabilities."""
        if self.reason:
            return (
                f"Dawid-Skene's probabilities are not checked ({self.reason}): they hold only if annotators err "
                "independently."
            )
        held_out = f"{counted(self.num_held_out, 'held-out judgment')}"
        if not self.correlation:
            return f"Dawid-Skene's probabilities are not tempered: {held_out} do not show that they are too sure."
        return (
            f"Dawid-Skene's probabilities are tempered: judgments of one item are correlated by {self.correlation:.2g}, so n of them "
            f"count as n / (1 + {self.correlation:.2g} (n - 1)). Negative log-likelihood of {held_out}: {self.before:.3f} before, "
            f"{self.after:.3f} after."
        )


def tempered_dawid_skene(
    labels: Labels, *, smoothing: float = 0.01, right_prior: float = 0.0, seed: int = 0
) -> tuple[DawidSkene, Tempering]:
    """Dawid-Skene with probabilities that are as sure as held-out judgments allow.

    Args:
        labels: Judgments.
        smoothing: See ``dawid_skene``.
        right_prior: See ``dawid_skene``.
        seed: Of which judgments are held out together.

    Returns:
        The consensus, whose probabilities are tempered, and how; confusion tables and reliabilities are not changed.

    Raises:
        ConfigError: Smoothing or the prior is negative.
    """
    fitted = dawid_skene(labels, smoothing=smoothing, right_prior=right_prior)
    counts = labels.counts().sum(1)
    if (counts >= 3).sum() < MIN_ITEMS:
        few = f"it takes {MIN_ITEMS} items with three judgments or more, and there {_are((counts >= 3).sum())}"
        return fitted, Tempering(reason=few)
    folds = _folds(labels, seed)
    parts = [_held_out(labels, folds == fold, smoothing, right_prior) for fold in range(NUM_FOLDS)]
    shares = labels.counts().sum(0) / len(labels.items)
    by_chance = np.concatenate([shares[part.values] for part in parts])
    num = len(by_chance)

    def loss(correlation: float) -> float:
        return _least_loss(np.concatenate([part.likelihoods(correlation) for part in parts]), by_chance)

    before = loss(0.0)
    best = minimize_scalar(
        loss,
        bounds=(0.0, 1.0), method="bounded", options={"xatol": 1e-3},
    )  # fmt: skip
    if before - best.fun < MIN_GAIN:
        return fitted, Tempering(num_held_out=num, before=before / num, after=before / num)
    tempering = Tempering(correlation=float(best.x), num_held_out=num, before=before / num, after=float(best.fun) / num)
    return replace(fitted, probabilities=_tempered(fitted, counts, tempering.correlation)), tempering


def _are(number: int) -> str:
    return "is none" if number == 0 else f"{'is' if number == 1 else 'are'} {number}"


def _tempered(fitted: DawidSkene, counts: Array, correlation: float) -> Array:
    """[items, k]: the evidence of an item's judgments counts by one over its temperature; the prior counts fully."""
    temperature = 1 + np.maximum(counts - 1, 0) * correlation
    return posterior(fitted.prior, fitted.evidence / temperature[:, None])


@dataclass(frozen=True, slots=True)
class _HeldOut:
    """Judgments that were held out together, and what was learned from the others."""

    fitted: DawidSkene
    counts: Array
    """[items] judgments that are left of each."""
    items: NDArray[np.int64]
    """[n] of the held-out judgments."""
    values: NDArray[np.int64]
    """[n] places on the scale of what was said."""
    answers: Array
    """[n, k] probability of what was said, by what is the truth."""

    def likelihoods(self, correlation: float) -> Array:
        """[n] of the held-out judgments, without a slip."""
        truth = _tempered(self.fitted, self.counts, correlation)[self.items]
        return np.asarray((truth * self.answers).sum(1))


def _least_loss(likelihoods: Array, by_chance: Array) -> float:
    """Negative log-likelihood, in nats, of (1 - slip) likelihoods + slip by_chance, at the best slip."""
    slip, mixed = 0.05, likelihoods
    for _ in range(MAX_ROUNDS):  # expectation maximization of one weight: each round is an improvement
        mixed = (1 - slip) * likelihoods + slip * by_chance
        following = float(np.mean(slip * by_chance / mixed))
        if abs(following - slip) < 1e-5:
            break
        slip = following
    return -float(np.log(mixed).sum())


def _held_out(labels: Labels, out: NDArray[np.bool_], smoothing: float, right_prior: float) -> _HeldOut:
    fitted = dawid_skene(_only(labels, ~out), smoothing=smoothing, right_prior=right_prior, tolerance=1e-5)
    counts = np.bincount(labels.items[~out], minlength=len(labels.item_names)).astype(float)
    covered = out & (counts[labels.items] > 0)  # of an item of which nothing is left, nothing is predicted
    answers = fitted.confusion[labels.annotators[covered], :, labels.values[covered]]
    return _HeldOut(fitted, counts, labels.items[covered], labels.values[covered], answers)


def _only(labels: Labels, kept: NDArray[np.bool_]) -> Labels:
    return replace(labels, items=labels.items[kept], annotators=labels.annotators[kept], values=labels.values[kept])


def _folds(labels: Labels, seed: int) -> NDArray[np.int64]:
    """[n] in which fold each judgment is held out: those of one item are spread evenly."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(labels.items))
    order = order[np.argsort(labels.items[order], kind="stable")]
    sorted_items = labels.items[order]
    place = np.arange(len(order)) - np.searchsorted(sorted_items, sorted_items)
    folds = np.empty(len(order), dtype=np.int64)
    folds[order] = (place + rng.integers(0, NUM_FOLDS, len(labels.item_names))[sorted_items]) % NUM_FOLDS
    return folds
