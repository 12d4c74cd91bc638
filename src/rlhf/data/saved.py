"""Folders that ``datasets`` wrote with ``save_to_disk``, read without it.

The library maps the files into memory and trusts them: a damaged one, or one that shrinks meanwhile, ends the process with
a signal instead of an error. Here the same files go through our own reader of Arrow files, which checks every batch.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from rlhf.data.message_text import describe, listed, one_line, printable, short
from rlhf.errors import DataError

STATE = "state.json"
SPLITS = "dataset_dict.json"


def is_saved_dataset(folder: Path) -> bool:
    """Whether a folder looks like one."""
    return (folder / STATE).exists() or (folder / SPLITS).exists()


def saved_files(folder: Path, split: str | None) -> tuple[Path, ...]:
    """The Arrow files of a data set, in the order of its rows.

    Raises:
        DataError: A split has to be named, or the folder's own list of files is damaged.
    """
    if (folder / SPLITS).exists():
        splits = _read_list(folder / SPLITS, "splits")
        if split not in splits:
            raise DataError(
                f"{printable(folder)} holds the splits {listed(splits)}, and split is {split!r}; name one of them."
            )
        folder = folder / str(split)
    elif split is not None:
        raise DataError(f"{printable(folder)} is one data set and has no split {split!r}; leave split out.")
    files: list[Path] = []
    for item in _read_list(folder / STATE, "_data_files"):
        name = item.get("filename") if isinstance(item, dict) else item
        if not isinstance(name, str) or not name or Path(name).name != name:
            raise _damaged(folder / STATE, f"it lists {describe(name)} as a file of the folder")
        if not os.path.isfile(folder / name):  # which takes a name that is too long for none
            raise _damaged(folder / STATE, f"it lists {short(name)}, which is not there")
        files.append(folder / name)
    if not files:
        raise _damaged(folder / STATE, "it lists no files")
    return tuple(files)


def _read_list(path: Path, key: str) -> list[Any]:
    try:
        record = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as err:
        raise _damaged(path, one_line(err)) from err
    entries = record.get(key) if isinstance(record, dict) else None
    if not isinstance(entries, list):
        raise _damaged(path, f"it has no list {short(key)}")
    return entries


def _damaged(path: Path, reason: str) -> DataError:
    return DataError(
        f"{printable(path)} says which files a folder of `datasets` holds, and is damaged: {reason}. Save the data again with "
        "save_to_disk, or name an Arrow file in the folder."
    )
