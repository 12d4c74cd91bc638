"""From several judgements of an item to one, with how likely it is to be right: majority, Dawid-Skene.

    majority_vote      every annotator counts the same
    dawid_skene        each annotator has a table of what they answer when the truth is c; learned without knowing the truth

From the probability p of the winner comes the reward model's soft label: ``use_confidence`` takes 2p - 1 in the column
``confidence``, 0 for a coin's throw and 1 for certainty.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlhf.errors import ConfigError
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
