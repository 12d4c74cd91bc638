"""The folders that programs run in: locked while their process lives, so that those of a killed process can be identified."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

PREFIX = "rlhf-code-"
"""Of their names in the temporary folder."""


@contextlib.contextmanager
def scratch_folder() -> Iterator[str]:
    """An empty folder of our own, removed afterwards; a process that is killed here leaves it to ``remove_abandoned``.

    Raises:
        OSError: The temporary folder can't be written.
    """
    while True:
        path = tempfile.mkdtemp(prefix=PREFIX)
        with _opened(path) as folder:
            if folder is None:
                continue  # taken for abandoned between being made and being locked
            with contextlib.suppress(
                OSError
            ):  # a file system without locks: then nothing there can be locked by others
                fcntl.flock(folder, fcntl.LOCK_EX)
            if not os.path.isdir(path):
                continue
            try:
                yield path
            finally:
                shutil.rmtree(path, ignore_errors=True)
            return


def remove_abandoned() -> None:
    """Remove the folders whose process is gone: their lock is free."""
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError), _opened(path) as folder:  # locked, another user's, or not a folder
            if folder is not None:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def _opened(path: Path | str) -> Iterator[int | None]:
    """A descriptor of a folder, which no program that we start inherits; None where it is gone."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except FileNotFoundError:
        yield None
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)
