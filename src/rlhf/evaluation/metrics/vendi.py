"""Effective number of different completions."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike

from rlhf.errors import ConfigError
from rlhf.evaluation.intervals import Array
from rlhf.evaluation.measures import WORDS
from rlhf.evaluation.metrics.metric_inputs import MetricInputs
from rlhf.evaluation.metrics.unit_statistics import CorpusStatistic, Measured

MAX_TEXTS = 300
"""Eigenvalues cost the cube of the number of texts; of more prompts the first completions of the first so many are taken."""


def vendi_score(similarity: ArrayLike) -> float:
    """exp of the entropy of the eigenvalues of K / n: n if nothing is alike, 1 if all is equal.

    Source: Friedman and Dieng 2022, "The Vendi Score", definition 3.1, arXiv:2210.02410.

    Args:
        similarity: [n, n] K, symmetric, positive semi-definite, ones on the diagonal.
    """
    k = np.asarray(similarity, dtype=np.float64)
    if k.ndim != 2 or k.shape[0] != k.shape[1] or not np.allclose(np.diag(k), 1) or not np.allclose(k, k.T):
        raise ConfigError("A similarity matrix is square and symmetric, with ones on its diagonal.")
    if not k.size:
        return math.nan
    weights = np.linalg.eigvalsh(k / len(k))
    weights = weights[weights > 1e-12]
    return float(np.exp(-(weights * np.log(weights)).sum()))


def vendi(inputs: MetricInputs) -> Measured:
    """Vendi score of the first completion of each prompt, by the cosine of their counts of words and pairs of words.

    Words say nothing of meaning: two paraphrases count as different. At most ``MAX_TEXTS`` texts, so it is at most that.
    """
    texts = [group[0] for group in inputs.texts[:MAX_TEXTS]]
    k = _cosines(texts)

    def score(numbers: Sequence[int]) -> float:
        chosen = list(numbers)
        return vendi_score(k[np.ix_(chosen, chosen)])

    about = {"num_texts": len(texts), "similarity": "cosine of counts of words and pairs of words"}
    return Measured(
        value=CorpusStatistic(score, tuple(range(len(texts))), limits=(1.0, float(len(texts))), grows=True),
        places=range(len(texts)),
        about=about,
    )


def _cosines(texts: Sequence[str]) -> Array:
    counts = []
    for text in texts:
        words = WORDS.findall(text.lower())
        counts.append(Counter([*words, *pairwise(words)]) or Counter([""]))  # an empty text is like another
    place = {piece: number for number, piece in enumerate(dict.fromkeys(p for each in counts for p in each))}
    table = np.zeros((len(texts), len(place)))
    for row, each in enumerate(counts):
        for piece, count in each.items():
            table[row, place[piece]] = count
    table /= np.linalg.norm(table, axis=1, keepdims=True)
    array: Array = np.clip(table @ table.T, 0, 1)
    np.fill_diagonal(array, 1.0)
    return array
