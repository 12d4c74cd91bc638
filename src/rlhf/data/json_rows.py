"""Rows of JSON text: one on each line, or the items of an array."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import IO, Any

from rlhf.data.encoding import not_utf8, open_bytes, open_text, undecodable_byte
from rlhf.data.message_text import listed, printable, short
from rlhf.data.raw import MAX_ROW_BYTES, RawRow, Unreadable
from rlhf.data.strict_json import RefusedJsonError, decode, decode_from, find_end, skip_space
from rlhf.errors import DataError

CHUNK_BYTES = 1 << 20
MOST_BLANK_LINES = 20
"""Looked through for the first two lines that say something."""


def read_jsonl(path: Path, start: int) -> Iterator[RawRow]:
    _refuse_pretty_json(path)
    with open_bytes(path) as file:
        number = 0
        while line := file.readline(MAX_ROW_BYTES + 1):
            number += 1
            size = len(line)
            if size > MAX_ROW_BYTES:
                line, size = b"", size + _skip_line(file, line)
            if number > start and (size > MAX_ROW_BYTES or line.strip()):
                yield RawRow(str(number), number, _decode_line(line, path) if line else Unreadable(_too_long(size)))


def _refuse_pretty_json(path: Path) -> None:
    """Refuse a file that is one array, or whose rows go over several lines: every single line of it would be a bad row."""
    with open_bytes(path) as file:
        begin = (file.readline(MAX_ROW_BYTES + 1) for _ in range(MOST_BLANK_LINES))
        lines = list(islice((line.strip() for line in begin if line.strip()), 3))
    if not lines or max(map(len, lines)) >= MAX_ROW_BYTES:
        return  # anyone who reads the lines says so
    first, name = lines[0], printable(path)
    is_whole, value = _whole(first)
    if is_whole:
        if len(lines) == 1 and isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
            raise DataError(f"{name} is a JSON array on one line, not one object on each line; name it .json.")
        return
    goes_on = len(lines) > 1 and (not _whole(lines[1])[0] or lines[2:] == [b"]"])
    if first.startswith(b"[") and goes_on:
        raise DataError(f"{name} is a JSON array over several lines, not one object on each line; name it .json.")
    if first == b"{" and goes_on:
        raise DataError(
            f"{name} holds JSON objects over several lines each, not one on each line; write them again: jq -c . {name}"
        )


def _whole(line: bytes) -> tuple[bool, Any]:
    """Whether a line is a JSON value by itself, and that value."""
    try:
        return True, decode(line.decode())
    except (UnicodeDecodeError, json.JSONDecodeError):
        return False, None
    except RefusedJsonError:
        return True, None


def _skip_line(file: IO[bytes], line: bytes) -> int:
    """Read on to the end of a line whose beginning is known; returns how many bytes that were."""
    size = 0
    while line and not line.endswith(b"\n"):
        line = file.readline(CHUNK_BYTES)
        size += len(line)
    return size


def _too_long(size: int) -> str:
    return f"the line is {size:,} bytes long; one row may have {MAX_ROW_BYTES:,}. Are its line breaks missing?"


def _decode_line(line: bytes, path: Path) -> Any:
    if 0 in line:
        count = line.count(0)
        return Unreadable(
            f"holds {count:,} NUL bytes, which no text has; was the file cut short by a crash? Write it again."
        )
    try:
        return decode(line.decode().rstrip("\r\n"))
    except UnicodeDecodeError as err:
        return Unreadable(not_utf8(path, err.object[err.start], f"byte {err.start + 1}"))
    except json.JSONDecodeError as err:
        hint = ""
        if b"\r{" in line:
            hint = " The rows are parted by bare carriage returns; make them line feeds: tr '\\r' '\\n'."
        return Unreadable(
            f"not a JSON value: {err.msg.removesuffix(' at')} at column {err.colno}; wanted one object on each line.{hint}"
        )
    except RefusedJsonError as err:
        return Unreadable(f"{err}.")


def read_json(path: Path, start: int) -> Iterator[RawRow]:
    """An array of rows, decoded one by one; a file that begins with ``{`` is JSON lines under another name."""
    with open_bytes(path) as file:
        first = b""
        while not first.strip() and (chunk := file.read(CHUNK_BYTES)):
            first = chunk.lstrip()
    if first.startswith(b"{"):
        _refuse_one_object(path)
        yield from read_jsonl(path, start)
    elif first.startswith(b"["):
        with open_text(path) as text:
            for row in _JsonArray(text, path).rows():
                assert isinstance(row.after, int)
                if row.after > start:
                    yield row
    elif first:
        raise DataError(
            f"{printable(path)} begins with {first[:1]!r}; wanted a JSON array of rows, or one row on each line."
        )


def _refuse_one_object(path: Path) -> None:
    """Refuse a file that is one object over several lines: its rows are under one of its keys, or there are none."""
    with open_text(path) as text:
        whole = text.read(MAX_ROW_BYTES)
    if "\n" not in whole.strip():
        return  # one row on one line
    try:
        value = decode(whole)
    except (json.JSONDecodeError, RefusedJsonError):
        return  # the reader of JSON lines will say where
    lists = [key for key, item in value.items() if isinstance(item, list)]
    what = f"write what is under {short(lists[0])} to a file of its own" if lists else "put it in [ ]"
    raise DataError(
        f"{printable(path)} is one JSON object with the keys {listed(value) or '(none)'}; wanted an array of rows, or one "
        f"row on each line: {what}."
    )


class _JsonArray:
    """The items of an array, read piece by piece."""

    def __init__(self, text: IO[str], path: Path) -> None:
        self.text = text
        self.path = path
        self.buffer = ""
        self.at = 0
        self.line = 1
        self.number = 0

    def rows(self) -> Iterator[RawRow]:
        self._find_bracket()
        while self._find_item():
            begin = self.at
            value, end = self._decode_item()
            self.number += 1
            if isinstance(value, Unreadable):
                value = Unreadable(f"{value.reason} (The row begins on line {self.line}.)")
            elif bad := undecodable_byte(self.buffer, begin, end):
                line = self.line + self.buffer.count("\n", begin, bad[0])
                value = Unreadable(not_utf8(self.path, bad[1], f"a byte on line {line}"))
            self._move_to(end)
            yield RawRow(f"row {self.number}", self.number, value)

    def _find_bracket(self) -> None:
        while (at := skip_space(self.buffer, self.at)) == len(self.buffer) and self._read_more(CHUNK_BYTES):
            pass
        self._move_to(at + 1)

    def _find_item(self) -> bool:
        """Go to where the next item begins; False behind the last."""
        self._skip_space()
        if self.buffer.startswith("]", self.at):
            self._move_to(self.at + 1)
            self._skip_space()
            if self.at < len(self.buffer):
                raise self._broken("something follows the closing bracket of the array")
            return False
        if self.number:
            if not self.buffer.startswith(",", self.at):
                raise self._broken("wanted ',' or ']' behind an item")
            self._move_to(self.at + 1)
            self._skip_space()
        return True

    def _decode_item(self) -> tuple[Any, int]:
        """The item at the cursor and where it ends."""
        need = CHUNK_BYTES
        while True:
            try:
                value, end = decode_from(self.buffer, self.at)
                if end < len(self.buffer):  # a number may go on behind what was read
                    return value, end
                reason = "the file ends inside the array"
            except json.JSONDecodeError as err:
                reason = err.msg.removesuffix(" at")
            except RefusedJsonError as err:
                reason = str(err)
                if (value_end := find_end(self.buffer, self.at)) is not None:
                    return Unreadable(f"{reason}."), value_end
            # The item may simply go on; asking for twice as much each time keeps this linear.
            if len(self.buffer) - self.at > MAX_ROW_BYTES or not self._read_more(need):
                raise self._broken(reason)
            need *= 2

    def _skip_space(self) -> None:
        self._move_to(skip_space(self.buffer, self.at))
        while self.at == len(self.buffer) and self._read_more(CHUNK_BYTES):
            self._move_to(skip_space(self.buffer, self.at))

    def _read_more(self, size: int) -> bool:
        more = self.text.read(size)
        if more:
            self.buffer, self.at = self.buffer[self.at :] + more, 0
        return bool(more)

    def _move_to(self, place: int) -> None:
        self.line += self.buffer.count("\n", self.at, place)
        self.at = place

    def _broken(self, reason: str) -> DataError:
        """Behind this nobody can say where the next row begins."""
        return DataError(
            f"{printable(self.path)}:row {self.number + 1}: not a JSON value: {reason}, on or behind line {self.line}; "
            "nothing from here on can be read. Mend the file, or write one row on each line (.jsonl)."
        )
