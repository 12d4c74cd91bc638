"""Opening data files as bytes or text: UTF-8, with or without a byte order mark, packed by gzip or not."""

from __future__ import annotations

import gzip
import io
import re
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from rlhf.data.message_text import printable
from rlhf.errors import DataError

MAGIC: Mapping[bytes, str] = {
    b"\x1f\x8b": "a gzip archive; rename it so that it ends in .gz",
    b"\x28\xb5\x2f\xfd": "a Zstandard archive; unpack it first: zstd -d FILE",
    b"PK\x03\x04": "a zip archive or an Excel sheet; unpack it, or save the sheet as CSV",
    b"BZh": "a bzip2 archive; unpack it first: bunzip2 FILE",
    b"\xfd7zXZ": "an xz archive; unpack it first: unxz FILE",
    b"PAR1": "a Parquet file; rename it so that it ends in .parquet",
    b"ARROW1": "an Arrow file; rename it so that it ends in .arrow",
}
"""How files begin that only claim to be text -> what they are, and what to do."""

WIDE_MARKS: Mapping[bytes, str] = {
    b"\xff\xfe\x00\x00": "UTF-32",
    b"\x00\x00\xfe\xff": "UTF-32",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}
"""Byte order marks of encodings that are not read."""

UNDECODABLE = re.compile("[\udc80-\udcff]")
"""What ``open_text`` makes of bytes that are not UTF-8."""


def open_bytes(path: Path) -> IO[bytes]:
    """The bytes behind gzip and the byte order mark; the caller closes them.

    Raises:
        DataError: By its first bytes the file is something else than its name says, or wide characters.
    """
    # gzip's and the plain file share no base class that mypy knows.
    opener: Any = gzip.open if path.name.endswith(".gz") else open
    file = opener(path, "rb")
    try:
        start: bytes = file.peek(8)[:8]
        _refuse_other_formats(path, start)
        if start.startswith(b"\xef\xbb\xbf"):
            file.read(3)
    except BaseException:
        file.close()
        raise
    reader: IO[bytes] = file
    return reader


def open_text(path: Path) -> IO[str]:
    """As ``open_bytes``; bytes that are not UTF-8 come through as lone surrogates, which the readers refuse by place."""
    return io.TextIOWrapper(open_bytes(path), encoding="utf-8", errors="surrogateescape", newline="")


def _refuse_other_formats(path: Path, start: bytes) -> None:
    name = printable(path)
    for magic, what in MAGIC.items():
        if start.startswith(magic):
            raise DataError(f"{name} is not text but {what.replace('FILE', path.name)}.")
    encoding = next((encoding for mark, encoding in WIDE_MARKS.items() if start.startswith(mark)), None)
    if (
        encoding is None
        and len(start) >= 4
        and 0 in start[:2]
        and (start[0] == start[2] == 0) != (start[1] == start[3] == 0)
    ):
        # Every other byte is zero: letters in UTF-16 without its mark. Nothing but zeros is a file that a crash cut short.
        encoding = "UTF-16LE" if start[1] == 0 else "UTF-16BE"
    if encoding is not None:
        raise DataError(f"{name} is {encoding}, and data files are UTF-8. {convert_command(path, encoding)}")


def convert_command(path: Path, encoding: str = "WINDOWS-1252") -> str:
    """The sentence that says how to make UTF-8 of a file."""
    packed = path.name.endswith(".gz")
    source = (
        f"gunzip -c {path.name} | iconv -f {encoding} -t UTF-8"
        if packed
        else f"iconv -f {encoding} -t UTF-8 {path.name}"
    )
    return f"Convert it with: {source} > utf8-{path.name.removesuffix('.gz')}"


def not_utf8(path: Path, byte: int, place: str) -> str:
    """The reason to refuse a row that holds a byte which is not UTF-8."""
    return (
        f"{place} is {byte:#04x}, which is not UTF-8; the file may be Latin-1 or Windows-1252. {convert_command(path)}"
    )


def undecodable_byte(text: str, start: int = 0, end: int | None = None) -> tuple[int, int] | None:
    """Of a text that ``open_text`` gave: the place of the first byte that is not UTF-8, and that byte."""
    if text.isascii():
        return None
    match = UNDECODABLE.search(text, start, len(text) if end is None else end)
    return None if match is None else (match.start(), ord(match[0]) - 0xDC00)
