"""How often a reward orders held-out pairs as people did."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rlhf.data.contracts import PreferenceRow, Prompt, Text
from rlhf.data.expand import text_key
from rlhf.evaluation.intervals import Array, unit_means
from rlhf.evaluation.metrics.metric_inputs import MetricInputs, about_missing, score_all
from rlhf.evaluation.metrics.unit_statistics import MeanStatistic, Measured
from rlhf.rewards.types import Scorer, ScoreResult, TextCompletion


def reward_accuracy(inputs: MetricInputs) -> Measured:
    """Share of pairs whose chosen completion scores higher, ties half; pairs of one prompt count as one unit.

    A pair of which one side has no score counts as neither right nor wrong.
    """
    assert inputs.needs.reward is not None
    pairs = inputs.needs.pairs
    scored = pair_scores(inputs.needs.reward, pairs)
    difference = differences(scored)
    right = np.where(np.isfinite(difference), (np.sign(difference) + 1) / 2, np.nan)
    known = np.isfinite(right)
    units, places = pair_units(pairs, known)
    per_prompt = unit_means(right[known], units)
    reason = next(iter(scored.errors.values()), "there are no pairs")
    return Measured(
        value=MeanStatistic(per_prompt, share=True, reason=reason),
        over="pairs",
        places=places,
        about={"num_pairs": len(pairs), "num_ties": int((difference == 0).sum())}
        | about_missing(scored.errors, 2 * len(pairs)),
    )


def pair_units(pairs: Sequence[PreferenceRow], known: NDArray[np.bool_]) -> tuple[list[str], list[int]]:
    """The prompt of each pair that is known, and the first of those pairs of each prompt, in the order of ``unit_means``."""
    at = np.flatnonzero(known).tolist()
    prompts = [text_key(pairs[i].prompt) for i in at]
    first: dict[str, int] = {}
    for prompt, i in zip(prompts, at, strict=True):
        first.setdefault(prompt, i)
    return prompts, list(first.values())


def pair_scores(scorer: Scorer, pairs: Sequence[PreferenceRow]) -> ScoreResult:
    """[2 P] scores of the chosen completions, then of the rejected ones; NaN with a reason where one failed."""
    prompts = [
        Prompt(
            pair.id, [], pair_text(pair.prompt), messages=pair.prompt if isinstance(pair.prompt, list) else None,
            columns=pair.columns,
        )
        for pair in pairs
    ]  # fmt: skip
    said = [TextCompletion(pair_text(side)) for side in (*(p.chosen for p in pairs), *(p.rejected for p in pairs))]
    return score_all(scorer, [*prompts, *prompts], said)


def differences(score_result: ScoreResult) -> Array:
    """[P] chosen minus rejected."""
    scores = np.array(score_result.scores, dtype=np.float64)
    half = len(scores) // 2
    difference: Array = scores[:half] - scores[half:]
    return difference


def pair_text(text: Text) -> str:
    """A side or a prompt as one text; of messages their contents."""
    return text if isinstance(text, str) else "\n".join(str(message["content"]) for message in text)
