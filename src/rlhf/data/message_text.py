"""How messages call what was found: short, on one line, and printable whatever stood in the file."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable
from typing import Any

LONGEST = 40
"""Characters of a value or a name that a message shows."""
MOST_NAMES = 12
"""Names that a message lists."""

TYPE_NAMES = {
    bool: "true/false",
    int: "a number",
    float: "a number",
    str: "a string",
    list: "a list",
    dict: "an object",
}


def describe(value: Any) -> str:
    """How an error calls a value: its type, and the value itself where it is short, or the beginning of a text."""
    if value is None:
        return "null"
    name = TYPE_NAMES.get(type(value), f"a {type(value).__name__}")
    if isinstance(value, str) and len(value) > LONGEST:
        return f"{name} ({short(value)})"
    try:
        text = _small.repr(value)
    except ValueError:  # an int of more digits than Python writes out
        return name
    return name if len(text) > LONGEST else f"{name} ({text})"


def shown(value: Any) -> str:
    """A value alone, its beginning if it is long."""
    try:
        text = _small.repr(value)
    except ValueError:  # an int of more digits than Python writes out
        return describe(value)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


def short(text: str) -> str:
    """A text in quotes, its beginning if it is long; what can't be printed is escaped."""
    return repr(text) if len(text) <= LONGEST else f"{text[: LONGEST - 3]!r}..."


def listed(names: Iterable[Any]) -> str:
    """Names in quotes with commas between them; the first dozen of many."""
    known = list(names)
    shown = ", ".join(short(name) if isinstance(name, str) else describe(name) for name in known[:MOST_NAMES])
    return f"{shown} and {len(known) - MOST_NAMES:,} more" if len(known) > MOST_NAMES else shown


def counted(number: int, noun: str) -> str:
    """``1 row``, ``2,500 rows``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def one_line(error: BaseException | str, most: int = 200) -> str:
    """Another library's message without its line breaks, its tail if it is long, and its full stop."""
    text = _escaped(" ".join(str(error).split())).removesuffix(".") or type(error).__name__
    return text if len(text) <= most else f"{text[: most - 3]}..."


def printable(path: object) -> str:
    """A path as messages show it: file names may hold bytes that are not text."""
    return _escaped(str(path))


def _escaped(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)


_small = reprlib.Repr()
_small.maxlevel = 3
_small.maxstring = _small.maxother = _small.maxlong = 2 * LONGEST
