"""Where raw rows come from: files of five formats, folders, the hub, ``datasets`` objects and lists.

A source is a list of ``Part``s, one for each file. A part gives its rows one by one from any place in it, so that
nothing is loaded that is not asked for and a stream can go on where it stopped.
"""

from __future__ import annotations

import csv
import gzip
import io
import itertools
import json
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import IO, Any

from rlhf.data.contracts import Row
from rlhf.errors import DataError, did_you_mean

csv.field_size_limit(1 << 30)  # one cell may hold a whole dialogue; the default is 128 KB


class FileFormat(StrEnum):
    JSONL = "jsonl"
    JSON = "json"
    CSV = "csv"
    PARQUET = "parquet"
    ARROW = "arrow"


SUFFIXES: Mapping[str, FileFormat] = {
    ".jsonl": FileFormat.JSONL,
    ".ndjson": FileFormat.JSONL,
    ".json": FileFormat.JSON,
    ".csv": FileFormat.CSV,
    ".parquet": FileFormat.PARQUET,
    ".arrow": FileFormat.ARROW,
}
CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Stands in the place of a row that could not even be parsed."""

    reason: str


@dataclass(frozen=True, slots=True)
class RawRow:
    """One row before anything is known about it."""

    place: str
    """Where in the part: a line number, or ``row 3`` in formats without lines; both count from 1."""
    after: int
    """What to pass as ``start`` to go on behind this row."""
    value: Any
    """A mapping, or ``Unreadable``, or whatever else stood there."""


@dataclass(frozen=True, slots=True)
class Part:
    """One file, or one in-memory table."""

    where: str
    """The path as given; begins every message about a row. Empty for a list."""
    label: str
    """Short name that tells this part from the others; begins the ids of rows that bring none."""
    read: Callable[[int], Iterator[RawRow]]
    """Rows from a start on; 0 is the beginning, others come from ``RawRow.after``."""
    fingerprint: str = ""
    """Changes when the data does; a stream's saved cursor is only good for the same data."""
    cells_are_text: bool = False
    """CSV: every value is a string."""

    def name(self, place: str) -> str:
        """Path and line, for messages."""
        return f"{self.where}:{place}" if self.where else place

    def row_id(self, place: str) -> str:
        """Label and line, for ids."""
        return f"{self.label}:{place}" if self.label else place


Source = str | os.PathLike[str] | Iterable[Any]
"""A path, a folder, a hub name, a list of paths, a list of rows, or a ``datasets`` object."""


def open_source(
    source: Any, *, split: str | None = None, subset: str | None = None, streaming: bool = False
) -> list[Part]:
    """Find out what a source is; reads no rows yet.

    Args:
        source: See ``Source``.
        split: Which part of a folder or a hub data set; hub data sets default to ``train``.
        subset: The configuration of a hub data set that has several.
        streaming: Read a hub data set without downloading it first.

    Raises:
        DataError: It does not exist, or is nothing that can be read.
    """
    if isinstance(source, (str, os.PathLike)):
        return _open_path(os.fspath(source), split, subset, streaming)
    if hasattr(source, "features") and hasattr(source, "info"):
        return [_dataset_part(source, "")]
    if isinstance(source, Mapping):
        if split is None or split not in source:
            known = ", ".join(map(repr, source))
            raise DataError(f"The data has several splits ({known}) and split is {split!r}; name one of them.")
        return open_source(source[split])
    if hasattr(source, "iterrows"):  # iterating over a pandas.DataFrame gives its column names
        source = source.to_dict("records")
    if isinstance(source, Iterable):
        items = list(source)
        if not items:
            raise DataError("There is nothing to read: the list of rows or files is empty.")
        if all(isinstance(item, os.PathLike) or (isinstance(item, str) and _looks_like_path(item)) for item in items):
            parts = [part for item in items for part in _open_path(os.fspath(item), split, subset, streaming)]
            return _with_labels(parts)
        return [_list_part(items)]
    raise DataError(
        f"Can't read rows from {type(source).__name__}; give a path, a list of paths or rows, or a datasets.Dataset."
    )


def file_format(path: str | os.PathLike[str]) -> FileFormat:
    """The format by the file's name, ``.gz`` left aside.

    Raises:
        DataError: The suffix is unknown.
    """
    name = os.fspath(path)
    bare = name.removesuffix(".gz")
    suffix = Path(bare).suffix.lower()
    known = SUFFIXES.get(suffix)
    if known is None or (bare != name and known in (FileFormat.PARQUET, FileFormat.ARROW)):
        raise DataError(
            f"{name} is not of a known format; wanted a name that ends in {', '.join(SUFFIXES)} "
            "(.gz behind the first four is fine)."
        )
    return known


def source_name(source: Any) -> str:
    """How messages call a source."""
    if isinstance(source, (str, os.PathLike)):
        return os.fspath(source)
    if isinstance(source, Sequence) and source and all(isinstance(item, (str, os.PathLike)) for item in source):
        return ", ".join(os.fspath(item) for item in source[:4]) + (" ..." if len(source) > 4 else "")
    return type(source).__name__


def _looks_like_path(text: str) -> bool:
    if len(text) > 1024 or "\n" in text:
        return False
    return Path(text.removesuffix(".gz")).suffix.lower() in SUFFIXES or os.path.exists(text)


def _open_path(name: str, split: str | None, subset: str | None, streaming: bool) -> list[Part]:
    path = Path(name).expanduser()
    if path.is_dir():
        return _open_folder(path, split)
    if path.is_file():
        if split is not None:
            raise DataError(f"{name} is one file and has no split {split!r}; leave split out, or name a folder.")
        return [_file_part(path)]
    if _looks_like_path(name) or name.startswith((".", "/", "~")) or name.count("/") > 1:
        siblings = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
        raise DataError(f"There is no file or folder {name}.{did_you_mean(path.name, siblings)}")
    return [_hub_part(name, split or "train", subset, streaming)]


def _open_folder(path: Path, split: str | None) -> list[Part]:
    if (path / "state.json").exists() or (path / "dataset_dict.json").exists():
        import datasets

        loaded = datasets.load_from_disk(str(path))
        if isinstance(loaded, datasets.DatasetDict):
            if split is None or split not in loaded:
                known = ", ".join(map(repr, loaded))
                raise DataError(f"{path} holds the splits {known}, and split is {split!r}; name one of them.")
            loaded = loaded[split]
        return [_dataset_part(loaded, str(path))]
    files = sorted(file for file in path.iterdir() if file.is_file() and _looks_like_path(file.name))
    if split is not None:
        files = [file for file in files if re.match(rf"{re.escape(split)}(?![A-Za-z0-9])", file.name)]
    if not files:
        wanted = f"whose names begin with {split!r}" if split is not None else f"({', '.join(SUFFIXES)})"
        raise DataError(f"The folder {path} holds no data files {wanted}.")
    if split is None and len(files) > 1:
        # Reading train and test together would go unnoticed.
        names = ", ".join(file.name for file in files[:8])
        raise DataError(
            f"The folder {path} holds {len(files)} data files ({names}); name a split, or give a list of files."
        )
    return _with_labels([_file_part(file) for file in files])


def _with_labels(parts: list[Part]) -> list[Part]:
    """Give files of the same name as much of their path as tells them apart."""
    for depth in range(1, 16):
        labels = ["/".join(Path(part.where).parts[-depth:]) if part.where else part.label for part in parts]
        if len(set(labels)) == len(labels):
            break
    return [
        Part(part.where, label, part.read, part.fingerprint, part.cells_are_text)
        for part, label in zip(parts, labels, strict=True)
    ]


def _file_part(path: Path) -> Part:
    known = file_format(path)
    if path.stat().st_size == 0:
        raise DataError(f"{path} is empty; wanted at least one row.")
    readers: Mapping[FileFormat, Callable[[Path, int], Iterator[RawRow]]] = {
        FileFormat.JSONL: _read_jsonl,
        FileFormat.JSON: _read_json,
        FileFormat.CSV: _read_csv,
        FileFormat.PARQUET: _read_parquet,
        FileFormat.ARROW: _read_arrow,
    }
    reader = readers[known]
    return Part(
        where=str(path),
        label=path.name,
        read=lambda start: _name_file_errors(path, reader(path, start)),
        fingerprint=f"{path.name}:{path.stat().st_size}",
        cells_are_text=known is FileFormat.CSV,
    )


def _name_file_errors(path: Path, rows: Iterator[RawRow]) -> Iterator[RawRow]:
    """Damage to the file itself can't be skipped like a row."""
    try:
        yield from rows
    except (EOFError, gzip.BadGzipFile, zlib.error) as err:
        raise DataError(f"{path} is damaged or was cut short: {err}.") from err
    except OSError as err:
        raise DataError(f"{path} can't be read: {err}.") from err


def _open_bytes(path: Path) -> IO[bytes]:
    # The caller closes it; gzip's and the plain file share no base class that mypy knows.
    opener: Any = gzip.open if path.name.endswith(".gz") else open
    file = opener(path, "rb")
    start = file.peek(4)[:4]
    if start.startswith((b"\xff\xfe", b"\xfe\xff")):
        file.close()
        raise DataError(f"{path} is UTF-16; save it as UTF-8.")
    if start.startswith(b"\xef\xbb\xbf"):
        file.read(3)
    reader: IO[bytes] = file
    return reader


def _open_text(path: Path) -> IO[str]:
    # Bytes that are not UTF-8 come through as lone surrogates, which the checks of a row refuse by column.
    return io.TextIOWrapper(_open_bytes(path), encoding="utf-8", errors="surrogateescape", newline="")


def _object_without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {repeated!r} stands in the same object twice")
    return made


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON value; use null")


DECODER = json.JSONDecoder(object_pairs_hook=_object_without_repeats, parse_constant=_refuse_constant)
LENIENT_DECODER = json.JSONDecoder()
"""Finds where a value ends that ``DECODER`` refuses."""


def _decode_line(line: bytes) -> Any:
    try:
        return DECODER.decode(line.decode().rstrip("\r\n"))
    except UnicodeDecodeError as err:
        return Unreadable(f"byte {err.start + 1} is not UTF-8 ({err.object[err.start]:#04x}); save the file as UTF-8.")
    except json.JSONDecodeError as err:
        return Unreadable(f"not a JSON value: {err.msg} at column {err.colno}.")
    except (ValueError, RecursionError) as err:
        return Unreadable(f"{err}.")


def _read_jsonl(path: Path, start: int) -> Iterator[RawRow]:
    with _open_bytes(path) as file:
        for number, line in enumerate(itertools.islice(file, start, None), start + 1):
            if line.strip():
                yield RawRow(str(number), number, _decode_line(line))


def _read_json(path: Path, start: int) -> Iterator[RawRow]:
    """An array of rows, decoded one by one; a file that begins with ``{`` is JSON lines under another name."""
    with _open_bytes(path) as file:
        first = b""
        while not first.strip() and (chunk := file.read(CHUNK_BYTES)):
            first = chunk.lstrip()
    if first.startswith(b"{"):
        yield from _read_jsonl(path, start)
    elif first.startswith(b"["):
        with _open_text(path) as text:
            yield from itertools.islice(_read_json_array(text), start, None)
    elif first:
        raise DataError(f"{path} begins with {first[:1]!r}; wanted a JSON array of rows, or one row on each line.")


def _read_json_array(text: IO[str]) -> Iterator[RawRow]:
    buffer = text.read(CHUNK_BYTES).lstrip().removeprefix("[")
    line, number, need = 1, 0, CHUNK_BYTES
    while True:
        try:
            value, begin, end = _next_item(buffer, number)
        except (json.JSONDecodeError, RecursionError) as err:
            # The item may simply go on behind what was read; asking for twice as much each time keeps this linear.
            if more := text.read(need):
                buffer, need = buffer + more, need * 2
                continue
            line += buffer.count("\n", 0, err.pos if isinstance(err, json.JSONDecodeError) else 0)
            reason = err.msg if isinstance(err, json.JSONDecodeError) else "nested too deeply"
            after = f"row {number + 1}"
            yield RawRow(
                after,
                number + 1,
                Unreadable(f"not a JSON value: {reason}, on or behind line {line}; nothing from here on can be read."),
            )
            return
        if end == 0:
            return
        line += buffer.count("\n", 0, begin)
        number, need = number + 1, CHUNK_BYTES
        yield RawRow(f"row {number}", number, value)
        line += buffer.count("\n", begin, end)
        buffer = buffer[end:]


def _next_item(buffer: str, number: int) -> tuple[Any, int, int]:
    """One item of an array, and where it begins and ends; (None, 0, 0) behind the last.

    Raises:
        json.JSONDecodeError: The buffer does not hold it whole, or it is not JSON.
    """
    begin = _skip_space(buffer, 0)
    if buffer.startswith("]", begin):
        rest = _skip_space(buffer, begin + 1)
        if rest < len(buffer):
            raise json.JSONDecodeError("something follows the closing bracket of the array", buffer, rest)
        return None, 0, 0
    if number:
        if not buffer.startswith(",", begin):
            raise json.JSONDecodeError("wanted ',' or ']' behind an item", buffer, begin)
        begin = _skip_space(buffer, begin + 1)
    try:
        value, end = DECODER.raw_decode(buffer, begin)
    except json.JSONDecodeError:
        raise
    except ValueError as err:  # the item is JSON, but not such as we take
        value = Unreadable(f"{err}.")
        _, end = LENIENT_DECODER.raw_decode(buffer, begin)
    return value, begin, end


def _skip_space(text: str, start: int) -> int:
    """The first place at or behind ``start`` that is not JSON's white space."""
    while start < len(text) and text[start] in " \t\r\n":
        start += 1
    return start


def _read_csv(path: Path, start: int) -> Iterator[RawRow]:
    with _open_text(path) as text:
        reader = csv.reader(text, strict=True)
        try:
            header = next(reader)
        except StopIteration:
            return
        repeated = [name for name in header if header.count(name) > 1]
        if repeated:
            raise DataError(f"{path}:1: the column {repeated[0]!r} stands in the header twice.")
        count = 0
        line = reader.line_num + 1
        while True:
            try:
                cells = next(reader)
            except StopIteration:
                return
            except csv.Error as err:
                yield RawRow(str(line), count + 1, Unreadable(f"not CSV: {err}; is a quote left open?"))
                return
            place, line = str(line), reader.line_num + 1
            if not cells:
                continue
            count += 1
            if count <= start:
                continue
            value: Any = dict(zip(header, cells, strict=False))
            if len(cells) != len(header):
                value = Unreadable(f"there are {len(cells)} cells for {len(header)} columns ({', '.join(header)}).")
            yield RawRow(place, count, value)


def _read_parquet(path: Path, start: int) -> Iterator[RawRow]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(path)
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
            yield from _number_rows((row for batch in batches for row in batch.to_pylist()), begin, start)
    except pa.ArrowException as err:
        raise DataError(f"{path} is not a Parquet file, or is damaged: {err}.") from err


def _read_arrow(path: Path, start: int) -> Iterator[RawRow]:
    import pyarrow as pa

    try:
        with pa.memory_map(str(path)) as mapped:
            try:
                reader = pa.ipc.open_stream(mapped)  # what `datasets` writes
            except pa.ArrowInvalid:
                mapped.seek(0)
                opened = pa.ipc.open_file(mapped)
                reader = (opened.get_batch(number) for number in range(opened.num_record_batches))
            begin = 0
            for batch in reader:
                if begin + batch.num_rows <= start:
                    begin += batch.num_rows
                    continue
                pieces = (batch.slice(first, 1024) for first in range(0, batch.num_rows, 1024))
                yield from _number_rows((row for piece in pieces for row in piece.to_pylist()), begin, start)
                begin += batch.num_rows
    except pa.ArrowException as err:
        raise DataError(f"{path} is not an Arrow file, or is damaged: {err}.") from err


def _number_rows(rows: Iterable[Any], begin: int, start: int) -> Iterator[RawRow]:
    """Number rows of which the first is the ``begin``-th of the file, leaving out those before ``start``."""
    for number, row in enumerate(rows, begin + 1):
        if number > start:
            yield RawRow(f"row {number}", number, row)


def _list_part(rows: Sequence[Any]) -> Part:
    def read(start: int) -> Iterator[RawRow]:
        for number, row in enumerate(itertools.islice(rows, start, None), start + 1):
            # Rows that are made already keep their place of origin.
            place = row.where if isinstance(row, Row) and row.where else f"row {number}"
            yield RawRow(place, number, row)

    return Part(where="", label="", read=read, fingerprint=f"list:{len(rows)}")


def _dataset_part(dataset: Any, where: str) -> Part:
    """A ``datasets.Dataset`` or ``IterableDataset``; both know ``skip``."""
    size = getattr(dataset, "num_rows", None)

    def read(start: int) -> Iterator[RawRow]:
        if size is not None and start >= size:  # `skip` refuses to go to the very end
            return iter(())
        return _number_rows(iter(dataset.skip(start) if start else dataset), start, start)

    label = Path(where).name if where else ""
    return Part(where=where, label=label, read=read, fingerprint=f"{label}:{size}")


def _hub_part(name: str, split: str, subset: str | None, streaming: bool) -> Part:
    import datasets

    try:
        loaded = datasets.load_dataset(name, subset, split=split, streaming=streaming)
    except Exception as err:  # the library raises whatever its many readers raise
        raise DataError(
            f"{name!r} is not a file or folder here, and could not be loaded from the hub as a data set "
            f"(split {split!r}): {type(err).__name__}: {str(err).splitlines()[0] if str(err) else 'no message'}. "
            "Check the name and the network, or download the files and give their path."
        ) from err
    return _dataset_part(loaded, name)
