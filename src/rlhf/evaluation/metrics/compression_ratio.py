"""How far all completions together can be compressed."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence

from rlhf.evaluation.metrics.metric_inputs import MetricInputs
from rlhf.evaluation.metrics.unit_statistics import CorpusStatistic, Measured


def compression_ratio(inputs: MetricInputs) -> Measured:
    """UTF-8 bytes of all completions, one a line, over bytes after zlib at level 9; higher means more repetition.

    A number of the whole corpus: of single texts it mostly measures length (exponent 0.24), and it grows with the number of texts, so compare
    equally many. Source: Shaib et al. 2024, "Standardizing the Measurement of Text Diversity", arXiv:2403.00553.
    """
    lines = ["\n".join(group).encode() for group in inputs.texts]

    def compressed(numbers: Sequence[int]) -> float:
        whole = b"\n".join(lines[i] for i in numbers)
        return len(whole) / len(zlib.compress(whole, 9)) if whole.strip() else math.nan

    return Measured(value=CorpusStatistic(compressed, tuple(range(len(lines))), limits=(0.0, math.inf), grows=True))
