"""The completion matches a regular expression; it may backtrack endlessly, so this runs in a worker."""

from __future__ import annotations

import re
from typing import Any

from rlhf.rewards.verifiers.answers import BadReferenceError, Verdict


def check_reference(reference: Any) -> None:
    """Refuse what is not text.

    Raises:
        BadReferenceError: It is not.
    """
    if not isinstance(reference, str | int | float):
        raise BadReferenceError(f"holds {str(reference)[:60]!r}; wanted the text that the pattern's group should find")


def prepare() -> None:
    """There is nothing to load."""


def verify(text: str, reference: Any, *, pattern: str, full: bool) -> Verdict:
    """1 where the pattern is found and, where there is a reference, its first group holds that.

    Args:
        text: The completion.
        reference: What the group should hold, apart from white space around it; None where the form is all.
        pattern: A regular expression of Python's ``re``.
        full: It must match the whole completion.
    """
    matched = re.compile(pattern).fullmatch(text) if full else re.compile(pattern).search(text)
    if matched is None:
        return Verdict(0.0, False)
    if reference is None:
        return Verdict(1.0, True)
    return Verdict(float((matched[1] or "").strip() == str(reference).strip()), True)
