"""What the readers of all formats give: a row as it stood in its file, before anything is known about it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

MAX_ROW_BYTES = 1 << 24
"""A row of text is at most 16 MiB long: a file without line breaks must not fill the memory."""


Place = int | Mapping[str, Any]
"""Where a part goes on: how many lines or bytes lie before it, or what rows of the user's say of it."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Stands for a row that could not even be parsed."""

    reason: str


@dataclass(frozen=True, slots=True)
class RawRow:
    """One row before anything is known about it."""

    place: str
    """Where in the part: a line number, or ``row 3`` in formats without lines; both count from 1."""
    after: int | Callable[[], Place]
    """What to pass as ``start`` to go on behind this row; a function where that costs something, to be called before the next row."""
    value: Any
    """A mapping, or ``Unreadable``, or whatever else stood there."""


def number_rows(rows: Iterable[Any], begin: int, start: int) -> Iterator[RawRow]:
    """Number rows of which the first is the ``begin``-th of the file, leaving out those before ``start``."""
    for number, row in enumerate(rows, begin + 1):
        if number > start:
            yield RawRow(f"row {number}", number, row)
