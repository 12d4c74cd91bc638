"""How many pairs a reward model wants, from how right it became on some of them: a learning curve, fitted and read off.

    accuracy(n) = ceiling - gap n^-exponent           on held-out pairs, after training on n

No published curve carries over to another model and another question, so the curve is fitted to at least two points of one's
own. Two or three can't pin three numbers down; what they leave open is answered by what is known beforehand, and the interval
says how much that is. Every curve of a grid is weighed by how likely it makes the points (binomial: each is a share of so many
held-out pairs) and by

    exponent    log-normal: median 0.5, 95 % in 0.19 to 1.3. Agnostic learning theory has 1/2 and learning without noise 1
                (Vapnik 1998, "Statistical learning theory"); measured of deep networks are 0.07 to 0.35
                (Hestness et al. 2017, arXiv:1712.00409).
    ceiling, first point
                anywhere, first below ceiling, between a coin and how often the held-out labels are right, above which nothing
                can be measured.

Of the 95 % intervals from accuracies after 250, 500 and 1,000 pairs, on 400 held-out pairs each, 93 to 98 % held the truth in
simulations, by which the prior on ceilings was chosen (ceilings 0.72 to 0.95, exponents 0.3 to 0.9, 250 draws of each). They
know of the held-out pairs' chance and, from four points on, of scatter beyond it; what another draw of training pairs would do
to two or three points they do not know.

Sources: the form and the fit to shares of a test set, Figueroa et al. 2012, "Predicting sample size required for classification
performance", BMC Med. Inform. Decis. Mak. 12:8. What judgments that err are worth: ``rlhf.feedback.planning.label_worth``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtrc

from rlhf.errors import ConfigError
from rlhf.evaluation.intervals import Estimate
from rlhf.formatting import percentage

Array = NDArray[np.float64]
EXPONENT, EXPONENT_SPREAD = 0.5, 0.5
"""Median of the exponent before anything was measured, and the deviation of its logarithm; see above."""
CELLS = (48, 48, 24)
"""Ceilings, first points and exponents of the grid, which is laid three times, each time where the likely curves are."""
LEAST_WEIGHT = 1e-4
"""Of the likeliest value of a parameter: less likely ones are left out of the next grid."""
COIN_ERRORS = 1.96
"""Standard errors of a coin within which an accuracy does not differ from one: the 95 % interval by Wilson's score holds 1/2."""
UNBELIEVABLE = 4.0
"""Standard errors by which a measured accuracy may lie above what the held-out labels allow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredAccuracy:
    """A reward model that was trained and held against pairs it had not seen."""

    pairs: int
    """That it was trained on."""
    accuracy: float
    """Share of the held-out pairs that it orders as their labels do."""
    held_out: int
    """How many those are."""

    @property
    def may_be_a_coin(self) -> bool:
        """Not distinguished from one half, or below it: nothing was learned that so many held-out pairs show."""
        return self.accuracy - 0.5 <= COIN_ERRORS * 0.5 / math.sqrt(self.held_out)


@dataclass(frozen=True, slots=True, kw_only=True)
class PairsNeeded:
    """Pairs after which an accuracy is reached, over all curves that fit."""

    pairs: float
    """Median; infinite where the likelier curves never come so far."""
    low: float
    high: float
    """Ends of the 95 % interval; infinite where more than 2.5 % of the curves never come so far."""
    reach_frac: float
    """Weight of the curves that come so far at all."""

    def times(self, factor: float) -> PairsNeeded:
        """The same with pairs whose labels are worth more or less."""
        return replace(self, pairs=self.pairs * factor, low=self.low * factor, high=self.high * factor)


@dataclass(frozen=True, slots=True)
class LearningCurve:
    """Curves that fit, each with its weight. All arrays are [curves]."""

    ceilings: Array
    firsts: Array
    """Accuracy after as many pairs as the smallest measured point has."""
    exponents: Array
    weights: Array
    """Sum to 1."""
    first_pairs: int
    num_points: int
    likelihood_of_scatter: float
    """Chance that points on the best curve scatter about it as these do or more; small where no curve of this form fits."""

    @property
    def ceiling(self) -> Estimate:
        """What no number of such pairs goes beyond."""
        return self._estimate(self.ceilings)

    def accuracy_at(self, pairs: float) -> Estimate:
        """Measured on held-out pairs like those behind the points."""
        return self._estimate(
            self.ceilings - (self.ceilings - self.firsts) * (pairs / self.first_pairs) ** -self.exponents
        )

    def pairs_for(self, accuracy: float) -> PairsNeeded:
        """Pairs for an accuracy on held-out pairs like those behind the points.

        Raises:
            ConfigError: It is not a share above one half.
        """
        if not 0.5 < accuracy < 1:
            raise ConfigError(
                f"The accuracy to reach is {accuracy:g}; it must be above 0.5, the accuracy of a coin, and below 1."
            )
        reaches = self.ceilings > accuracy
        ratio = (self.ceilings - self.firsts) / np.where(reaches, self.ceilings - accuracy, 1.0)
        with np.errstate(over="ignore"):
            pairs = np.where(reaches, self.first_pairs * ratio ** (1 / self.exponents), math.inf)
        low, middle, high = _weighted_quantiles(pairs, self.weights)
        return PairsNeeded(pairs=middle, low=low, high=high, reach_frac=float(self.weights[reaches].sum()))

    def _estimate(self, values: Array) -> Estimate:
        low, middle, high = _weighted_quantiles(values, self.weights)
        return Estimate(value=middle, low=low, high=high, n=self.num_points)


def fit_learning_curve(points: Sequence[MeasuredAccuracy], *, label_accuracy: float = 1.0) -> LearningCurve:
    """Weigh all curves by the points.

    Where four points or more scatter about the best curve more than so many held-out pairs explain, the rest is taken to differ
    from run to run, and every point counts for that much less.

    Args:
        points: At least two different numbers of pairs; several runs of one number are welcome.
        label_accuracy: How often the labels of the held-out pairs are right; no curve goes beyond.

    Raises:
        ConfigError: A point or a share is out of its range, there are too few, one lies so far above ``label_accuracy`` that
            it can't be true, or none is distinguished from a coin.
    """
    _check(points, label_accuracy)
    pairs, accuracy, held_out = (
        np.array([getattr(point, name) for point in points], dtype=float) for name in ("pairs", "accuracy", "held_out")
    )
    first = pairs.min()
    spread = EXPONENT_SPREAD * 3
    axes = [
        _Axis(0.5, label_accuracy, CELLS[0]), _Axis(0.0, 1.0, CELLS[1]),
        _Axis(math.log(EXPONENT) - spread, math.log(EXPONENT) + spread, CELLS[2]),
    ]  # fmt: skip
    for _ in range(3):
        ceilings, shares, logs = np.meshgrid(*(axis.values() for axis in axes), indexing="ij")
        firsts, exponents = 0.5 + shares * (ceilings - 0.5), np.exp(logs)
        # a share of the way to the ceiling covers more accuracies the higher that is
        prior = np.log(ceilings - 0.5) - (((logs - math.log(EXPONENT)) / EXPONENT_SPREAD) ** 2) / 2
        curves = [ceilings - (ceilings - firsts) * (n / first) ** -exponents for n in pairs]
        scatter, likelihood = _likelihood(curves, accuracy, held_out)
        log_weights = prior + likelihood
        weights = np.exp(log_weights - log_weights.max())
        axes = [axis.narrowed(weights, number) for number, axis in enumerate(axes)]
    weights /= weights.sum()
    kept = weights > 0
    return LearningCurve(
        ceilings=ceilings[kept], firsts=firsts[kept], exponents=exponents[kept], weights=weights[kept], first_pairs=int(first),
        num_points=len(points), likelihood_of_scatter=float(chdtrc(_freedom(len(points)), scatter)),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Axis:
    """Cells of one parameter, each standing for its middle."""

    low: float
    high: float
    cells: int

    def values(self) -> Array:
        return self.low + (np.arange(self.cells) + 0.5) * (self.high - self.low) / self.cells

    def narrowed(self, weights: Array, number: int) -> _Axis:
        """To where weights of the grid are, and a cell more on either side."""
        others = tuple(axis for axis in range(weights.ndim) if axis != number)
        likely = weights.sum(others)
        places = np.flatnonzero(likely > LEAST_WEIGHT * likely.max())
        width = (self.high - self.low) / self.cells
        low = max(self.low, self.low + (places[0] - 1) * width)
        high = min(self.high, self.low + (places[-1] + 2) * width)
        return _Axis(float(low), float(high), self.cells)


def _freedom(num_points: int) -> int:
    """Of the scatter about the best curve; what is known of the exponent beforehand leaves one to few points."""
    return max(1, num_points - 3)


def _likelihood(curves: Sequence[Array], accuracy: Array, held_out: Array) -> tuple[float, Array]:
    """Scatter about the best curve, in squared standard errors, and the log-likelihood of each.

    Binomial, divided by how many times more the points scatter than binomials would, where they are enough to tell.
    """
    bounded = [np.clip(curve, 1e-9, 1 - 1e-9) for curve in curves]
    total = np.zeros_like(curves[0])
    for curve, right, number in zip(bounded, accuracy, held_out, strict=True):
        total += number * (right * np.log(curve) + (1 - right) * np.log1p(-curve))
    best = np.array([curve.flat[total.argmax()] for curve in bounded])
    scatter = float((held_out * (accuracy - best) ** 2 / (best * (1 - best))).sum())
    return scatter, total / max(1.0, scatter / _freedom(len(curves))) if len(curves) >= 4 else total


def _weighted_quantiles(values: Array, weights: Array) -> tuple[float, float, float]:
    """At 2.5, 50 and 97.5 % of the weight."""
    order = np.argsort(values)
    reached = np.cumsum(weights[order])
    places = np.searchsorted(reached, np.array([0.025, 0.5, 0.975]) * reached[-1])
    low, middle, high = values[order][places].tolist()
    return low, middle, high


def _check(points: Sequence[MeasuredAccuracy], label_accuracy: float) -> None:
    if not 0.5 < label_accuracy <= 1:
        raise ConfigError(
            f"The held-out labels are right {percentage(label_accuracy)} of the time; nothing can be measured on them unless they are right "
            "more often than a coin."
        )
    for point in points:
        if point.pairs < 1 or point.held_out < 1 or not 0 <= point.accuracy <= 1:
            raise ConfigError(
                f"A point says {point.accuracy:g} after {point.pairs} pairs, of {point.held_out} held-out ones; an accuracy lies "
                "between 0 and 1, and there is at least one pair of either."
            )
        error = math.sqrt(label_accuracy * (1 - label_accuracy) / point.held_out)
        if point.accuracy > label_accuracy + UNBELIEVABLE * error:
            raise ConfigError(
                f"An accuracy of {point.accuracy:g} after {point.pairs:,} pairs was measured on {point.held_out:,} held-out pairs, "
                f"whose labels are said to be right {percentage(label_accuracy)} of the time: no model can agree with them more often. "
                "The annotators are better than that, or the held-out pairs were labeled more carefully: say how well."
            )
    if len({point.pairs for point in points}) < 2:
        raise ConfigError(
            "A learning curve takes accuracies after at least two different numbers of pairs; train on a half of yours as well."
        )
    if all(point.may_be_a_coin for point in points):
        said = ", ".join(f"{point.accuracy:g} after {point.pairs:,} pairs of {point.held_out:,}" for point in points)
        raise ConfigError(
            f"None of the accuracies ({said} held-out ones) differs from a coin's 0.5, so there is no curve to draw. The models "
            "learned nothing yet: most often learning_rate is too small or the steps are too few. Choose a rate that works, train "
            "the same number of steps (max_steps) at every size, and measure on more held-out pairs if it stays so."
        )
