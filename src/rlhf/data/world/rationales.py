"""Why the embedded world's annotator prefers a completion, in words: what a generative reward model learns to think.

As in ``pairs``, the annotator sees the truth and slips only when it names the better one: the reasons for a flipped label contradict it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlhf.data.world.judge import judge


def rationales(
    prompts: Sequence[str], first: Sequence[str], second: Sequence[str], verdicts: Sequence[str], **columns: Any
) -> list[str]:
    """A line about each completion: ``A: That is right. Polite.``; for ``rationale`` of a stage ``judge_rows``.

    Args:
        prompts: [n] of the world.
        first: [n] completions that are shown first.
        second: [n] the others.
        verdicts: [n] not looked at.
        columns: Of the pairs; whether a completion came to its own end is not shown to a judge, and so gives no reason.
    """
    return [
        f"A: {reasons(prompt, a)}\nB: {reasons(prompt, b)}" for prompt, a, b in zip(prompts, first, second, strict=True)
    ]


def reasons(prompt: str, completion: str) -> str:
    """What is good and bad about one completion."""
    judged = judge(prompt, completion, ended=True)
    said = ["That is right." if judged.correct else "That is wrong." if judged.wrong else "No answer."]
    said += ["Polite."] * judged.polite + ["Rude."] * (judged.rude > 0)
    said += [f"{judged.extras} more."] * (judged.extras > 0) + ["No sentence."] * (judged.unparsable > 0)
    return " ".join(said)
