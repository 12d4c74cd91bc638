"""From any source to checked rows: ``read_rows`` for all of them, ``RowStream`` for one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypedDict, Unpack, overload

from rlhf.data.contracts import BadRow, Kind, Row, RowError
from rlhf.data.message_text import counted, listed
from rlhf.data.raw import RawRow, Unreadable
from rlhf.data.row_kinds import parse_row
from rlhf.data.sources import Part, Source, open_source, source_name
from rlhf.errors import ConfigError, DataError, did_you_mean, look_up

OnBadRow = Literal["error", "skip"]
BAD_ROW_POLICIES = {"error": "error", "skip": "skip"}

SHOWN_BAD_ROWS = 3


class NoUsableRowError(DataError):
    """A source was read to its end and gave nothing."""


Cursor = tuple[int, Any]
"""Which part, and where in it (see ``RawRow.after``): where a stream goes on."""


@dataclass(slots=True)
class RowTable:
    """Rows in memory."""

    rows: list[Row]
    bad_rows: list[BadRow]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __getitem__(self, index: int) -> Row:
        return self.rows[index]


@dataclass(slots=True)
class RowStream:
    """Rows read from their files while you iterate; starts at the beginning each time."""

    parts: Sequence[Part]
    on_bad_row: OnBadRow = "error"
    columns: Mapping[str, str | None] | None = None
    limit: int | None = None
    accepts: Sequence[Kind] | None = None
    strings_are: Kind = Kind.TEXT
    bad_rows: list[BadRow] = field(default_factory=list)
    """Rows that were skipped so far, in order; emptied when iteration starts again."""

    def __iter__(self) -> Iterator[Row]:
        self.bad_rows.clear()
        for row, _ in self.from_cursor((0, 0)):
            yield row

    @property
    def fingerprints(self) -> list[str]:
        """Name and hash of each part: other data, other fingerprints. The files are read for it once."""
        return [part.fingerprint for part in self.parts]

    def from_cursor(self, cursor: Cursor, *, num_before: int = 0) -> Iterator[tuple[Row, Cursor]]:
        """Rows from a cursor on, each with the cursor behind it.

        Args:
            cursor: (0, 0) for the beginning.
            num_before: Good and bad rows that earlier iterations saw; counts towards ``limit`` and "is empty".

        Raises:
            DataError: A bad row under ``on_bad_row="error"``, a damaged file, or no usable row at all.
        """
        good = num_before
        for index in range(cursor[0], len(self.parts)):
            part = self.parts[index]
            for raw in part.read(cursor[1] if index == cursor[0] else 0):
                if self.limit is not None and good >= self.limit:
                    part.check_unchanged()  # the reader looks again only behind the last row
                    return
                try:
                    row = self.parse(part, raw)
                except RowError as err:
                    if self.on_bad_row == "error":
                        raise
                    self.bad_rows.append(BadRow(err.where, err.reason))
                    continue
                good += 1
                yield row, (index, raw.after)
        if good == 0:
            raise NoUsableRowError(_nothing_usable(self.parts, self.bad_rows))

    def parse(self, part: Part, raw: RawRow) -> Row:
        """The row that was read at one place.

        Raises:
            RowError: It can't be used.
        """
        where = part.name(raw.place)
        if isinstance(raw.value, Unreadable):
            raise RowError(where, raw.value.reason)
        row_id = part.row_id(raw.place)
        if isinstance(raw.value, Row):
            return _check_made_row(raw.value, where, row_id, self.accepts)
        value = rename_columns(raw.value, self.columns, where) if self.columns else raw.value
        return parse_row(
            value,
            where=where,
            row_id=row_id,
            accepts=self.accepts,
            strings_are=self.strings_are,
            cells_are_text=part.cells_are_text,
        )


class ReadOptions(TypedDict, total=False):
    """The options of ``open_rows`` that every data set takes too."""

    on_bad_row: OnBadRow
    columns: Mapping[str, str | None] | None
    split: str | None
    subset: str | None
    limit: int | None


@overload
def read_rows(
    source: Source,
    *,
    streaming: Literal[False] = ...,
    accepts: Sequence[Kind] | None = ...,
    strings_are: Kind = ...,
    **options: Unpack[ReadOptions],
) -> RowTable: ...
@overload
def read_rows(
    source: Source,
    *,
    streaming: Literal[True],
    accepts: Sequence[Kind] | None = ...,
    strings_are: Kind = ...,
    **options: Unpack[ReadOptions],
) -> RowStream: ...
def read_rows(
    source: Source,
    *,
    streaming: bool = False,
    accepts: Sequence[Kind] | None = None,
    strings_are: Kind = Kind.TEXT,
    **options: Unpack[ReadOptions],
) -> RowTable | RowStream:
    """Read rows of any kind from any source; the arguments are those of ``open_rows``.

    Returns:
        All rows, in memory; or with ``streaming=True`` a ``RowStream``.

    Raises:
        DataError: Nothing there, nothing readable, nothing usable, or a bad row.
    """
    stream = open_rows(source, streaming=streaming, accepts=accepts, strings_are=strings_are, **options)
    if streaming:
        return stream
    return RowTable(list(stream), stream.bad_rows)


def read_or_list_bad_rows(source: Source, options: ReadOptions) -> RowTable:
    """All rows for a command that writes them again; where some are bad and may not be skipped, all of those are counted.

    Raises:
        DataError: With the number of bad rows, the first of them, and the ways out.
    """
    stream = open_rows(source, **options)
    may_skip = stream.on_bad_row == "skip"
    stream.on_bad_row = "skip"
    table = RowTable(list(stream), stream.bad_rows)
    if table.bad_rows and not may_skip:
        first = " ".join(f"{row.where}: {row.reason}" for row in table.bad_rows[:SHOWN_BAD_ROWS])
        raise DataError(
            f"{len(table.bad_rows):,} of {counted(len(table) + len(table.bad_rows), 'row')} of {source_name(source)} "
            f"{'is' if len(table.bad_rows) == 1 else 'are'} bad, so "
            f"nothing was written. {_these(table.bad_rows)}: {first} Mend them, "
            "or leave them out with --skip-bad (on_bad_row='skip'); rlhf data check lists all of them."
        )
    return table


def open_rows(
    source: Source,
    *,
    streaming: bool = True,
    accepts: Sequence[Kind] | None = None,
    strings_are: Kind = Kind.TEXT,
    on_bad_row: OnBadRow = "error",
    columns: Mapping[str, str | None] | None = None,
    split: str | None = None,
    subset: str | None = None,
    limit: int | None = None,
) -> RowStream:
    """Open a source without reading its rows.

    Args:
        source: Path of a JSONL, JSON, CSV, Parquet or Arrow file (``.gz`` where it is text), a folder, a hub name, a
            list of paths, a list of rows (dicts, strings or ``Row`` objects), or a ``datasets`` object.
        streaming: Read a hub data set as it comes, without downloading it first.
        accepts: Kinds of row that are wanted; None for any.
        strings_are: What a bare string is, ``text`` or ``prompt``.
        on_bad_row: ``error`` stops at the first, naming file, line and column; ``skip`` lists them in ``bad_rows``.
        columns: ``{"their name": "our name"}``; None as our name drops the column.
        split: Which part of a folder or hub data set.
        subset: Configuration of a hub data set that has several.
        limit: Stop after this many usable rows.
    """
    look_up(BAD_ROW_POLICIES, on_bad_row, kind="on_bad_row policy")
    if limit is not None and limit < 1:
        raise ConfigError(f"limit is {limit}; wanted at least 1, or None for all rows.")
    return RowStream(
        parts=open_source(source, split=split, subset=subset, streaming=streaming),
        on_bad_row=on_bad_row,
        columns=columns,
        limit=limit,
        accepts=accepts,
        strings_are=strings_are,
    )


def rename_columns(raw: Any, columns: Mapping[str, str | None], where: str = "") -> Any:
    """Rename and drop, all at once, so that two names can be swapped.

    Raises:
        RowError: A column to rename is absent, or two end up with one name.
    """
    if not isinstance(raw, Mapping):
        return raw
    for name in columns:
        if name not in raw:
            hint = did_you_mean(name, [other for other in raw if isinstance(other, str)])
            raise RowError(where, f"there is no column {name!r} to rename; found {listed(raw)}.{hint}")
    renamed: dict[str, Any] = {}
    for name, value in raw.items():
        new = columns.get(name, name)
        if new is None:
            continue
        if new in renamed:
            raise RowError(where, f"two columns would be called {new!r}; drop one with columns={{{new!r}: None}}.")
        renamed[new] = value
    return renamed


def _check_made_row(row: Row, where: str, row_id: str, accepts: Sequence[Kind] | None) -> Row:
    if accepts is not None and row.kind not in accepts:
        raise RowError(where, f"a row of kind {row.kind}; wanted {' or '.join(accepts)}.")
    return row if row.id else replace(row, id=row_id, where=row.where or where)


def _these(bad_rows: Sequence[BadRow]) -> str:
    return "It is" if len(bad_rows) == 1 else "They are" if len(bad_rows) <= SHOWN_BAD_ROWS else "The first"


def _nothing_usable(parts: Sequence[Part], bad_rows: Sequence[BadRow]) -> str:
    names = ", ".join(part.where for part in parts if part.where) or "The list of rows"
    if not bad_rows:
        return f"{names} holds no rows; wanted at least one."
    first = bad_rows[0]
    if len(bad_rows) == 1:
        return f"{names}: the only row is not usable: {first.where}: {first.reason}"
    return f"{names}: none of the {len(bad_rows):,} rows is usable. The first: {first.where}: {first.reason}"
