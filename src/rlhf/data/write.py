"""Rows to files: JSONL, JSON, CSV and Parquet, each written aside and renamed."""

from __future__ import annotations

import csv
import gzip
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from rlhf.data.contracts import Row
from rlhf.data.sources import FileFormat, file_format
from rlhf.errors import DataError
from rlhf.files import write_aside


def write_rows(path: str | os.PathLike[str], rows: Iterable[Row | Mapping[str, Any]]) -> int:
    """Write rows in the format that the name asks for; returns how many.

    JSONL is written row by row; the others hold all rows in memory. In CSV, messages and lists are JSON text, which the
    reader takes back.

    Raises:
        DataError: The format can't be written, or a value can't stand in it.
    """
    path = Path(path)
    known = file_format(path)
    if known is FileFormat.ARROW:
        raise DataError(f"Can't write {path}: Arrow files are only read; choose .parquet, .jsonl, .json or .csv.")
    dicts = (row.to_dict() if isinstance(row, Row) else dict(row) for row in rows)
    with write_aside(path) as aside:
        if known is FileFormat.PARQUET:
            return _write_parquet(aside, list(dicts))
        with _open_text(aside, compressed=path.name.endswith(".gz")) as file:
            if known is FileFormat.CSV:
                return _write_csv(file, list(dicts))
            if known is FileFormat.JSONL:
                return _write_jsonl(file, dicts)
            return _write_json(file, dicts)


def columns_of(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Every column that some row has, in order of appearance."""
    return list(dict.fromkeys(name for row in rows for name in row))


def _open_text(path: Path, *, compressed: bool) -> IO[str]:
    opener: Any = gzip.open if compressed else open
    file: IO[str] = opener(path, "wt", encoding="utf-8", newline="")
    return file


def _json(row: Mapping[str, Any], number: int) -> str:
    try:
        return json.dumps(row, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as err:
        refused = next(name for name, value in row.items() if not _is_json(value))
        raise DataError(f"Row {number}: column {refused!r} can't be written as JSON: {err}.") from err


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return True


def _write_jsonl(file: IO[str], rows: Iterable[Mapping[str, Any]]) -> int:
    number = 0
    for number, row in enumerate(rows, 1):
        file.write(_json(row, number) + "\n")
    return number


def _write_json(file: IO[str], rows: Iterable[Mapping[str, Any]]) -> int:
    number = 0
    file.write("[")
    for number, row in enumerate(rows, 1):
        file.write(("," if number > 1 else "") + "\n  " + _json(row, number))
    file.write("\n]\n")
    return number


def _write_csv(file: IO[str], rows: Sequence[Mapping[str, Any]]) -> int:
    names = columns_of(rows)
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(names)
    for number, row in enumerate(rows, 1):
        cells = []
        for name in names:
            value = row.get(name)
            if isinstance(value, (list, tuple, dict, bool)):
                value = _json({"": value}, number)[len('{"": ') : -1]
            cells.append("" if value is None else value)
        writer.writerow(cells)
    return len(rows)


def _write_parquet(path: Path, rows: Sequence[Mapping[str, Any]]) -> int:
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = columns_of(rows)
    try:
        table = pa.table({name: pa.array([row.get(name) for row in rows]) for name in names})
    except (pa.ArrowInvalid, pa.ArrowTypeError) as err:
        raise DataError(f"A column holds values of different types, which Parquet can't store: {err}.") from err
    pq.write_table(table, path)
    return len(rows)
