"""Rows of a CSV file: a header, then as many cells in every row."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from rlhf.data.encoding import not_utf8, open_text, undecodable_byte
from rlhf.data.message_text import listed, printable, short
from rlhf.data.raw import MAX_ROW_BYTES, RawRow, Unreadable
from rlhf.errors import DataError

DELIMITERS = {";": "semicolons", "\t": "tabs", "|": "vertical bars"}

csv.field_size_limit(MAX_ROW_BYTES)  # one cell may hold a whole dialogue; the default is 128 KB


def read_csv(path: Path, start: int) -> Iterator[RawRow]:
    with open_text(path) as text:
        reader = csv.reader(_csv_lines(text, path), strict=True)
        header = _csv_header(reader, path)
        count, line = 0, reader.line_num + 1
        while True:
            try:
                cells = next(reader)
                value: Any = _csv_row(header, cells, path)
            except StopIteration:
                return
            except csv.Error as err:
                if "expected after" not in str(err):  # "',' expected after '\"'" is over at the end of its line
                    raise DataError(
                        f"{printable(path)}:{line}: not CSV: {err}; is a quote left open? Nothing from here on can be read."
                    ) from err
                cells, value = [""], Unreadable(f"not CSV: {err}; a quote inside a quoted cell is written twice.")
            place, line = str(line), reader.line_num + 1
            if cells:
                count += 1
                if count > start:
                    yield RawRow(place, count, value)


def _csv_lines(text: IO[str], path: Path) -> Iterator[str]:
    number = 0
    while line := text.readline(MAX_ROW_BYTES + 1):
        number += 1
        if len(line) > MAX_ROW_BYTES:
            raise DataError(f"{printable(path)}:{number}: a line is longer than {MAX_ROW_BYTES:,} characters.")
        yield line


def _csv_header(reader: Iterator[list[str]], path: Path) -> list[str]:
    name = printable(path)
    try:
        header = next((cells for cells in reader if any(cell.strip() for cell in cells)), [])
    except csv.Error as err:
        raise DataError(f"{name}:1: not CSV: {err}; wanted the names of the columns, parted by commas.") from err
    if bad := undecodable_byte("".join(header)):
        raise DataError(f"{name}:1: {not_utf8(path, bad[1], 'a byte in the header')}")
    for delimiter, what in DELIMITERS.items():
        if len(header) == 1 and delimiter in header[0]:
            raise DataError(
                f"{name}:1: the header is one column, {short(header[0])}: its names are parted by {what}. Wanted commas; "
                f'convert it with: python -c "import pandas; pandas.read_csv({path.name!r}, sep={delimiter!r})'
                f".to_csv('commas.csv', index=False)\""
            )
    repeated = next((name for number, name in enumerate(header) if name in header[:number]), None)
    if repeated is not None:
        raise DataError(f"{name}:1: the column {short(repeated)} appears in the header twice; rename or remove one.")
    return header


def _csv_row(header: list[str], cells: list[str], path: Path) -> Any:
    if len(cells) != len(header):
        return Unreadable(
            f"there are {len(cells)} cells for {len(header)} columns ({listed(header)}); a comma inside a cell needs "
            'quotes around the cell: "a, b".'
        )
    for name, cell in zip(header, cells, strict=True):
        if bad := undecodable_byte(cell):
            return Unreadable(not_utf8(path, bad[1], f"in column {short(name)}, character {bad[0] + 1}"))
        if "\0" in cell:
            return Unreadable(f"column {short(name)} holds a NUL byte, which no text has; write the file again.")
    return dict(zip(header, cells, strict=True))
