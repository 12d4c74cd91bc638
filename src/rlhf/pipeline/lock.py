"""One process to a run folder.

The system's own lock on ``.lock`` decides; it ends with the process, however that ends. What stands in the file is for
people, and for file systems that know no locks.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from rlhf.errors import RunBusyError

FILE = ".lock"
NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL)
"""What file systems say that can't lock."""
TRIES = 5
"""Somebody who only looks (``is_locked``) holds the lock for an instant."""


@contextmanager
def locked(run_dir: Path) -> Iterator[None]:
    """Keep other processes out of a run folder.

    Raises:
        RunBusyError: Another live process has it; names it.
    """
    with _opened(run_dir) as file:
        file.seek(0)
        file.truncate()
        owner = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.time(), "command": _command()}
        file.write(json.dumps(owner) + "\n")
        file.flush()
        try:
            yield
        finally:
            file.seek(0)
            file.truncate()


@contextmanager
def _opened(run_dir: Path) -> Iterator[IO[str]]:
    """The lock's file, locked; opened again where somebody removed the run between opening and locking."""
    while True:
        run_dir.mkdir(parents=True, exist_ok=True)
        with (run_dir / FILE).open("a+", encoding="utf-8") as file:
            _acquire(file, run_dir)
            try:
                is_there = os.path.samestat(os.fstat(file.fileno()), os.stat(run_dir / FILE))
            except FileNotFoundError:
                is_there = False
            if is_there:
                yield file
                return


def is_locked(run_dir: Path, *, by_others: bool = False) -> bool:
    """Whether a live process works in a run folder; with ``by_others``, one that is not this."""
    if by_others and _is_own(_owner(run_dir)):
        return False
    try:
        with (run_dir / FILE).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError as err:
        return err.errno not in NO_LOCKS or _lives(_owner(run_dir))
    return False


def _acquire(file: IO[str], run_dir: Path) -> None:
    for attempt in range(TRIES):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as err:
            if err.errno in NO_LOCKS:
                if not _lives(_owner(run_dir)):
                    return
                break
            if attempt < TRIES - 1:
                time.sleep(0.05)
        else:
            return
    raise RunBusyError(busy(run_dir))


def busy(run_dir: Path) -> str:
    """What to tell anyone who finds a run folder locked."""
    return (
        f"{run_dir} is in use by {_described(_owner(run_dir))}. Wait for it or end it; or give this run another name=."
    )


def _owner(run_dir: Path) -> dict[str, Any]:
    try:
        owner = json.loads((run_dir / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return owner if isinstance(owner, dict) else {}


def _described(owner: dict[str, Any]) -> str:
    if not owner:
        return "another process that has not yet said which"
    who = "this same process" if _is_own(owner) else f"process {owner.get('pid')} on {owner.get('host')}"
    since = owner.get("since")
    age = f", for {age_in_words(time.time() - since)}" if isinstance(since, int | float) else ""
    return f"{who}{age} ({owner.get('command') or 'command unknown'})"


def _is_own(owner: dict[str, Any]) -> bool:
    return owner.get("pid") == os.getpid() and owner.get("host") == socket.gethostname()


def _lives(owner: dict[str, Any]) -> bool:
    """Whether the recorded owner is a process of this machine that is still there; of other machines nothing is known."""
    pid = owner.get("pid")
    if not isinstance(pid, int) or owner.get("host") != socket.gethostname() or pid == os.getpid():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def age_in_words(seconds: float) -> str:
    """``3 minutes``, ``1 hour``, ``2 days``."""
    for size, unit in ((86_400, "day"), (3_600, "hour"), (60, "minute"), (1, "second")):
        count = int(seconds // size)
        if count >= 1:
            return f"{count} {unit}{'s' * (count > 1)}"
    return "less than a second"


def _command() -> str:
    return " ".join([Path(sys.argv[0]).name, *sys.argv[1:]])[:200] if sys.argv and sys.argv[0] else "python"
