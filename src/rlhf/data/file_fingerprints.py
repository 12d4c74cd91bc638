"""Files that must stay as they are while they are read: a changed one is named instead of being read half old, half new."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from rlhf.data.message_text import printable
from rlhf.errors import DataError
from rlhf.files import sha256

T = TypeVar("T")
SECONDS_BETWEEN_LOOKS = 0.5
KINDS = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}


@dataclass(frozen=True, slots=True)
class Stamp:
    """What changes when somebody writes to a file or puts another one in its place."""

    size: int
    modified_ns: int
    inode: int

    def difference(self, now: Stamp) -> str:
        """What happened between two looks."""
        if now.size != self.size:
            return f"it {'grew' if now.size > self.size else 'shrank'} from {self.size:,} to {now.size:,} bytes"
        return "another file took its place" if now.inode != self.inode else "it was written to"


def take_stamp(path: Path) -> Stamp:
    """Look at a file that is to be read.

    Raises:
        DataError: It is gone, can't be looked at, or is not a regular file.
    """
    status = look(path)
    if status is None:
        raise DataError(f"There is no file {printable(path)} any more; it was there when the data was opened.")
    if not stat.S_ISREG(status.st_mode):
        kind = KINDS.get(stat.S_IFMT(status.st_mode), "no regular file")
        raise DataError(
            f"{printable(path)} is {kind}; wanted a regular file, which can be read twice. "
            "Write the rows to a file first and name that."
        )
    return Stamp(status.st_size, status.st_mtime_ns, status.st_ino)


def look(path: Path) -> os.stat_result | None:
    """What is at a path, links followed; None where there is nothing.

    Raises:
        DataError: The system does not say: no permission, or links that go round in a circle.
    """
    try:
        return path.stat()
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: a NUL in the name
        return None
    except OSError as err:
        if err.errno == errno.ELOOP:
            reason = "its symbolic links go round in a circle; name the file itself."
        elif err.errno == errno.ENAMETOOLONG:
            reason = "the name is longer than the system allows."
        else:
            reason = f"{err.strerror}; check who may read the folders on the way to it."
        raise DataError(f"{printable(path)[:400]} can't be opened: {reason}") from err


@dataclass(slots=True)
class Watched:
    """A file, or the files of a folder, as they were when the data was opened."""

    paths: tuple[Path, ...]
    stamps: tuple[Stamp, ...] = ()
    _content: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        self.stamps = self.stamps or tuple(take_stamp(path) for path in self.paths)

    def check(self) -> None:
        """Compare with the files as they are now.

        Raises:
            DataError: Naming the one that changed, and how.
        """
        for path, before in zip(self.paths, self.stamps, strict=True):
            now = take_stamp(path)
            if now != before:
                raise DataError(
                    f"{printable(path)} changed while it was in use: {before.difference(now)} after it had been "
                    "opened. Rows read before and after would not belong together; start again when nobody writes to it, "
                    "or read a copy."
                )

    def rows(self, rows: Iterator[T]) -> Iterator[T]:
        """Pass rows on, and look at the files before the first, twice a second, and behind the last.

        Damage found by a reader may be a change under its hands, so then the change is what is named.
        """
        self.check()
        looked = time.monotonic()
        try:
            for row in rows:
                if time.monotonic() - looked > SECONDS_BETWEEN_LOOKS:
                    self.check()
                    looked = time.monotonic()
                yield row
        except DataError:
            self.check()
            raise
        self.check()

    def content(self) -> str:
        """Hash of all bytes, 16 hex digits; read once."""
        if not self._content:
            hashes = [sha256(path) for path in self.paths]
            self.check()
            self._content = hashes[0][:16] if len(hashes) == 1 else sha_of_text("".join(hashes))
        return self._content


def sha_of_text(text: str) -> str:
    """16 hex digits that stand for a text."""
    import hashlib

    return hashlib.sha256(text.encode(errors="backslashreplace")).hexdigest()[:16]
