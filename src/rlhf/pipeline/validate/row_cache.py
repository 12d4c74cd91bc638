"""The first rows of every file, read once for all stages and checks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from rlhf.config.stage_inputs import RowsInput
from rlhf.data.accepted import ACCEPTED, STRINGS_ARE
from rlhf.data.contracts import BadRow, Kind, Row
from rlhf.data.message_text import counted
from rlhf.data.raw import RawRow
from rlhf.data.read import NoUsableRowError, RowStream
from rlhf.data.sources import Part, open_source
from rlhf.errors import RLHFError
from rlhf.pipeline.validate.inputs import is_hub_name, is_of_stage, is_rows_name
from rlhf.pipeline.validate.review import Review

MAX_ROWS = 20_000
"""Most rows read per source; of a larger one only the first rows are read, which the review reports."""
QUICK_ROWS = 100
"""The same where a run begins, which should not wait."""


@dataclass(frozen=True, slots=True)
class FirstRows:
    """What the beginning of a source holds."""

    rows: list[Row]
    bad_rows: list[BadRow]
    complete: bool
    """Nothing was left unread that the stage would read."""

    @property
    def among(self) -> str:
        """The number of rows checked, in words."""
        count = len(self.rows) + len(self.bad_rows)
        return counted(count, "row") if self.complete else f"the first {counted(count, 'row')}"


def read_once(review: Review, rows: RowsInput) -> FirstRows | None:
    """The rows of an input; None where they are not there yet, or can't be read."""
    if any(is_of_stage(source) or is_hub_name(source) or is_rows_name(source) for source in rows.sources):
        return None
    place = _place(rows)
    if place not in review.shared:
        try:
            review.shared[place] = _read(rows, MAX_ROWS if review.deep else QUICK_ROWS)
        except (RLHFError, OSError) as err:
            review.shared[place] = err
    outcome = review.shared[place]
    return outcome if isinstance(outcome, FirstRows) else None


def why_unread(review: Review, rows: RowsInput) -> RLHFError | OSError | None:
    """What reading raised, where it did."""
    err = review.shared.get(_place(rows))
    return err if isinstance(err, RLHFError | OSError) else None


def _place(rows: RowsInput) -> tuple[Any, ...]:
    return ("rows", rows.sources, rows.wanted, tuple(sorted((rows.columns or {}).items())), rows.limit)


def open_rows(rows: RowsInput, *, most: int | None, unread: list[bool] | None = None) -> RowStream:
    """The rows of files that are there, bad ones skipped.

    Args:
        rows: What a stage reads.
        most: Rows read in all; None for every one.
        unread: Gets for each file whether something was left.
    """
    parts = open_source(rows.sources[0] if len(rows.sources) == 1 else list(rows.sources))
    each = max(1, most // len(parts)) if most is not None else None

    def beginning(part: Part) -> Part:
        def read(start: int) -> Iterator[RawRow]:
            raw = part.read(start)
            yield from islice(raw, each)
            if unread is not None:
                unread.append(next(iter(raw), None) is not None)

        return replace(part, read=read)

    return RowStream(
        parts=[beginning(part) for part in parts],
        on_bad_row="skip",
        columns=rows.columns,
        limit=rows.limit,
        accepts=ACCEPTED[rows.wanted],
        strings_are=STRINGS_ARE.get(rows.wanted, Kind.TEXT),
    )


def _read(rows: RowsInput, most: int) -> FirstRows:
    unread: list[bool] = []
    stream = open_rows(rows, most=most, unread=unread)
    try:
        usable = list(stream)
    except NoUsableRowError:
        if not any(unread):
            raise
        usable = []  # there may be usable rows further down
    return FirstRows(usable, list(stream.bad_rows), complete=not any(unread))
