"""Checks of values returned by user code, one per completion; errors name the sample."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from rlhf.data.contracts import Prompt
from rlhf.data.message_text import counted
from rlhf.errors import RewardError
from rlhf.rewards.types import CompletionLike, OnError, ScoreResult, sample_name
from rlhf.rewards.worker import CallError, Failure, Odd

LONGEST_COMPLETION = 80
"""Characters of a completion that a message repeats."""
NONE_ALONE = Failure("it returned None (does not apply), and no other reward judges the sample")


def checked(verdicts: Sequence[float | Odd | None], count: int) -> tuple[list[float | None], dict[int, Failure]]:
    """Verdicts [count], None for missing or invalid ones, and the errors by position.

    Raises:
        CallError: There are more or fewer than ``count``.
    """
    if len(verdicts) != count:
        raise CallError(
            Failure(
                f"it returned {counted(len(verdicts), 'number')} for {counted(count, 'completion')}; it must return one for each",
                wrong_count=True,
            )
        )
    failures = {}
    for place, verdict in enumerate(verdicts):
        if isinstance(verdict, Odd) or (verdict is not None and not math.isfinite(verdict)):
            shown = verdict.shown if isinstance(verdict, Odd) else verdict
            failures[place] = Failure(
                f"it returned {shown}, which is not a finite number; return a number, or None where it does not apply"
            )
    return [None if place in failures or isinstance(v, Odd) else v for place, v in enumerate(verdicts)], failures


def refuse(
    who: str, failures: Mapping[int, Failure], prompts: Sequence[Prompt], completions: Sequence[CompletionLike]
) -> None:
    """Raise for the first sample that failed, if any.

    Raises:
        RewardError: Names the sample, its place, and how its completion begins; a function's traceback is a note.
    """
    if not failures:
        return
    place, failure = min(failures.items())
    text = repr(completions[place].text[:LONGEST_COMPLETION])
    number = f", number {place + 1} of {len(completions)}" if len(completions) > 1 else ""
    raise refusal(
        f"{who} failed on sample {sample_name(prompts[place], completions[place])}{number}: {failure.reason}. "
        f"The completion begins {text}.",
        failure,
    )


def refusal(message: str, failure: Failure) -> RewardError:
    """An error with the function's own traceback as a note, which a traceback shows and one sentence does not."""
    error = RewardError(message)
    if failure.trace:
        error.add_note(f"Inside the reward function:\n{failure.trace.rstrip()}")
    return error


def score_result(name: str, verdicts: Sequence[float | None], failures: Mapping[int, Failure]) -> ScoreResult:
    """The result of a single judge: NaN where there is no verdict, which then has an error."""
    scores = [math.nan if verdict is None else verdict for verdict in verdicts]
    return ScoreResult(scores, {name: list(verdicts)}, {place: f.reason for place, f in sorted(failures.items())})


def result_of_model(
    who: str,
    name: str,
    scores: Sequence[float],
    prompts: Sequence[Prompt],
    completions: Sequence[CompletionLike],
    *,
    on_error: OnError,
) -> ScoreResult:
    """The result of a model that judges, where a score that is not finite is a failure.

    Args:
        who: How errors name the model.
        name: What the result calls it.
        scores: [S].
        prompts: [S].
        completions: [S].
        on_error: ``raise`` for the first failure, or ``report`` them in the result.

    Raises:
        RewardError: A score is not finite, and ``on_error`` says so.
    """
    failures = {
        place: Failure(f"it gave the score {score}; its weights hold NaN or infinity, or overflowed in half precision")
        for place, score in enumerate(scores)
        if not math.isfinite(score)
    }
    if on_error == "raise":
        refuse(who, failures, prompts, completions)
    return score_result(name, [None if place in failures else score for place, score in enumerate(scores)], failures)
