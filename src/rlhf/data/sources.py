"""Where raw rows come from: files of five formats, folders, the hub, ``datasets`` objects and lists.

A source is a list of ``Part``s, one for each file. A part gives its rows one by one from any place in it, so that
nothing is loaded that is not asked for and a stream can go on where it stopped.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rlhf.data.arrow_rows import read_arrow
from rlhf.data.contracts import Row
from rlhf.data.file_fingerprints import Watched, look, sha_of_text
from rlhf.data.message_text import describe, listed, one_line, printable
from rlhf.data.raw import RawRow, number_rows
from rlhf.data.readers import FileFormat, read_file
from rlhf.data.saved import is_saved_dataset, saved_files
from rlhf.data.user_rows import UserRows, names_rows
from rlhf.errors import DataError, did_you_mean_file

SUFFIXES: Mapping[str, FileFormat] = {
    ".jsonl": FileFormat.JSONL,
    ".ndjson": FileFormat.JSONL,
    ".json": FileFormat.JSON,
    ".csv": FileFormat.CSV,
    ".parquet": FileFormat.PARQUET,
    ".arrow": FileFormat.ARROW,
}
OTHER_SUFFIXES: Mapping[str, str] = {
    ".zst": "Unpack it first: zstd -d",
    ".bz2": "Unpack it first: bunzip2",
    ".xz": "Unpack it first: unxz",
    ".zip": "Unpack it first: unzip",
    ".tsv": "Save it with commas instead of tabs, as .csv",
    ".xlsx": "Save the sheet as .csv",
    ".txt": 'Make each text a row: {"text": "..."}, as .jsonl',
}
"""Formats that people have and we do not read -> what to do."""


def _always() -> None:
    """Rows in memory stay as they are."""


@dataclass(frozen=True, slots=True)
class Part:
    """One file, or one in-memory table."""

    where: str
    """The path as given; begins every message about a row. Empty for a list."""
    label: str
    """Short name that tells this part from the others; begins the ids of rows that bring none."""
    read: Callable[[Any], Iterator[RawRow]]
    """Rows from a start on; 0 is the beginning, others come from ``RawRow.after``."""
    content: Callable[[], str]
    """Hash of the data, made when it is asked for."""
    check_unchanged: Callable[[], None] = _always
    """Raises ``DataError`` where a file is not what it was when the source was opened."""
    cells_are_text: bool = False
    """CSV: every value is a string."""

    @property
    def fingerprint(self) -> str:
        """Label and content: a stream's saved cursor is only good for the same data."""
        return f"{self.label}:{self.content()}"

    def name(self, place: str) -> str:
        """Path and line, for messages."""
        return f"{self.where}:{place}" if self.where else place

    def row_id(self, place: str) -> str:
        """Label and line, for ids."""
        return f"{self.label}:{place}" if self.label else place


Source = str | os.PathLike[str] | Iterable[Any]
"""A path, a folder, a hub name, ``package.module:Rows``, a list of paths, a list of rows, or a ``datasets`` object."""


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
        if "path" in source:
            raise DataError(
                "The data is a mapping with `path`, as a recipe's `data` is; in Python give the path, and what else it holds by keyword "
                "(max_length=...) or as a method (deduplicate())."
            )
        if split is None or split not in source:
            raise DataError(f"The data has several splits ({listed(source)}) and split is {split!r}; name one of them.")
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
            f"{printable(name)} is not of a known format; wanted a name that ends in {', '.join(SUFFIXES)} "
            f"(.gz behind the first four is fine).{f' {hint}.' if (hint := OTHER_SUFFIXES.get(suffix)) else ''}"
        )
    return known


def source_name(source: Any) -> str:
    """How messages call a source."""
    if isinstance(source, (str, os.PathLike)):
        return printable(os.fspath(source))
    if isinstance(source, Sequence) and source and all(isinstance(item, (str, os.PathLike)) for item in source):
        return ", ".join(printable(os.fspath(item))[:200] for item in source[:4]) + (" ..." if len(source) > 4 else "")
    return type(source).__name__


def _has_known_suffix(name: str) -> bool:
    return Path(name.removesuffix(".gz")).suffix.lower() in SUFFIXES


def _looks_like_path(text: str) -> bool:
    if len(text) > 1024 or "\n" in text:
        return False
    is_rows = names_rows(text) and "." in text.rpartition(":")[0]  # a plain word before a colon is as likely a text
    return is_rows or _has_known_suffix(text) or os.path.exists(text)


def _open_path(name: str, split: str | None, subset: str | None, streaming: bool) -> list[Part]:
    if not name.strip():
        raise DataError("The name of the data is empty; wanted a path, a folder or a hub name.")
    if names_rows(name):
        rows = UserRows(name)
        return [Part(where=name, label=name.rpartition(":")[2], read=rows.read, content=rows.content)]
    with contextlib.suppress(RuntimeError):  # there is no such user's home
        name = os.path.expanduser(name)
    path = Path(name)
    status = look(path)
    if status is not None and stat.S_ISDIR(status.st_mode):
        return _open_folder(path, split)
    if status is not None:
        if split is not None:
            raise DataError(
                f"{printable(path)} is one file and has no split {split!r}; leave split out, or name a folder."
            )
        return [_file_part(path)]
    if path.is_symlink():
        raise DataError(f"{printable(path)} is a link to {printable(os.readlink(path))}, which does not exist.")
    if _looks_like_path(name) or name.startswith((".", "/", "~")) or name.count("/") > 1 or not name.isprintable():
        siblings = [entry.name for entry in _entries(path.parent)] if look(path.parent) else []
        raise DataError(f"There is no file or folder {printable(name)}.{did_you_mean_file(path.name, siblings)}")
    return [_hub_part(name, split or "train", subset, streaming)]


def _entries(folder: Path) -> list[Path]:
    """What a folder holds."""
    try:
        return sorted(folder.iterdir())
    except NotADirectoryError:
        return []
    except OSError as err:
        raise DataError(
            f"The folder {printable(folder)} can't be listed: {err.strerror}; check who may read it."
        ) from err


def _open_folder(path: Path, split: str | None) -> list[Part]:
    if is_saved_dataset(path):
        return [_saved_dataset_part(path, split)]
    name = printable(path)
    files = [file for file in _entries(path) if file.is_file() and _has_known_suffix(file.name)]
    if split is not None:
        files = [file for file in files if re.match(rf"{re.escape(split)}(?![A-Za-z0-9])", file.name)]
    if not files:
        wanted = f"whose names begin with {split!r}" if split is not None else f"({', '.join(SUFFIXES)})"
        inside = listed(entry.name for entry in _entries(path)) or "nothing"
        raise DataError(f"The folder {name} holds no data files {wanted}; found {inside}.")
    if split is None and len(files) > 1:
        # Reading train and test together would go unnoticed.
        names = ", ".join(printable(file.name) for file in files[:8])
        raise DataError(
            f"The folder {name} holds {len(files)} data files ({names}); name a split, or give a list of files."
        )
    return _with_labels([_file_part(file) for file in files])


def _with_labels(parts: list[Part]) -> list[Part]:
    """Give files of the same name as much of their path as tells them apart."""
    for depth in range(1, 16):
        labels = ["/".join(Path(part.where).parts[-depth:]) if part.where else part.label for part in parts]
        if len(set(labels)) == len(labels):
            break
    return [replace(part, label=label) for part, label in zip(parts, labels, strict=True)]


def _file_part(path: Path) -> Part:
    known = file_format(path)
    watched = Watched((path,))
    if watched.stamps[0].size == 0:
        raise DataError(f"{printable(path)} is empty; wanted at least one row.")
    return Part(
        where=printable(path),
        label=printable(path.name),
        read=lambda start: watched.rows(read_file(path, known, start)),
        content=watched.content,
        check_unchanged=watched.check,
        cells_are_text=known is FileFormat.CSV,
    )


def _list_part(rows: Sequence[Any]) -> Part:
    def read(start: int) -> Iterator[RawRow]:
        for number in range(start + 1, len(rows) + 1):
            row = rows[number - 1]
            # Rows that are made already keep their place of origin.
            place = row.where if isinstance(row, Row) and row.where else f"row {number}"
            yield RawRow(place, number, row)

    def content() -> str:
        return sha_of_text("\x1e".join(map(repr, rows)))

    return Part(where="", label="", read=read, content=content)


def _dataset_part(dataset: Any, where: str) -> Part:
    """A ``datasets.Dataset`` or ``IterableDataset``; both know ``skip``."""
    size = getattr(dataset, "num_rows", None)

    def read(start: int) -> Iterator[RawRow]:
        if size is not None and start >= size:  # `skip` refuses to go to the very end
            return
        try:
            yield from number_rows(iter(dataset.skip(start) if start else dataset), start, start)
        except Exception as err:  # the library raises whatever its many readers raise
            what = f"The data set {where or describe(dataset)}"
            raise DataError(f"{what} can't be read: {type(err).__name__}: {one_line(err)}.") from err

    def content() -> str:
        return f"{size}:{getattr(dataset, '_fingerprint', '')}"

    return Part(where=where, label=Path(where).name if where else "", read=read, content=content)


def _saved_dataset_part(path: Path, split: str | None) -> Part:
    """A folder that ``datasets`` wrote, as one part: its rows are counted through all its files."""
    watched = Watched(saved_files(path, split))
    return Part(
        where=printable(path),
        label=printable(path.name),
        read=lambda start: watched.rows(read_arrow(watched.paths, start)),
        content=watched.content,
        check_unchanged=watched.check,
    )


def _hub_part(name: str, split: str, subset: str | None, streaming: bool) -> Part:
    import datasets

    try:
        loaded = datasets.load_dataset(name, subset, split=split, streaming=streaming)
    except Exception as err:  # the library raises whatever its many readers raise
        raise DataError(
            f"{name!r} is not a file or folder here, and could not be loaded from the hub as a data set "
            f"(split {split!r}): {type(err).__name__}: {one_line(err)}. "
            "Check the name and the network, or download the files and give their path."
        ) from err
    return _dataset_part(loaded, name)
