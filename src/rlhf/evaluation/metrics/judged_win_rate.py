"""How often the judge prefers the model to its baseline."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlhf.evaluation.comparison import compare_completions
from rlhf.evaluation.judges import judge_name
from rlhf.evaluation.metrics.metric_inputs import MetricInputs
from rlhf.evaluation.metrics.unit_statistics import MeanStatistic, Measured
from rlhf.evaluation.winrate import outcomes


def judged_win_rate(inputs: MetricInputs) -> Measured:
    """Share of prompts that the model wins, a tie counting half; samples of a prompt are averaged first.

    See ``rlhf.evaluation.winrate`` for the formula and its sources.
    """
    assert inputs.baseline is not None
    if inputs.needs.judge is None:
        return _by_pairs(inputs, inputs.baseline)
    ours, theirs = np.array(inputs.judged.scores), np.array(inputs.baseline.judged.scores)
    won = outcomes(ours, theirs, inputs.needs.tie_band)
    counts = {name: int((won == value).sum()) for name, value in (("wins", 1.0), ("ties", 0.5), ("losses", 0.0))}
    return Measured(
        value=inputs.mean(won.tolist(), share=True),
        about={"judge": judge_name(inputs.needs.judge), "tie_band": inputs.needs.tie_band, **counts},
    )


def _by_pairs(inputs: MetricInputs, baseline: MetricInputs) -> Measured:
    """By a judge that compares, in both orders; what it did not say in a form that can be read has no value."""
    places = [place for place, group in enumerate(inputs.completions) for _ in group]
    texts: list[Any] = [prompt.messages or prompt.text for prompt in inputs.prompts]
    comparison = compare_completions(
        [texts[place] for place in places],
        [completion.text for completion in inputs.flat],
        [completion.text for completion in baseline.flat],
        inputs.needs.pairwise_judge,
        ended_a=[not completion.truncated for completion in inputs.flat],
        ended_b=[not completion.truncated for completion in baseline.flat],
        columns={name: [inputs.prompts[place].columns.get(name) for place in places] for name in _columns(inputs)},
        clusters=places,
        length_control=False,
    )
    values = np.array(
        [np.nan if value is None else value for value in comparison.per_prompt.values()], dtype=np.float64
    )
    readable = not comparison.reason
    about = {
        name: value
        for name, value in comparison.to_dict().items()
        if name not in ("per_prompt", "win_rate", "schema", "length_controlled")
    }
    return Measured(
        value=MeanStatistic(
            values if readable else np.full(len(values), np.nan), True, comparison.reason or "no pair has a verdict"
        ),
        about=about,
    )


def _columns(inputs: MetricInputs) -> list[str]:
    return list(dict.fromkeys(name for prompt in inputs.prompts for name in prompt.columns))
