"""From several judgments of an item to one, with how likely it is to be right: majority, Dawid-Skene.

    majority_vote      every annotator counts the same
    dawid_skene        each annotator has a table of what they answer when the truth is c; learned without knowing the truth

Both take any number of values. Dawid-Skene's probabilities hold if annotators err independently; where they do not,
``rlhf.feedback.tempering`` measures it on held-out judgments and corrects them.

The probability of the winner is the reward model's soft label: the column ``label_probability``, which
``use_label_probability`` reads; 0.5 for a coin's throw and 1 for certainty.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from rlhf.errors import ConfigError
from rlhf.feedback.agreement import Labels

Array = NDArray[np.float64]
LEAST_LOG = -700.0
"""Log of the least probability of an answer: without smoothing, one that an annotator never gave counts as that, not as
impossible, of which the product with nothing would not be a number."""


@dataclass(frozen=True, slots=True)
class Consensus:
    """One value for each item."""

    items: tuple[Hashable, ...]
    scale: tuple[Any, ...]
    probabilities: Array
    """[items, k] of each value to be the true one."""
    reliability: dict[Hashable, float]
    """Annotator to the estimated probability of a right judgment, on an item drawn like these."""

    @property
    def values(self) -> list[Any | None]:
        """The likeliest value of each item; None where two are equally likely."""
        values: list[Any | None] = []
        for row in self.probabilities:
            best = row.max()
            winners = np.flatnonzero(np.isclose(row, best, rtol=0, atol=1e-12))
            values.append(self.scale[winners[0]] if len(winners) == 1 else None)
        return values

    @property
    def label_probabilities(self) -> list[float]:
        """Probability of the likeliest value of each item."""
        return [float(row.max()) for row in self.probabilities]


def majority_vote(labels: Labels) -> Consensus:
    """Shares of the judgments; an annotator's reliability is their agreement with the majority of the *others*.

    Counting an annotator's own judgment into the majority they are compared with would flatter them.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class DawidSkene(Consensus):
    """What Dawid-Skene learned, besides the values."""

    prior: Array
    """[k] share of each value among the truths."""
    confusion: Array
    """[annotators, k, k] probability of an answer (last axis) where the truth is c (middle axis)."""
    evidence: Array
    """[items, k] log-likelihood of an item's judgments where the truth is c, as if they were independent."""
    annotators: tuple[Hashable, ...]


def dawid_skene(
    labels: Labels,
    *,
    smoothing: float = 0.01,
    right_prior: float = 0.0,
    max_iterations: int = 500,
    tolerance: float = 1e-8,
) -> DawidSkene:
    """Truth of each item and confusion table of each annotator, together, by expectation maximization.

        E  P(truth of i = c)  ~  prior[c] * product over judgments (i, a, v) of confusion[a, c, v]
        M  confusion[a, c, v] ~  sum over items that a gave v of P(truth = c);   prior[c] ~ sum over items of P(truth = c)

    It starts from the majority's shares, so the scale keeps its names. Smoothing, in judgments, keeps an annotator of few
    items from being taken for infallible. Where most items have one judgment, the data alone say nothing of who is right,
    and iterations without ``right_prior`` end anywhere, with probabilities near 1.

    Source: Dawid and Skene 1979, "Maximum likelihood estimation of observer error-rates using the EM algorithm".

    Args:
        labels: Judgments; items with one judgment count too.
        smoothing: Judgments added to every cell of every confusion table.
        right_prior: Judgments added to every cell where answer and truth agree: the belief that people mostly are right.
        max_iterations: Of E and M together.
        tolerance: Largest change of a probability that ends the iteration.

    Returns:
        See ``DawidSkene``. An item without a judgment, which a part of the data may have, gets the prior.

    Raises:
        ConfigError: Smoothing or the prior is negative or not finite.
    """
    if not (0 <= smoothing < math.inf and 0 <= right_prior < math.inf):
        raise ConfigError(
            f"smoothing is {smoothing} and right_prior {right_prior}; they are numbers of judgments, at least 0."
        )
    counts = labels.counts()
    judged = counts.sum(1) > 0
    truth = np.where(judged[:, None], counts, 1.0)
    truth /= truth.sum(1, keepdims=True)
    num_annotators, num_values = len(labels.annotator_names), len(labels.scale)
    # [annotators * k, items] with a 1 where an annotator gave an item a value: both steps are products with it
    given = sparse.csr_array(
        (np.ones(len(labels.items)), (labels.annotators * num_values + labels.values, labels.items)),
        shape=(num_annotators * num_values, len(truth)),
    )
    received = given.T.tocsr()
    for _ in range(max_iterations):
        confusion = (given @ truth).reshape(num_annotators, num_values, num_values).swapaxes(1, 2)
        confusion = confusion + smoothing + right_prior * np.eye(num_values)
        confusion /= np.maximum(confusion.sum(2, keepdims=True), 1e-300)
        prior = truth[judged].mean(0)
        with np.errstate(divide="ignore"):
            logs = np.maximum(np.log(confusion), LEAST_LOG).swapaxes(1, 2)
            evidence = received @ logs.reshape(num_annotators * num_values, num_values)
        estimate = posterior(prior, evidence)
        change = float(np.abs(estimate - truth).max())
        truth = estimate
        if change < tolerance:
            break
    right = np.einsum("c,acc->a", prior, confusion)
    return DawidSkene(
        items=labels.item_names, scale=labels.scale, probabilities=truth,
        reliability=dict(zip(labels.annotator_names, right.tolist(), strict=True)),
        prior=prior, confusion=confusion, evidence=evidence, annotators=labels.annotator_names,
    )  # fmt: skip


def posterior(prior: Array, evidence: Array) -> Array:
    """[items, k] probability of each value, from its share among the truths and [items, k] log-likelihoods."""
    with np.errstate(divide="ignore"):
        scores = np.log(prior) + evidence
    scores -= scores.max(1, keepdims=True)
    weights = np.exp(scores)
    return np.asarray(weights / weights.sum(1, keepdims=True))
