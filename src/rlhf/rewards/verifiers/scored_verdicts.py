"""From verdicts on single completions to a scorer's result; references, and what is wrong with them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from rlhf.data.contracts import Prompt
from rlhf.data.verifiable import is_verifiable
from rlhf.errors import did_you_mean
from rlhf.rewards.checked_values import refuse
from rlhf.rewards.types import CompletionLike, OnError, ScoreResult
from rlhf.rewards.worker import OURS, Failure

NO_REFERENCE = Failure(
    "its reference is null or its row says `verifiable: false` (the reward does not apply), and no other reward judges the sample"
)


class Judged(Protocol):
    """What ``judged`` needs of a scorer."""

    name: str
    on_error: OnError


def reference_of(prompt: Prompt, column: str) -> tuple[Any, Failure | None]:
    """A row's reference, or why it has none; null is a reference and means, like `verifiable: false`, that the reward does not apply."""
    try:
        if is_verifiable(prompt.columns) is False:
            return None, None
    except ValueError as err:
        return None, Failure(str(err))
    if column in prompt.columns:
        return prompt.columns[column], None
    own = [name for name in sorted(prompt.columns) if name not in OURS]
    have = ", ".join(own) or "no other columns"
    return None, Failure(
        f"its row has no column {column!r}, which holds the reference (it has {have}).{did_you_mean(column, own)} "
        "Name the right one under `column`, or add it to the rows; null says that this reward does not apply"
    )


def result(
    scorer: Judged,
    scores: Sequence[float | None],
    failures: Mapping[int, Failure],
    parts: Mapping[str, list[float | None]],
    prompts: Sequence[Prompt],
    completions: Sequence[CompletionLike],
) -> ScoreResult:
    """The result of a verifier that judges alone.

    Raises:
        RewardError: A sample has no score, and the scorer was not built to report that.
    """
    failures = {place: NO_REFERENCE for place, score in enumerate(scores) if score is None} | dict(failures)
    if scorer.on_error == "raise":
        refuse(f"The reward {scorer.name}", failures, prompts, completions)
    raw = {scorer.name: list(scores)} | {f"{scorer.name}/{part}": values for part, values in parts.items()}
    return ScoreResult(
        [math.nan if score is None else score for score in scores],
        raw,
        {place: failure.reason for place, failure in sorted(failures.items())},
    )
