"""KL(policy || reference) of completions, from exact next-token divergences."""

from __future__ import annotations

import numpy as np

from rlhf.evaluation.measures import exact_token_kls, why_no_kl, why_not_comparable
from rlhf.evaluation.metrics.metric_inputs import MetricInputs
from rlhf.evaluation.metrics.unit_statistics import Measured, missing, ratio


def kl_divergence(inputs: MetricInputs) -> Measured:
    """Nats per completion, and per token as part ``per_token``.

        KL(completion) = mean over samples of sum_t KL(policy(. | prefix_t) || reference(. | prefix_t))
        per_token      = sum over all completions / number of all tokens

    Completions that the length limit cut count as far as they go, so the sum is that of texts of at most so many tokens
    (``truncated_frac`` says how many). Missing where the reference reads other token ids. Source: ``rlhf.evaluation.measures.exact_token_kls``.
    """
    assert inputs.needs.ref_model is not None
    reason = why_no_kl(inputs.sampling) or why_not_comparable(inputs.model, inputs.needs.ref_model)
    if reason is not None:
        return missing(reason)
    tokens = exact_token_kls(
        inputs.model,
        inputs.needs.ref_model,
        inputs.prompts,
        inputs.completions,
        temperature=inputs.sampling.temperature,
    )
    sums = [float(each.sum()) for each in tokens]
    lengths = [float(len(each)) for each in tokens]
    per_token = ratio(inputs.per_prompt(sums), inputs.per_prompt(lengths))
    cut = np.mean([completion.truncated for completion in inputs.flat])
    return Measured(
        value=inputs.mean(sums),
        parts={"per_token": per_token},
        about={"estimator": "exact next-token KL, summed", "truncated_frac": float(cut)},
    )
