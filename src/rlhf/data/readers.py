"""One reader for each file format: rows one by one, from any place, holding one row (or one batch) in memory.

What is wrong with one row becomes an ``Unreadable`` in its place, and reading goes on. Damage behind which no row can be
told from the next (a cut archive, an array that is not closed, a quote left open) is a ``DataError``: skipping bad rows
must not skip the good ones behind them.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from pathlib import Path

from rlhf.data.arrow_rows import read_arrow, read_parquet
from rlhf.data.csv_rows import read_csv
from rlhf.data.json_rows import read_json, read_jsonl
from rlhf.data.message_text import one_line, printable
from rlhf.data.raw import RawRow
from rlhf.errors import DataError


class FileFormat(StrEnum):
    JSONL = "jsonl"
    JSON = "json"
    CSV = "csv"
    PARQUET = "parquet"
    ARROW = "arrow"


READERS: Mapping[FileFormat, Callable[[Path, int], Iterator[RawRow]]] = {
    FileFormat.JSONL: read_jsonl,
    FileFormat.JSON: read_json,
    FileFormat.CSV: read_csv,
    FileFormat.PARQUET: read_parquet,
    FileFormat.ARROW: lambda path, start: read_arrow((path,), start),
}


def read_file(path: Path, known: FileFormat, start: int) -> Iterator[RawRow]:
    """Rows of a file from a start on.

    Raises:
        DataError: The file itself is damaged or can't be read.
    """
    name = printable(path)
    try:
        yield from READERS[known](path, start)
    except (EOFError, gzip.BadGzipFile, zlib.error) as err:
        raise DataError(f"{name} is damaged or was cut short: {one_line(err)}. Copy or download it again.") from err
    except OSError as err:
        reason = err.strerror or one_line(err)
        raise DataError(f"{name} can't be read: {reason}. Check its permissions and whether it is whole.") from err
