"""Atomic file writes, also across crashes; a full or unwritable disk is a ``StorageError``."""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import json
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from rlhf.errors import RLHFError, StorageError
from rlhf.formatting import bytes_text

RESERVE_BYTES = 16 * 2**20
"""What ``check_space`` leaves free for logs and small files that are written later."""
ASIDE_SUFFIX = ".tmp"
"""Files and folders named ``.<name>.<letters>.tmp`` are being written, or were left by a process that was killed."""

CACHE_VARIABLE = "RLHF_CACHE"
"""Environment variable: the folder of all our caches, or ``off`` for none."""

_FREE_SPACE = "Free some space there or write to another disk, then start the same command again."
_PERMISSION = "Give this user the right to write there, or choose another folder."
_TROUBLES = {
    errno.ENOSPC: ("the disk has no room left", _FREE_SPACE),
    errno.EDQUOT: ("the disk quota of this user is used up", _FREE_SPACE),
    errno.EFBIG: ("the file is larger than the system allows", "Raise the limit (ulimit -f), or choose another disk."),
    errno.EROFS: ("the disk is mounted read-only", "Mount it for writing, or choose another folder."),
    errno.EACCES: ("permission denied", _PERMISSION),
    errno.EPERM: ("the system does not permit it", _PERMISSION),
    errno.EIO: ("the disk fails (input/output error)", "Look at the system's log, and choose another disk."),
    errno.ESTALE: ("the network disk has gone (stale file handle)", "Mount it again, or choose another disk."),
    errno.ENOTDIR: ("a part of the path is a file, not a folder", "Remove that file, or choose another folder."),
    errno.EISDIR: ("there is a folder of that name", "Remove it, or choose another name."),
    errno.EEXIST: ("there is a file of that name, where a folder should be", "Remove it, or choose another name."),
    errno.ENAMETOOLONG: ("the name is too long for the file system", "Choose a shorter one."),
    errno.EMFILE: ("this process has too many files open", "Raise the limit (ulimit -n)."),
    errno.ENFILE: ("the system has too many files open", "End other programs, or raise fs.file-max."),
}
"""Error number of a failed write -> what is wrong, and what to do. A missing file is not included: only the caller
knows whether that is a wrong name or a deleted file."""
_WRITE_FAILURES = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO, errno.ESTALE}
"""Errors of writing itself. The system then names no file, and libraries wrap them in their own errors."""
_UNSYNCABLE = {errno.EINVAL, errno.ENOTSUP}
"""From file systems (FUSE, network) that can't sync a folder; ignored."""


def user_cache(part: str) -> Path | None:
    """The folder ``part`` below $RLHF_CACHE or the user's cache; None if caching is off, or the user has no home."""
    named = os.environ.get(CACHE_VARIABLE, "")
    if named == "off":
        return None
    if named:
        return Path(named).expanduser() / part
    try:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:  # a user without a home
        return None
    return cache / "rlhf" / part


@contextlib.contextmanager
def storage_errors(path: Path | str, *, advice: str = "") -> Iterator[None]:
    """Convert system errors about ``path``, or about a file in it, into a ``StorageError`` with a readable message.

    For a full disk, a quota, a read-only mount, missing permissions and the like; every other error, and one about a file
    elsewhere, is re-raised unchanged. System errors wrapped by libraries (safetensors, tokenizers, torch) are
    recognized.

    Args:
        path: The file or folder that is being written.
        advice: What to do, if the caller knows better than the general rule.
    """
    path = Path(path)
    try:
        yield
    except RLHFError:
        raise  # has a readable message already
    except Exception as err:
        error = _system_error(err)
        if error is None or error.errno not in _TROUBLES or not _concerns(error, path):
            raise
        trouble, rule = _TROUBLES[error.errno]
        room = _room(path) if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        raise StorageError(f"Can't write {_named(error) or path}: {trouble}{room}. {advice or rule}") from err


def check_space(folder: Path | str, needed_bytes: int, *, purpose: str = "Writing", advice: str = "") -> None:
    """Raise if a disk has too little space, before anything is written.

    Requires 2 % more than the estimate, which ignores blocks and folders, plus ``RESERVE_BYTES``.

    Args:
        folder: Where it will be written; need not exist yet.
        needed_bytes: Estimate of what will be written.
        purpose: Begins the message: "A checkpoint", "The model".
        advice: What to do, where the caller knows better than the general rule.

    Raises:
        StorageError: Naming the folder, what is needed and what is free.
    """
    folder = Path(folder)
    with storage_errors(folder):
        disk = shutil.disk_usage(_existing(folder))
    wanted = needed_bytes + needed_bytes // 50 + RESERVE_BYTES
    if disk.total and disk.free < wanted:  # some network and FUSE disks report 0 of 0 for unknown
        raise StorageError(
            f"{purpose} in {folder} needs {bytes_text(wanted)}, {bytes_text(RESERVE_BYTES)} of it as a reserve, and "
            f"{bytes_text(disk.free)} of {bytes_text(disk.total)} is free on that disk. {advice or _FREE_SPACE}"
        )


@contextlib.contextmanager
def write_aside(path: Path | str) -> Iterator[Path]:
    """Yield a temporary path next to ``path``; on exit without an error it is synced to disk and renamed to it.

    Raises:
        StorageError: The disk is full, read-only or not ours; the old ``path`` is unchanged, and no temporary file is left.
    """
    path = Path(path)
    with storage_errors(path):
        make_folder(path.parent)
        aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}{ASIDE_SUFFIX}")
        handle = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)  # less the umask, as any other file
        mode = stat.S_IMODE(os.fstat(handle).st_mode)
        os.close(handle)
        try:
            yield aside
            aside.chmod(mode)  # a library may have replaced it by a private file
            fsync(aside)
            os.replace(aside, path)
            fsync(path.parent)
        except BaseException:
            with contextlib.suppress(OSError):  # the first error is the one to tell
                aside.unlink(missing_ok=True)
            raise


def write_text(path: Path | str, text: str) -> None:
    """Write a whole text file in one step; half of a surrogate pair, which UTF-8 can't hold, as JSON's escape for it."""
    with write_aside(path) as aside:
        aside.write_text(text, encoding="utf-8", errors="backslashreplace")


def write_json(path: Path | str, value: Any) -> None:
    """Write JSON, indented, keys in the order given, with a final newline; NaN is refused."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def write_jsonl(path: Path | str, rows: Iterable[Any]) -> int:
    """Write one JSON value a line; returns how many."""
    count = 0
    with write_aside(path) as aside, aside.open("w", encoding="utf-8", errors="backslashreplace") as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n")
            count += 1
    return count


def make_private(path: Path | str) -> int | None:
    """Take the rights of everybody but its owner from a file; nothing where it is not there or is private already.

    Returns:
        The rights it had, where they were wider.

    Raises:
        OSError: It belongs to another user.
    """
    try:
        rights = stat.S_IMODE(os.stat(path).st_mode)
        if not rights & 0o077:
            return None
        os.chmod(path, rights & 0o700)
    except FileNotFoundError:
        return None
    return rights


@contextlib.contextmanager
def private_files() -> Iterator[None]:
    """Files written inside are readable by their owner only. Affects the whole process: for commands, not for servers."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def make_folder(folder: Path | str) -> None:
    """Create a folder and its missing parents, durably across crashes."""
    folder = Path(folder)
    missing = [f for f in (folder, *folder.parents) if not f.exists()]
    for new in reversed(missing):
        new.mkdir(exist_ok=True)
        fsync(new.parent)
    if not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))


def remove_leftovers(folder: Path | str) -> list[Path]:
    """Remove partially written files that killed processes left directly in ``folder``, and return their paths.

    Call it only if no process is writing there (as the holder of a run's lock).
    """
    with storage_errors(folder):
        left = sorted(Path(folder).glob(f".*{ASIDE_SUFFIX}"))
        for path in left:
            delete(path)
    return left


def delete(path: Path | str) -> None:
    """Delete a file, or a folder with its contents."""
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        os.unlink(path)


def sha256(path: Path | str) -> str:
    """Hex digest of a file's bytes, read in pieces."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_once(path: Path) -> str:
    """``sha256`` for files with several readers: a file that is unchanged since it was last read is not read again."""
    status = path.stat()
    return _sha256_of(str(path), status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


@functools.cache
def _sha256_of(path: str, *look: int) -> str:
    return sha256(path)


def fsync(path: Path | str) -> None:
    """Sync a file, or the entries of a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as err:
        if err.errno not in _UNSYNCABLE or not os.path.isdir(path):
            raise
    finally:
        os.close(descriptor)


def _system_error(err: Exception) -> OSError | None:
    """The system error of an exception: itself, one that it wraps, or one in the message of a Rust library."""
    if isinstance(err, OSError) and err.errno is not None:
        return err
    seen: BaseException | None = err
    while seen is not None:
        match = re.search(r"\(os error (\d+)\)", str(seen))
        error = OSError(int(match[1]), str(seen)) if match else seen
        if isinstance(error, OSError) and error.errno in _WRITE_FAILURES:
            return error
        seen = seen.__cause__ or seen.__context__
    return None


def _concerns(err: OSError, path: Path) -> bool:
    """Whether an error is about ``path``, something in it, its temporary file, or a parent folder."""
    named = _named(err)
    if named is None:
        return err.errno in _WRITE_FAILURES
    named, path = Path(os.path.abspath(named)), Path(os.path.abspath(path))
    if named == path or named in path.parents or path in named.parents:
        return True
    sibling = named.relative_to(path.parent).parts[0] if path.parent in named.parents else ""
    return sibling.startswith(f".{path.name}.")


def _named(err: OSError) -> Path | None:
    return Path(os.fsdecode(err.filename)) if isinstance(err.filename, str | bytes | os.PathLike) else None


def _room(path: Path) -> str:
    """' (now 3.1 GiB of 250 GiB free)', or an empty string if the system does not report it."""
    with contextlib.suppress(OSError):
        disk = os.statvfs(_existing(path))
        if disk.f_files and not disk.f_favail:
            return " for more files (all inodes are in use, see df -i)"
        if disk.f_blocks:
            return f" (now {bytes_text(disk.f_bavail * disk.f_frsize)} of {bytes_text(disk.f_blocks * disk.f_frsize)} free)"
    return ""


def _existing(path: Path) -> Path:
    """The path, or the nearest folder above it that exists."""
    return next((p for p in (path, *path.parents) if p.exists()), Path.cwd())
