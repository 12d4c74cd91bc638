"""How often a judge that compares sides with people on held-out pairs."""

from __future__ import annotations

import numpy as np

from rlhf.data.expand import text_key
from rlhf.evaluation.comparison import compare_completions
from rlhf.evaluation.metrics.metric_inputs import MetricInputs
from rlhf.evaluation.metrics.reward_accuracy import pair_text, pair_units
from rlhf.evaluation.metrics.unit_statistics import MeanStatistic, Measured


def judge_accuracy(inputs: MetricInputs) -> Measured:
    """Share of pairs on which the judge prefers the chosen completion, ties half, in both orders; pairs of one prompt count as one unit.

    What could not be read has no value, and below 95 % readable verdicts nothing has. Next to ``reward_accuracy``, the same of a reward.
    """
    pairs = inputs.needs.pairs
    comparison = compare_completions(
        [pair.prompt for pair in pairs],
        [pair_text(pair.chosen) for pair in pairs],
        [pair_text(pair.rejected) for pair in pairs],
        inputs.needs.pairwise_judge,
        ended_a=[pair.columns.get("chosen_ended", True) is not False for pair in pairs],
        ended_b=[pair.columns.get("rejected_ended", True) is not False for pair in pairs],
        columns={name: [pair.columns.get(name) for pair in pairs] for pair in pairs[:1] for name in pair.columns},
        clusters=[text_key(pair.prompt) for pair in pairs],
        length_control=False,
    )
    _, places = pair_units(pairs, np.ones(len(pairs), dtype=np.bool_))
    values = np.array(
        [np.nan if value is None else value for value in comparison.per_prompt.values()], dtype=np.float64
    )
    known = np.isfinite(values) if not comparison.reason else np.zeros(len(values), dtype=np.bool_)
    left_out = (
        "per_prompt",
        "win_rate",
        "schema",
        "length_controlled",
        "verdict",
        "more_prompts",
        "correction",
        "change",
    )
    return Measured(
        value=MeanStatistic(values[known], share=True, reason=comparison.reason or "no pair has a verdict"),
        over="pairs",
        places=[place for place, is_known in zip(places, known, strict=True) if is_known],
        about={name: value for name, value in comparison.to_dict().items() if name not in left_out},
    )
