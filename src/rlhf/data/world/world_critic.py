"""The embedded world's rules as a critic of searches: it names the first sentence that should not stand there."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from rlhf.data.world.judge import Verdict, judge

_SENTENCE = re.compile(r"\s*\S.*?(?:[.!?](?= |\Z)|\Z)", re.DOTALL)
FAULTS = {
    "wrong": "claims something false",
    "rude": "is rude",
    "extras": "is needed for nothing",
    "unparsable": "is not in the language",
}
"""What a sentence may add to a verdict -> how it is said."""


def world_critic(
    prompts: Sequence[str], completions: Sequence[str], rejected: Sequence[str | None]
) -> list[dict[str, Any] | None]:
    """What is wrong with each answer; None for one that is right, polite and nothing else.

    Args:
        prompts: [n] prompts of this world, as the model saw them.
        completions: [n] answers that came to their own end.
        rejected: [n] not looked at.

    Raises:
        DataError: A prompt is not of this world.
    """
    return [_critique(prompt, completion) for prompt, completion in zip(prompts, completions, strict=True)]


def _critique(prompt: str, completion: str) -> dict[str, Any] | None:
    before = judge(prompt, "", ended=True)
    for sentence in _SENTENCE.finditer(completion):
        after = judge(prompt, completion[: sentence.end()], ended=True)
        if fault := _fault(before, after):
            text = f"The sentence {sentence[0].strip()!r} {FAULTS[fault]}; what stands before it can stay."
            return {"text": text, "keep": sentence.start()}
        before = after
    lacks = [name for name, there in (("the answer", before.correct), ("a courtesy", before.polite)) if not there]
    return {"text": f"It lacks {' and '.join(lacks)}.", "keep": len(completion)} if lacks else None


def _fault(before: Verdict, after: Verdict) -> str | None:
    """What a sentence made worse; None where it did no harm."""
    return next((name for name in FAULTS if getattr(after, name) > getattr(before, name)), None)
