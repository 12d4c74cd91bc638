"""Distinct tokens, corrected for how many were written."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rlhf.errors import ConfigError
from rlhf.evaluation.metrics.metric_inputs import MetricInputs
from rlhf.evaluation.metrics.unit_statistics import CorpusStatistic, Measured


def expectation_adjusted_distinct(num_distinct: int, num_total: int, vocabulary: int) -> float:
    """Different tokens over how many would be expected of as many tokens drawn evenly from the vocabulary.

        EAD = distinct / (V (1 - ((V - 1) / V)^C))

    Source: Liu et al. 2022, "Rethinking and Refining the Distinct Metric", eq. 5, arXiv:2202.13587.

    Args:
        num_distinct: Different tokens.
        num_total: C, tokens in all.
        vocabulary: V, tokens that could have been written.

    Returns:
        At least 0, rarely above 1; NaN where nothing was written.
    """
    if vocabulary < 1 or not 0 <= num_distinct <= num_total:
        raise ConfigError(
            f"{num_distinct} different of {num_total} tokens from a vocabulary of {vocabulary} can't be; wanted at most as many "
            "different ones as there are."
        )
    if num_total == 0:
        return math.nan
    return num_distinct / (-vocabulary * math.expm1(num_total * math.log1p(-1 / vocabulary))) if vocabulary > 1 else 1.0


def ead(inputs: MetricInputs) -> Measured:
    """Over the token ids of all completions, special tokens left out."""
    special = set(inputs.model.tokenizer.all_special_ids)
    vocabulary = len(inputs.model.tokenizer)
    tokens = [[t for c in group for t in c.sampled_tokens if t not in special] for group in inputs.completions]
    different = [set(each) for each in tokens]

    def corrected(numbers: Sequence[int]) -> float:
        union = set().union(*(different[i] for i in numbers))
        return expectation_adjusted_distinct(len(union), sum(len(tokens[i]) for i in numbers), vocabulary)

    return Measured(
        value=CorpusStatistic(corrected, tuple(range(len(tokens))), limits=(0.0, math.inf), grows=True),
        about={"vocabulary": vocabulary},
    )
