"""How long completions are, and how many the limit cut."""

from __future__ import annotations

from functools import partial

import numpy as np

from rlhf.evaluation.intervals import Array
from rlhf.evaluation.metrics.metric_inputs import MetricInputs
from rlhf.evaluation.metrics.unit_statistics import Measured, ResampledStatistic


def length(inputs: MetricInputs) -> Measured:
    """Median tokens over all completions; parts: ``p95``, ``mean``, ``truncated_frac``.

    Lengths are counted in the model's own tokens, so they do not compare across tokenizers. A completion that was cut counts as long as
    it is: with many of those, ``p95`` is the limit. Quality at equal length is the metric ``quality_at_equal_length``.
    """
    fewest = min(len(group) for group in inputs.completions)
    rows = np.array([[float(len(c.tokens)) for c in group[:fewest]] for group in inputs.completions])
    return Measured(
        value=ResampledStatistic(rows, partial(_quantile, share=0.5)),
        parts={
            "p95": ResampledStatistic(rows, partial(_quantile, share=0.95)),
            "mean": inputs.mean([float(len(c.tokens)) for c in inputs.flat]),
            "truncated_frac": inputs.mean([float(c.truncated) for c in inputs.flat], share=True),
        },
        about={"limit": inputs.sampling.max_new_tokens},
    )


def _quantile(draws: Array, *, share: float) -> Array:
    array: Array = np.quantile(draws.reshape(len(draws), -1), share, axis=1)
    return array
