"""Bits that a model needs for a byte of given texts."""

from __future__ import annotations

import math

from rlhf.evaluation.metrics.metric_inputs import MetricInputs
from rlhf.evaluation.metrics.unit_statistics import Measured, ratio


def bits_per_byte(inputs: MetricInputs) -> Measured:
    """Negative log-likelihood of all texts over log 2 times their UTF-8 bytes; the same unit for every tokenizer."""
    likelihood = inputs.likelihood
    return Measured(
        value=ratio(likelihood.nll, likelihood.num_bytes * math.log(2)),
        over="texts",
        about={"num_bytes": int(likelihood.num_bytes.sum()), "window_tokens": likelihood.window},
    )
