"""How often the judge prefers the model to its baseline."""

from __future__ import annotations

import numpy as np

from rlhf.evaluation.judges import judge_name
from rlhf.evaluation.metrics.metric_inputs import MetricInputs
from rlhf.evaluation.metrics.unit_statistics import Measured
from rlhf.evaluation.winrate import outcomes


def judged_win_rate(inputs: MetricInputs) -> Measured:
    """Share of prompts that the model wins, a tie counting half; samples of a prompt are averaged first.

    See ``rlhf.evaluation.winrate`` for the formula and its sources.
    """
    assert inputs.baseline is not None
    assert inputs.needs.judge is not None
    ours, theirs = np.array(inputs.judged.scores), np.array(inputs.baseline.judged.scores)
    won = outcomes(ours, theirs, inputs.needs.tie_band)
    counts = {name: int((won == value).sum()) for name, value in (("wins", 1.0), ("ties", 0.5), ("losses", 0.0))}
    return Measured(
        value=inputs.mean(won.tolist(), share=True),
        about={"judge": judge_name(inputs.needs.judge), "tie_band": inputs.needs.tie_band, **counts},
    )
