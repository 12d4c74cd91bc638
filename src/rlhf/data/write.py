"""Rows to files: JSONL, JSON, CSV and Parquet, each written aside and renamed."""

from __future__ import annotations

import csv
import gzip
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from rlhf.data.cells import EITHER, is_read_as_turns
from rlhf.data.contracts import Row
from rlhf.data.message_text import one_line, printable, short
from rlhf.data.readers import FileFormat
from rlhf.data.sources import file_format
from rlhf.errors import DataError
from rlhf.files import write_aside


def write_rows(path: str | os.PathLike[str], rows: Iterable[Row | Mapping[str, Any]]) -> int:
    """Write rows in the format that the name asks for; returns how many.

    JSONL is written row by row; the others hold all rows in memory. In CSV, messages and lists are JSON text, which the
    reader takes back.

    Raises:
        DataError: The format can't be written, or a value can't stand in it.
        StorageError: The folder or the disk refuses the file.
    """
    path = Path(path)
    known = file_format(path)
    if known is FileFormat.ARROW:
        raise DataError(f"Can't write {path}: Arrow files are only read; choose .parquet, .jsonl, .json or .csv.")
    if known in (FileFormat.CSV, FileFormat.PARQUET):
        rows = list(rows)
        _check_one_kind(rows, path)
    dicts = (row.to_dict() if isinstance(row, Row) else dict(row) for row in rows)
    with write_aside(path) as aside:
        if known is FileFormat.PARQUET:
            return _write_parquet(aside, list(dicts), path)
        with _open_text(aside, compressed=path.name.endswith(".gz")) as file:
            if known is FileFormat.CSV:
                return _write_csv(file, list(dicts), path)
            if known is FileFormat.JSONL:
                return _write_jsonl(file, dicts, path)
            return _write_json(file, dicts, path)


def _check_one_kind(rows: Iterable[Row | Mapping[str, Any]], path: Path) -> None:
    """A table gives every row every column: read again, a prompt next to a demonstration would have an empty completion."""
    kinds = sorted({row.kind for row in rows if isinstance(row, Row)})
    if len(kinds) > 1:
        raise DataError(
            f"Can't write {printable(path)}: the rows are of the kinds {', '.join(kinds)}, and a table holds one. Write .jsonl, or "
            "part the rows first."
        )


def columns_of(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Every column that some row has, in order of appearance."""
    return list(dict.fromkeys(name for row in rows for name in row))


def _open_text(path: Path, *, compressed: bool) -> IO[str]:
    opener: Any = gzip.open if compressed else open
    file: IO[str] = opener(path, "wt", encoding="utf-8", newline="")
    return file


def _json(row: Mapping[str, Any], number: int, path: Path) -> str:
    try:
        return _json_text(row)
    except (TypeError, ValueError, RecursionError) as err:
        refused = next((name for name, value in row.items() if not _is_json({name: value})), "")
        raise DataError(
            f"Can't write {printable(path)}: row {number}: column {short(refused)} can't be written as JSON: {one_line(err)}."
        ) from err


def _json_text(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    if not text.isascii():
        text.encode()  # half a surrogate pair would fail later, without a name
    return text


def _is_json(value: Any) -> bool:
    try:
        _json_text(value)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def _write_jsonl(file: IO[str], rows: Iterable[Mapping[str, Any]], path: Path) -> int:
    number = 0
    for number, row in enumerate(rows, 1):
        file.write(_json(row, number, path) + "\n")
    return number


def _write_json(file: IO[str], rows: Iterable[Mapping[str, Any]], path: Path) -> int:
    number = 0
    file.write("[")
    for number, row in enumerate(rows, 1):
        file.write(("," if number > 1 else "") + "\n  " + _json(row, number, path))
    file.write("\n]\n")
    return number


def _write_csv(file: IO[str], rows: Sequence[Mapping[str, Any]], path: Path) -> int:
    names = columns_of(rows)
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(names)
    for number, row in enumerate(rows, 1):
        cells = []
        for name in names:
            value = row.get(name)
            if isinstance(value, (list, tuple, dict, bool)):
                value = _json({"": value}, number, path)[len('{"": ') : -1]
            elif isinstance(value, str) and "\0" in value:
                raise DataError(
                    f"Can't write {printable(path)}: column {short(name)} of row {number:,} holds a NUL, which CSV can't; write .jsonl "
                    "or .parquet."
                )
            elif isinstance(value, str) and name in EITHER and is_read_as_turns(value):
                raise DataError(
                    f"Can't write {printable(path)}: column {short(name)} of row {number:,} is a text that reads like a list of "
                    "messages, which CSV can't tell from one; write .jsonl or .parquet."
                )
            elif isinstance(value, str) and not value.isascii():
                _json({name: value}, number, path)
            cells.append("" if value is None else value)
        writer.writerow(cells)
    return len(rows)


def _write_parquet(aside: Path, rows: Sequence[Mapping[str, Any]], path: Path) -> int:
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = columns_of(rows)
    columns = {}
    for name in names:
        try:
            columns[name] = pa.array([row.get(name) for row in rows])
        except (pa.ArrowException, OverflowError, UnicodeEncodeError) as err:
            raise DataError(
                f"Can't write {printable(path)}: column {short(name)} holds values that Parquet can't store together: "
                f"{one_line(err)}. Make them of one type, or write .jsonl."
            ) from err
    try:
        pq.write_table(pa.table(columns), aside)
    except pa.ArrowException as err:
        raise DataError(f"Can't write {printable(path)} as Parquet: {one_line(err)}. Write .jsonl instead.") from err
    return len(rows)
