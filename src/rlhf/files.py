"""Writing files so that a reader, or a crash, never sees half of one."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any


@contextlib.contextmanager
def write_aside(path: Path | str) -> Iterator[Path]:
    """Give a temporary path beside ``path``; on leaving without an error it is synced to disk and renamed onto it."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    os.close(handle)
    aside = Path(name)
    try:
        yield aside
        fsync(aside)
        aside.chmod(0o666 & ~_umask())  # mkstemp makes files private; a result should be as readable as any other file
        os.replace(aside, path)
        fsync(path.parent)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise


def write_text(path: Path | str, text: str) -> None:
    """Write a whole text file in one step."""
    with write_aside(path) as aside:
        aside.write_text(text, encoding="utf-8")


def write_json(path: Path | str, value: Any) -> None:
    """Write JSON, indented, keys in the order given, with a final newline; NaN is refused."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def write_jsonl(path: Path | str, rows: Iterable[Any]) -> int:
    """Write one JSON value a line; returns how many."""
    count = 0
    with write_aside(path) as aside, aside.open("w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n")
            count += 1
    return count


def sha256(path: Path | str) -> str:
    """Hex digest of a file's bytes, read in pieces."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fsync(path: Path) -> None:
    """Ask the system to put a file or a folder on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
