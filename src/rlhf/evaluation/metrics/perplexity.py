"""Perplexity of given texts."""

from __future__ import annotations

import numpy as np

from rlhf.evaluation.metrics.metric_inputs import MetricInputs
from rlhf.evaluation.metrics.unit_statistics import Measured, ratio


def perplexity(inputs: MetricInputs) -> Measured:
    """exp of the negative log-likelihood per token, summed over the corpus and then divided.

        exp(sum of nll over all texts / number of all scored tokens)

    A number of one tokenizer: a model with longer tokens has a higher perplexity for the same likelihood. Compare across tokenizers by
    ``bits_per_byte``. See ``text_likelihood`` for what is scored.
    """
    likelihood = inputs.likelihood
    return Measured(
        value=ratio(likelihood.nll, likelihood.num_tokens, then=np.exp),
        over="texts",
        about={"num_tokens": int(likelihood.num_tokens.sum()), "window_tokens": likelihood.window},
    )
