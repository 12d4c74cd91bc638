"""Rows of Parquet and Arrow files, batch by batch; pyarrow is imported where one is read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rlhf.data.message_text import one_line, printable, short
from rlhf.data.raw import RawRow, Unreadable, number_rows
from rlhf.errors import DataError

ROWS_AT_ONCE = 64
"""Rows of a batch that are Python objects at the same time."""


def read_parquet(path: Path, start: int) -> Iterator[RawRow]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            _refuse_repeated_columns(file.schema_arrow.names, path)
            groups: list[int] = []
            begin = 0
            for group in range(file.num_row_groups):
                size = file.metadata.row_group(group).num_rows
                if not groups and begin + size <= start:
                    begin += size
                else:
                    groups.append(group)
            if groups:
                batches = file.iter_batches(batch_size=1024, row_groups=groups)
                yield from number_rows((row for batch in batches for row in _rows_of_batch(batch)), begin, start)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as err:
        raise DataError(f"{printable(path)} is not a Parquet file, or is damaged: {one_line(err)}.") from err


def read_arrow(paths: Sequence[Path], start: int) -> Iterator[RawRow]:
    """Rows of Arrow files, of both of Arrow's formats, numbered through all of them."""
    import pyarrow as pa

    begin = 0
    for path in paths:
        try:
            # Not mapped into memory: a file that shrinks while it is mapped kills the process.
            with pa.OSFile(str(path)) as file:
                for batch in _arrow_batches(file, path):
                    if begin + batch.num_rows > start:
                        yield from number_rows(_rows_of_batch(batch), begin, start)
                    begin += batch.num_rows
        except (pa.ArrowException, OSError, UnicodeDecodeError) as err:
            raise DataError(f"{printable(path)} is not an Arrow file, or is damaged: {one_line(err)}.") from err


def _arrow_batches(file: Any, path: Path) -> Iterator[Any]:
    import pyarrow as pa

    try:
        reader: Any = pa.ipc.open_stream(file)  # what `datasets` writes
        batches = iter(reader)
    except pa.ArrowInvalid:
        file.seek(0)
        reader = pa.ipc.open_file(file)
        batches = (reader.get_batch(number) for number in range(reader.num_record_batches))
    _refuse_repeated_columns(reader.schema.names, path)
    yield from batches


def _rows_of_batch(batch: Any) -> Iterator[Any]:
    """Rows as Python objects, a few at a time; one that can't become such is ``Unreadable``."""
    import pyarrow as pa

    for column in batch.columns:
        try:
            column.validate(full=True)  # damaged offsets would be followed out of the column
        except pa.ArrowInvalid as err:
            if "UTF8" not in str(err):  # that is a matter of single rows
                raise
    for first in range(0, batch.num_rows, ROWS_AT_ONCE):
        piece = batch.slice(first, ROWS_AT_ONCE)
        try:
            yield from piece.to_pylist()
        except (ValueError, OverflowError, pa.ArrowException):
            for number in range(piece.num_rows):
                try:
                    (row,) = piece.slice(number, 1).to_pylist()
                except (ValueError, OverflowError, pa.ArrowException) as err:
                    row = Unreadable(f"a value can't be read: {one_line(err)}.")
                yield row


def _refuse_repeated_columns(names: list[str], path: Path) -> None:
    repeated = next((name for number, name in enumerate(names) if name in names[:number]), None)
    if repeated is not None:
        raise DataError(f"{printable(path)} has two columns called {short(repeated)}; rename or remove one.")
