"""Where a merged model goes: a folder of its own."""

from __future__ import annotations

import json
from pathlib import Path

from rlhf.errors import ModelError
from rlhf.merging.merge_report import REPORT_FILE, MergeReport


def finished(folder: Path, key: str) -> MergeReport | None:
    """The report of a folder that this very merge wrote before."""
    path = folder / REPORT_FILE
    if not path.is_file():
        return None
    try:
        report = MergeReport.from_dict(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, KeyError, TypeError):
        return None
    return report if report.key == key else None


def check_empty(folder: Path, *, what: str = "a merged model") -> None:
    """Refuse a folder that holds something.

    Args:
        folder: Where it is to be written.
        what: What is to be written there.

    Raises:
        ModelError: It does, or a file has its name.
    """
    if folder.is_file() or folder.is_symlink():
        raise ModelError(f"{folder} is a file or a link; name another folder for {what}.")
    if folder.is_dir() and any(folder.iterdir()):
        raise ModelError(
            f"The folder {folder} is not empty; {what} is written only into a new one. Name another with -o, or move it away."
        )
