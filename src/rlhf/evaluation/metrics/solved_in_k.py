"""pass@k: how many prompts are solved within k samples."""

from __future__ import annotations

import numpy as np

from rlhf.evaluation.metrics.metric_inputs import MetricInputs
from rlhf.evaluation.metrics.unit_statistics import MeanStatistic, Measured
from rlhf.evaluation.pass_at_k import pass_at_k


def solved_in_k(inputs: MetricInputs) -> Measured:
    """pass@1, and as parts pass@k for powers of two up to the samples of a prompt; the judge's score decides (``solved_at``).

        pass@k = mean over prompts of 1 - C(n - c, k) / C(n, k)

    Source: Chen et al. 2021, eq. 1, arXiv:2107.03374.
    """
    counts = [len(group) for group in inputs.completions]
    solved = np.array(inputs.judged.scores) >= inputs.needs.solved_at
    ends = np.cumsum(counts)
    right = [int(solved[end - count : end].sum()) for end, count in zip(ends, counts, strict=True)]
    most = min(counts)
    ks = sorted({*(2**power for power in range(most.bit_length())), most})
    by_k = {k: MeanStatistic(pass_at_k(right, counts, k), share=True) for k in ks}
    return Measured(
        value=by_k[1],
        parts={str(k): statistic for k, statistic in by_k.items() if k > 1},
        about={"solved_at": inputs.needs.solved_at, "samples_per_prompt": most},
    )
