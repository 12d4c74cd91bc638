"""From several judgements of an item to one, with how likely it is to be right: majority, Dawid-Skene, Bradley-Terry.

    majority_vote      every annotator counts the same
    dawid_skene        each annotator has a table of what they answer when the truth is c; learned without knowing the truth
    crowd_bradley_terry  each completion has a strength and each annotator a reliability; for comparisons of several models

From the probability p of the winner comes the reward model's soft label: ``use_confidence`` takes 2p - 1 in the column
``confidence``, 0 for a coin's throw and 1 for certainty.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit, log_expit

from rlhf.errors import ConfigError, DataError
from rlhf.feedback.agreement import Labels

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Consensus:
    """One value for each item."""

    items: tuple[Hashable, ...]
    scale: tuple[Any, ...]
    probabilities: Array
    """[items, k] of each value to be the true one."""
    reliability: dict[Hashable, float]
    """Annotator to the estimated probability of a right judgement, on an item drawn like these."""

    @property
    def values(self) -> list[Any | None]:
        """The likeliest value of each item; None where two are equally likely."""
        found: list[Any | None] = []
        for row in self.probabilities:
            best = row.max()
            winners = np.flatnonzero(np.isclose(row, best, rtol=0, atol=1e-12))
            found.append(self.scale[winners[0]] if len(winners) == 1 else None)
        return found

    @property
    def confidences(self) -> list[float]:
        """Probability of the likeliest value of each item."""
        return [float(row.max()) for row in self.probabilities]


def majority_vote(labels: Labels) -> Consensus:
    """Shares of the judgements; an annotator's reliability is their agreement with the majority of the *others*.

    Counting an annotator's own judgement into the majority they are compared with would flatter them.
    """
    counts = labels.counts()
    shares = counts / counts.sum(1, keepdims=True)
    agreed = np.zeros(len(labels.annotator_names))
    compared = np.zeros(len(labels.annotator_names))
    for item, annotator, value in zip(labels.items, labels.annotators, labels.values, strict=True):
        others = counts[item].copy()
        others[value] -= 1
        if others.sum() == 0:
            continue
        winners = np.flatnonzero(others == others.max())
        compared[annotator] += 1
        agreed[annotator] += (value in winners) / len(winners)
    with np.errstate(invalid="ignore"):
        reliability = agreed / compared
    return Consensus(
        labels.item_names, labels.scale, shares, dict(zip(labels.annotator_names, reliability.tolist(), strict=True))
    )


def dawid_skene(
    labels: Labels,
    *,
    smoothing: float = 0.01,
    right_prior: float = 0.0,
    max_iterations: int = 500,
    tolerance: float = 1e-8,
) -> Consensus:
    """Truth of each item and confusion table of each annotator, together, by expectation maximisation.

        E  P(truth of i = c)  ~  prior[c] * product over judgements (i, a, v) of confusion[a, c, v]
        M  confusion[a, c, v] ~  sum over items that a gave v of P(truth = c);   prior[c] ~ sum over items of P(truth = c)

    It starts from the majority's shares, so the scale keeps its names. Smoothing, in judgements, keeps an annotator of few
    items from being taken for infallible. Where most items have one judgement, the data alone say nothing of who is right,
    and iterations without ``right_prior`` end anywhere, with probabilities near 1.

    Source: Dawid and Skene 1979, "Maximum likelihood estimation of observer error-rates using the EM algorithm".

    Args:
        labels: Judgements; items with one judgement count too.
        smoothing: Judgements added to every cell of every confusion table.
        right_prior: Judgements added to every cell where answer and truth agree: the belief that people mostly are right.
        max_iterations: Of E and M together.
        tolerance: Largest change of a probability that ends the iteration.

    Returns:
        See ``Consensus``.

    Raises:
        ConfigError: Smoothing or the prior is negative.
    """
    if min(smoothing, right_prior) < 0:
        raise ConfigError(
            f"smoothing is {smoothing} and right_prior {right_prior}; they are numbers of judgements, at least 0."
        )
    counts = labels.counts()
    truth = counts / counts.sum(1, keepdims=True)
    num_annotators, num_values = len(labels.annotator_names), len(labels.scale)
    confusion = np.empty((num_annotators, num_values, num_values))
    prior = np.empty(num_values)
    for _ in range(max_iterations):
        confusion[:] = smoothing + right_prior * np.eye(num_values)
        np.add.at(confusion.swapaxes(1, 2), (labels.annotators, labels.values), truth[labels.items])
        confusion /= np.maximum(confusion.sum(2, keepdims=True), 1e-300)
        prior = truth.mean(0)
        with np.errstate(divide="ignore"):
            scores = np.tile(np.log(prior), (len(truth), 1))
            np.add.at(scores, labels.items, np.log(confusion)[labels.annotators, :, labels.values])
        scores -= scores.max(1, keepdims=True)
        found = np.exp(scores)
        found /= found.sum(1, keepdims=True)
        change = float(np.abs(found - truth).max())
        truth = found
        if change < tolerance:
            break
    right = np.einsum("c,acc->a", prior, confusion)
    return Consensus(
        labels.item_names, labels.scale, truth, dict(zip(labels.annotator_names, right.tolist(), strict=True))
    )


@dataclass(frozen=True, slots=True)
class Comparison:
    """One judgement of two competitors."""

    annotator: Hashable
    winner: Hashable
    loser: Hashable
    is_tie: bool = False


@dataclass(frozen=True, slots=True)
class Strengths:
    """What ``crowd_bradley_terry`` found."""

    strengths: dict[Hashable, float]
    """Log-odds against an average competitor; mean 0."""
    reliability: dict[Hashable, float]
    """Annotator to the probability that they report what they see, in (0, 1); 1/2 is chance, below it the wrong way round."""
    loss: float
    """Mean negative log-likelihood of a comparison, nats, without the prior."""

    def win_probability(self, first: Hashable, second: Hashable) -> float:
        """That a reliable annotator prefers the first."""
        return float(expit(self.strengths[first] - self.strengths[second]))


def crowd_bradley_terry(
    comparisons: Sequence[Comparison], *, prior: float = 0.1, reliability_prior: tuple[float, float] = (8.0, 2.0)
) -> Strengths:
    """Strengths of competitors and reliabilities of annotators from comparisons, together, by maximum a posteriori.

        P(a reports i > j) = eta_a sigmoid(s_i - s_j) + (1 - eta_a) sigmoid(s_j - s_i)

    A tie is half a win for each. The prior on strengths, ``prior / 2`` times their squares, keeps an unbeaten competitor
    and groups that never met finite; eta has a Beta prior with most of its weight above one half, which also says which way
    round is right.

    Source: Chen et al. 2013, "Pairwise ranking aggregation in a crowdsourced setting", eqs. 5 to 7 (WSDM).

    Args:
        comparisons: At least one.
        prior: Weight of the strengths' squares; above 0.
        reliability_prior: Parameters of eta's Beta prior, both above 1.

    Returns:
        See ``Strengths``.

    Raises:
        DataError: There is no comparison, or one of a competitor with itself.
        ConfigError: A prior is out of range.
    """
    if not comparisons:
        raise DataError("There is no comparison; wanted at least one.")
    if prior <= 0 or min(reliability_prior) <= 1:
        raise ConfigError(
            f"prior is {prior} and reliability_prior {reliability_prior}; the first must be above 0, the others above 1."
        )
    if alone := next((c for c in comparisons if c.winner == c.loser), None):
        raise DataError(f"{alone.annotator!r} compared {alone.winner!r} with itself.")
    names = list(dict.fromkeys(name for c in comparisons for name in (c.winner, c.loser)))
    people = list(dict.fromkeys(c.annotator for c in comparisons))
    place, person = {n: i for i, n in enumerate(names)}, {n: i for i, n in enumerate(people)}
    who = np.array([person[c.annotator] for c in comparisons])
    won = np.array([place[c.winner] for c in comparisons])
    lost = np.array([place[c.loser] for c in comparisons])
    tie = np.array([c.is_tie for c in comparisons])
    a, b = reliability_prior

    def likelihood(parameters: Array) -> tuple[Array, Array, Array, Array]:
        """Per comparison: log P, its derivative by the margin, by the annotator's logit, and P."""
        margin = parameters[won] - parameters[lost]
        eta = expit(parameters[len(names) :])[who]
        seen = expit(margin)
        probability = eta * seen + (1 - eta) * (1 - seen)
        slope = seen * (1 - seen)
        forwards = (2 * eta - 1) * slope / probability
        by_logit = (2 * seen - 1) * eta * (1 - eta) / probability
        backwards = -(2 * eta - 1) * slope / (1 - probability)
        by_logit_back = -(2 * seen - 1) * eta * (1 - eta) / (1 - probability)
        log = np.where(tie, (np.log(probability) + np.log1p(-probability)) / 2, np.log(probability))
        return (
            log,
            np.where(tie, (forwards + backwards) / 2, forwards),
            np.where(tie, (by_logit + by_logit_back) / 2, by_logit),
            probability,
        )

    def loss(parameters: Array) -> tuple[float, Array]:
        log, by_margin, by_logit, _ = likelihood(parameters)
        strengths, logits = parameters[: len(names)], parameters[len(names) :]
        eta = expit(logits)
        value = -log.sum() + prior / 2 * (strengths**2).sum()
        value -= ((a - 1) * log_expit(logits) + (b - 1) * log_expit(-logits)).sum()
        gradient = np.zeros_like(parameters)
        np.add.at(gradient, won, -by_margin)
        np.add.at(gradient, lost, by_margin)
        gradient[: len(names)] += prior * strengths
        np.add.at(gradient, len(names) + who, -by_logit)
        gradient[len(names) :] -= (a - 1) * (1 - eta) - (b - 1) * eta
        return float(value), gradient

    start = np.concatenate([np.zeros(len(names)), np.full(len(people), math.log((a - 1) / (b - 1)))])
    found = minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": 5000, "ftol": 1e-14, "gtol": 1e-9})
    strengths = found.x[: len(names)] - found.x[: len(names)].mean()
    log, *_ = likelihood(found.x)
    return Strengths(
        dict(zip(names, strengths.tolist(), strict=True)),
        dict(zip(people, expit(found.x[len(names) :]).tolist(), strict=True)),
        float(-log.mean()),
    )
