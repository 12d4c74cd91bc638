"""Other tools' files and public data: one table of formats, each a reader, a writer, or both.

read_as("ultrafeedback", path)      tasks and what was said of them
detect(path)                        which format a file seems to be in
write_items / write_pairs           through the table
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import groupby
from pathlib import Path
from typing import Any

from rlhf.config.guidelines import AnnotationGuideline
from rlhf.data.contracts import BadRow, Kind, Row, RowError
from rlhf.data.message_text import counted, listed
from rlhf.data.read import OnBadRow
from rlhf.data.row_kinds import COLUMNS, canonical_columns, detect_kind, parse_row
from rlhf.data.write import write_rows
from rlhf.errors import DataError, did_you_mean, look_up
from rlhf.feedback.exchange import argilla
from rlhf.feedback.exchange.conversations import TraceReader
from rlhf.feedback.exchange.lines import Line, Reader, lines_of
from rlhf.feedback.identity import merged
from rlhf.feedback.layouts import LAYOUTS, OURS, Layout
from rlhf.feedback.tasks import STDIN, SourceItems
from rlhf.store.items import Item, check_item, laid_out_as

ItemWriter = Callable[[Path, Sequence[Item], Sequence[AnnotationGuideline]], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A ``Layout`` with its functions."""

    columns: tuple[str, ...] = ()
    is_it: Callable[[Mapping[str, Any]], bool] | None = None
    read: Reader | None = None
    read_traces: TraceReader | None = None
    key: str | None = None
    write_items: ItemWriter | None = None
    row_of: Callable[[Row], dict[str, Any]] | None = None

    @classmethod
    def of(cls, layout: Layout) -> Format:
        """The functions that a layout names."""
        return cls(
            columns=layout.columns,
            key=layout.key,
            is_it=_function(layout.is_it),
            read=_function(layout.read),
            read_traces=_function(layout.read_traces),
            write_items=_function(layout.write_items),
            row_of=_function(layout.row_of),
        )


def _function(text: str) -> Any:
    module, _, name = text.partition(":")
    return getattr(import_module(f"rlhf.feedback.exchange.{module}"), name) if text else None


FORMATS: Mapping[str, Format] = {name: Format.of(layout) for name, layout in LAYOUTS.items()}
"""Name to format, of all ``LAYOUTS``. Those without a reader of their own are rows as this library reads them anyway."""


def detect(source: str | Path) -> str:
    """The format a file is in, by the columns of its first readable row.

    Raises:
        DataError: None fits; says what was found and which is nearest.
    """
    first = next((line for line in lines_of(_file_of(source)) if isinstance(line, Line)), None)
    if first is None:
        raise DataError(f"{source} holds no row that can be read; `rlhf data check {source}` tells why.")
    for name, known in FORMATS.items():
        if (known.read is None and known.read_traces is None) or _missing(known, first.cells):
            continue
        if known.is_it is None or known.is_it(first.cells):
            return name
    try:
        kind = detect_kind(canonical_columns(first.cells, first.where), where=first.where, header=first.cells_are_text)
    except RowError as err:
        raise RowError(first.where, _nearest(first.cells) or _unknown(first.cells, err)) from err
    if (
        kind is Kind.PROMPT
        and not {"completions", "completion_a"} & set(first.cells)
        and (hint := _nearest(first.cells))
    ):
        raise RowError(first.where, hint)
    return OURS


def _missing(known: Format, row: Mapping[str, Any]) -> list[str]:
    return [column for column in known.columns if not any(name in row for name in column.split("|"))]


def _nearest(row: Mapping[str, Any]) -> str:
    """The format of which more than half of the columns are there, and what is missing; empty where there is none."""
    shares = {
        name: 1 - len(_missing(known, row)) / len(known.columns) for name, known in FORMATS.items() if known.columns
    }
    best = max(shares, key=lambda name: shares[name])
    missing = _missing(FORMATS[best], row)
    if shares[best] <= 0.5 or not missing:
        return ""
    hint = did_you_mean(missing[0], row)
    return f"columns found: {listed(row)}. Nearest is {best!r}, which lacks {listed(missing)}.{hint}"


def _unknown(row: Mapping[str, Any], err: RowError) -> str:
    hint = next((h for name in row if name not in COLUMNS and (h := did_you_mean(name, COLUMNS))), "")
    return f"{err.reason}{hint} Or name the layout with --format: {', '.join(FORMATS)}."


def read_as(name: str, *sources: str | Path, on_bad_row: OnBadRow = "error") -> SourceItems:
    """Tasks and judgments of a file in one of the formats that have a reader of their own.

    Args:
        name: In ``FORMATS``.
        sources: Files, read one after the other; of Argilla also the folder.
        on_bad_row: ``error`` stops at the first; ``skip`` lists them.

    Raises:
        DataError: A bad row, or no usable one.
        UnknownNameError: There is no such format.
    """
    known = look_up(FORMATS, name, kind="format")
    if known.read_traces is not None:
        raise DataError(f"{name!r} holds conversations; `rlhf.feedback.trace_imports.read_traces` reads them.")
    if known.read is None:
        raise DataError(f"{name!r} has no reader of its own; its rows are read as {OURS!r}.")
    if STDIN in sources:
        raise DataError(f"Rows of the format {name!r} are read from a file; standard input takes only {OURS!r}.")
    converted = SourceItems()
    made: list[tuple[str, Item]] = []
    lines = (line for source in sources for line in lines_of(_file_of(source)))
    for group in _groups(lines, known.key, converted, on_bad_row):
        try:
            with laid_out_as(f"a row of {name!r}", group[0].where):
                made += [(group[0].where, check_item(item, group[0].where)) for item in known.read(group)]
        except DataError as err:
            _left_out(err, group[0].where, converted, on_bad_row)
    converted.items = merged(made)
    if not converted.items:
        first = (
            f" The first: {converted.left_out[0].where}: {converted.left_out[0].reason}" if converted.left_out else ""
        )
        raise DataError(
            f"{', '.join(map(str, sources))}: no row can be used as {name!r}; {counted(len(converted.left_out), 'bad row')}.{first}"
        )
    return converted


def _groups(
    lines: Iterable[Line | RowError], key: str | None, source_items: SourceItems, on_bad_row: OnBadRow
) -> Iterator[list[Line]]:
    good = []
    for line in lines:
        if isinstance(line, RowError):
            _left_out(line, line.where, source_items, on_bad_row)
        else:
            good.append(line)
    if key is None:
        yield from ([line] for line in good)
    else:
        for _, group in groupby(good, key=lambda line: line.cells.get(key)):
            yield list(group)


def _left_out(err: DataError, where: str, converted: SourceItems, on_bad_row: OnBadRow) -> None:
    if on_bad_row == "error":
        raise err if isinstance(err, RowError) or str(err).startswith(where) else RowError(where, str(err))
    converted.left_out.append(
        BadRow(where, err.reason if isinstance(err, RowError) else str(err).removeprefix(f"{where}: "))
    )


def _file_of(source: str | Path) -> str | Path:
    """The file to read: of a folder that Argilla wrote, its records."""
    inside = Path(source) / argilla.RECORDS
    return inside if inside.is_file() else source


def write_pairs(name: str, path: Path, rows: Iterable[Mapping[str, Any]]) -> tuple[int, int]:
    """Write rows of ours as pairs (or labels) of another layout; ties and what has no winner is left out.

    Returns:
        How many were written, and how many left out.
    """
    from rlhf.data.expand import preferences_of

    known = look_up(FORMATS, name, kind="format")
    assert known.row_of is not None, "the caller looks first"
    written: list[dict[str, Any]] = []
    num_left_out = 0
    for number, raw in enumerate(rows, 1):
        row = parse_row(dict(raw), where=f"row {number}", row_id=str(raw.get("id", "")))
        pairs: Sequence[Row] = preferences_of(row) if row.kind in ("preference", "comparison", "ranking") else [row]
        if row.kind == "unpaired" and name in ("sharegpt", "alpaca") and not raw["label"]:
            pairs = []
        num_left_out += not pairs
        written += [known.row_of(pair) for pair in pairs]
    return (write_rows(path, written) if written else 0), num_left_out
