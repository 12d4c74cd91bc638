"""JSON as data files should hold it: no key twice, no NaN, no number that is none, no nesting without end.

Python's own reader takes the last of two equal keys, reads ``NaN`` and ``1e999`` as floats, and gives up with a
``RecursionError`` on a thousand brackets.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

MAX_NESTING = 100
"""Lists and objects inside each other. Rows have four; whatever else walks a row may then do so by recursion."""
MAX_DIGITS = 300
"""Of a whole number; a float ends at 308."""

TOO_DEEP = f"lists and objects are nested more than {MAX_NESTING} deep; wanted a row of columns"
_BRACKETS = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[\[\]{}]', re.DOTALL)


class RefusedJsonError(ValueError):
    """It is JSON, or nearly, but not such as a row may hold; the message is for people."""


def decode(text: str) -> Any:
    """The value of a whole text.

    Raises:
        json.JSONDecodeError: It is not JSON.
        RefusedJsonError: It is not such JSON as we take.
    """
    value, end = decode_from(text, 0)
    rest = skip_space(text, end)
    if rest < len(text):
        raise json.JSONDecodeError("Extra data", text, rest)
    return value


def decode_from(text: str, start: int) -> tuple[Any, int]:
    """The value that begins at ``start`` or behind the white space there, and where it ends; raises as ``decode``."""
    begin = skip_space(text, start)
    try:
        value, end = _DECODER.raw_decode(text, begin)
    except RecursionError:
        raise RefusedJsonError(TOO_DEEP) from None
    # Counting brackets is cheap and settles it for nearly every row.
    if text.count("[", begin, end) + text.count("{", begin, end) > MAX_NESTING and nesting(value) > MAX_NESTING:
        raise RefusedJsonError(TOO_DEEP)
    return value, end


def find_end(text: str, start: int) -> int | None:
    """Where a refused value ends, by its brackets alone; None where the text ends first."""
    begin = skip_space(text, start)
    if text[begin : begin + 1] not in ("{", "["):
        scalar = re.compile(r"[^\s,\]}]+").match(text, begin)
        return scalar.end() if scalar is not None and scalar.end() < len(text) else None
    depth = 0
    for match in _BRACKETS.finditer(text, begin):
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(match[0], 0)
        if depth == 0:
            return match.end()
    return None


def nesting(value: Any) -> int:
    """Levels of lists and objects, without recursion; stops counting behind ``MAX_NESTING``."""
    level, depth = [value], 0
    while depth <= MAX_NESTING and (holders := [item for item in level if isinstance(item, (list, tuple, dict))]):
        level = [item for holder in holders for item in (holder.values() if isinstance(holder, dict) else holder)]
        depth += 1
    return depth


def skip_space(text: str, start: int) -> int:
    """The first place at or behind ``start`` that is not JSON's white space."""
    match = _SPACE.match(text, start)
    return match.end() if match is not None else start


def _object_without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        seen: set[str] = set()
        repeated = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        shown = repr(repeated[:40])
        raise RefusedJsonError(f"the key {shown} appears in the same object twice; keep one of them")
    return made


def _refuse_constant(name: str) -> Any:
    raise RefusedJsonError(f"{name} is not a JSON value; use null")


def _whole_number(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise RefusedJsonError(f"a number of {len(digits):,} digits ({digits[:12]}...); write it as a string")
    return int(digits)


def _number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise RefusedJsonError(
            f"the number {text[:40]} is beyond what a float holds; write it as a string, or use null"
        )
    return value


_SPACE = re.compile(r"[ \t\r\n]*+")
_DECODER = json.JSONDecoder(
    object_pairs_hook=_object_without_repeats,
    parse_constant=_refuse_constant,
    parse_int=_whole_number,
    parse_float=_number,
)
