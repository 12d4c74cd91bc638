"""How alike the samples of a prompt are."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rlhf.errors import require
from rlhf.evaluation.metrics.metric_inputs import MetricInputs
from rlhf.evaluation.metrics.unit_statistics import MeanStatistic, Measured, missing


def self_bleu(inputs: MetricInputs) -> Measured:
    """Mean over prompts of the sentence BLEU of each sample against the other samples of its prompt, 0 to 1; 1: all the same.

    With ``effective_order``, so that texts of fewer than four words count for what they have. An empty completion has none. Within a prompt,
    because different prompts make different texts whatever the model. Source: Zhu et al. 2018, "Texygen", arXiv:1802.01886.
    """
    if min(len(group) for group in inputs.texts) < 2:
        return missing("it compares the samples of a prompt with each other, and there is one; give samples_per_prompt")
    metrics = require("sacrebleu.metrics", extra="eval", needed_for="The metric self_bleu")
    bleu = metrics.BLEU(effective_order=True)
    values = [value for group in inputs.texts for value in _each(bleu, group)]
    mean_statistic = MeanStatistic(inputs.per_prompt(values), share=True, reason="all completions are empty")
    return Measured(
        value=mean_statistic, about={"signature": str(bleu.get_signature()), "samples_per_prompt": len(inputs.texts[0])}
    )


def _each(bleu: object, group: Sequence[str]) -> list[float | None]:
    similarities: list[float | None] = []
    for place, text in enumerate(group):
        others = [other for number, other in enumerate(group) if number != place]
        scored = bleu.sentence_score(text, others) if text.strip() else None  # type: ignore[attr-defined]
        similarities.append(None if scored is None or not math.isfinite(scored.score) else min(1.0, scored.score / 100))
    return similarities
