"""Extracts the answer of a completion. Standard library only; time linear in the text."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple


class Verdict(NamedTuple):
    """A verifier's result for one completion."""

    score: float
    formatted: bool
    """The answer stood where answers are marked, and could be read."""


class BadReferenceError(ValueError):
    """A row's reference can't be read; completes "its column 'answer' ..."."""


_PHRASE = re.compile(r"\b(?:final\s+)?answer(?:\s+is(?:\s*:)?|\s*:)[ \t*]*", re.IGNORECASE)
_DIVISION = re.compile(r"\.(?=\s|$)|\n|$")


def after_hashes(text: str) -> str | None:
    """Behind the last ``####``, up to the end of the line: the form of GSM8K's own solutions."""
    _, mark, rest = text.rpartition("####")
    return rest.partition("\n")[0].strip() if mark else None


def boxed(text: str) -> str | None:
    r"""Inside the last ``\boxed{...}``, braces in pairs; None where they are not."""
    start = text.rfind("\\boxed{")
    if start < 0:
        return None
    depth, first = 0, start + len("\\boxed")
    for place in range(first, len(text)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if depth == 0:
            return text[first + 1 : place].strip()
    return None


def after_phrase(text: str) -> str | None:
    """Behind the last "the answer is" or "answer:", up to the end of the sentence or line."""
    phrases = list(_PHRASE.finditer(text))
    if not phrases:
        return None
    last = phrases[-1]
    end = _DIVISION.search(text, last.end())
    assert end is not None  # the end of the text, if nothing else
    return text[last.end() : end.start()].strip().rstrip("*").strip()


def whole(text: str) -> str:
    """All of it."""
    return text.strip()


MARKS: Mapping[str, Callable[[str], str | None]] = {
    "hashes": after_hashes,
    "boxed": boxed,
    "phrase": after_phrase,
    "whole": whole,
}
"""Name in a recipe -> what it finds; ``last_number`` is ``numeric``'s own."""


def marked(text: str, where: Sequence[str]) -> str | None:
    """The answer at the first of these marks that the text has."""
    for name in where:
        answer = MARKS[name](text)
        if answer is not None:
            return answer
    return None
