"""The answer equals the reference exactly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlhf.rewards.verifiers.answers import BadReferenceError, Verdict, marked


def verify(text: str, reference: Any, *, where: Sequence[str], ignore_case: bool) -> Verdict:
    """1 where the answer equals the reference, or one of several, apart from white space.

    Args:
        text: The completion.
        reference: A text or a list of texts; numbers are read as they are written.
        where: Marks at which an answer is looked for, in order.
        ignore_case: Capitals don't matter.

    Raises:
        BadReferenceError: The reference is something else.
    """
    wanted = {_plain(item, ignore_case) for item in _texts(reference)}
    answer = marked(text, where)
    if answer is None:
        return Verdict(0.0, False)
    return Verdict(float(_plain(answer, ignore_case) in wanted), True)


def _texts(reference: Any) -> list[str]:
    items = reference if isinstance(reference, list | tuple) else [reference]
    if not items or not all(isinstance(item, str | int | float) for item in items):
        raise BadReferenceError(f"holds {str(reference)[:60]!r}; wanted a text or a list of texts")
    return [str(item) for item in items]


def _plain(text: str, ignore_case: bool) -> str:
    text = " ".join(text.split())
    return text.casefold() if ignore_case else text
