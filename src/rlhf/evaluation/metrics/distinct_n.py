"""Different runs of words among all."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rlhf.evaluation.metrics.metric_inputs import MetricInputs
from rlhf.evaluation.metrics.unit_statistics import CorpusStatistic, Measured

NS = (1, 2, 3)


def distinct_words(inputs: MetricInputs) -> Measured:
    """distinct-2 over all completions; distinct-1 and distinct-3 are parts.

        distinct-n = number of different n-grams of words / number of n-grams

    It falls with the number and the length of texts: compare it only between models with equally many completions of about equal length,
    and take ``ead`` otherwise. Source: Li et al. 2016, section 5.2, arXiv:1510.03055.
    """
    words = [[text.split() for text in group] for group in inputs.texts]
    by_n = {n: _distinct(words, n) for n in NS}
    return Measured(value=by_n[2], parts={str(n): statistic for n, statistic in by_n.items() if n != 2})


def _distinct(words: Sequence[Sequence[Sequence[str]]], n: int) -> CorpusStatistic:
    grams = [[tuple(text[i : i + n]) for text in group for i in range(len(text) - n + 1)] for group in words]
    different, totals = [set(each) for each in grams], [len(each) for each in grams]

    def share(numbers: Sequence[int]) -> float:
        total = sum(totals[i] for i in numbers)
        return len(set().union(*(different[i] for i in numbers))) / total if total else math.nan

    return CorpusStatistic(share, tuple(range(len(grams))), limits=(0.0, 1.0), grows=True)
