"""Raw rows of somebody else's layout, and the checks that every reader of one needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf.data.cells import Cells
from rlhf.data.contracts import RowError
from rlhf.data.message_text import describe, listed, printable
from rlhf.data.raw import MAX_ROW_BYTES, Unreadable
from rlhf.data.sources import Source, open_source
from rlhf.data.strict_json import RefusedJsonError, decode
from rlhf.errors import did_you_mean
from rlhf.store.items import Item

WHOLE_RECORDS = frozenset({"steps", "resourceSpans", "resourceLogs"})
"""Columns of records that are a file of their own: agents' trajectories and OTLP JSON."""


@dataclass(frozen=True, slots=True)
class Line:
    """One raw row."""

    where: str
    """File and line."""
    cells: Mapping[str, Any]
    cells_are_text: bool = False

    def taken_by(self, *columns: str) -> Cells:
        """The row as cells to take one by one.

        Raises:
            RowError: One of the columns is missing or null.
        """
        present = {name: value for name, value in self.cells.items() if value is not None}
        for column in columns:
            if column not in present:
                what = "is null" if column in self.cells else f"is missing; found {listed(self.cells)}"
                raise RowError(self.where, f"column {column!r} {what}.{did_you_mean(column, present)}")
        return Cells(present, self.where, self.cells_are_text)

    def bad(self, reason: str) -> RowError:
        """An error about this row."""
        return RowError(self.where, reason)


Reader = Callable[[Sequence[Line]], list[Item]]
"""From the rows that belong together (most layouts: one) to tasks and what was said of them."""


def lines_of(source: Source) -> Iterator[Line | RowError]:
    """Raw rows of any source; a row that can't be read comes as the error that says why."""
    if (whole := _whole_object(source)) is not None:
        yield whole
        return
    for part in open_source(source):
        for raw in part.read(0):
            where = part.name(raw.place)
            if isinstance(raw.value, Unreadable):
                yield RowError(where, raw.value.reason)
            elif isinstance(raw.value, Mapping):
                yield Line(where, raw.value, part.cells_are_text)
            else:
                yield RowError(where, f"the row is {describe(raw.value)}; wanted an object.")


def _whole_object(source: Source) -> Line | None:
    """A file that is one record over several lines, as some tools write each trajectory or each request; None where it is not."""
    path = Path(source) if isinstance(source, str | Path) else None
    if path is None or path.suffix != ".json" or not path.is_file():
        return None
    with path.open("rb") as file:
        text = file.read(MAX_ROW_BYTES + 1)
    if len(text) > MAX_ROW_BYTES or not text.lstrip().startswith(b"{"):
        return None
    try:
        value = decode(text.decode())
    except (ValueError, RefusedJsonError):
        return None  # the reader of the lines reports what is wrong
    return Line(printable(path), value) if isinstance(value, dict) and WHOLE_RECORDS & value.keys() else None


def whole(value: Any, low: int, high: int, name: str, line: Line) -> int:
    """A whole number within bounds, however a file writes it (3, 3.0, "3").

    Raises:
        RowError: It is none.
    """
    try:
        number = float(value) if not isinstance(value, bool) else float("nan")
    except (TypeError, ValueError):
        number = float("nan")
    if not (number.is_integer() and low <= number <= high):
        raise line.bad(f"{name} is {describe(value)}; wanted a whole number from {low} to {high}.")
    return int(number)
