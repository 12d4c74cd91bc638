"""Rows of ours as a folder for ``datasets.load_from_disk``; such folders are read as any file of rows."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rlhf.data.write import write_rows
from rlhf.errors import DataError
from rlhf.files import fsync, make_folder, storage_errors


def write_dataset(folder: Path, rows: Iterable[Mapping[str, Any]]) -> int:
    """Save rows with ``datasets``, aside and then in one step; returns how many.

    Args:
        folder: That is not there yet: files of another data set between these would be read with them.
        rows: Flat, as for a table.

    Raises:
        DataError: The folder is there, or a column can't stand in a table.
        StorageError: The disk refuses it.
    """
    import datasets
    import pyarrow.parquet as pq

    if folder.exists():
        raise DataError(f"{folder} is there already; delete it first, or name another folder.")
    was_silent = datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        with storage_errors(folder):
            make_folder(folder.parent)
            with TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as place:
                table, aside = Path(place) / "rows.parquet", Path(place) / "dataset"
                number = write_rows(table, rows)
                datasets.Dataset(pq.read_table(table)).save_to_disk(aside)
                for file in aside.iterdir():
                    fsync(file)
                os.replace(aside, folder)
                fsync(folder.parent)
    finally:
        if not was_silent:
            datasets.enable_progress_bars()
    return number
