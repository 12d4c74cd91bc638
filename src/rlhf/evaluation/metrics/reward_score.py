"""Mean score of a reward, and of the judge."""

from __future__ import annotations

from rlhf.evaluation.judges import judge_name
from rlhf.evaluation.metrics.metric_inputs import MetricInputs, about_missing
from rlhf.evaluation.metrics.unit_statistics import Measured


def reward_score(inputs: MetricInputs) -> Measured:
    """Mean over prompts; components of a composite reward are parts. What a reward could not score is counted, never 0."""
    scored = inputs.scored
    reason = next(iter(scored.errors.values()), "no completion has a score")
    assert inputs.needs.reward is not None
    own = inputs.needs.reward.name
    return Measured(
        value=inputs.mean(scored.scores, reason=reason),
        parts={name: inputs.mean(values) for name, values in scored.per_component.items() if name != own},
        about={"reward": own, **about_missing(scored.errors, len(scored.scores))},
    )


def judge_score(inputs: MetricInputs) -> Measured:
    """Mean over prompts; further numbers of the judge's verdicts are parts."""
    judged = inputs.judged
    assert inputs.needs.judge is not None
    return Measured(
        value=inputs.mean(judged.scores),
        parts={name: inputs.mean(values) for name, values in judged.metrics.items()},
        about={"judge": judge_name(inputs.needs.judge)},
    )
