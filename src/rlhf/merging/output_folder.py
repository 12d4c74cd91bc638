"""Where a merged model goes: a folder of its own."""

from __future__ import annotations

import json
from pathlib import Path

from rlhf.errors import ModelError
from rlhf.merging.merge_report import REPORT_FILE, MergeReport
from rlhf.merging.safetensors_file import read_header


def finished(folder: Path, key: str) -> MergeReport | None:
    """The report of a folder that this very merge wrote before.

    Raises:
        ModelError: Its weights are damaged, or not all there any more.
    """
    path = folder / REPORT_FILE
    if not path.is_file():
        return None
    try:
        report = MergeReport.from_dict(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, KeyError, TypeError):
        return None
    if report.key != key:
        return None
    _check_whole(folder, report)
    return report


def _check_whole(folder: Path, report: MergeReport) -> None:
    wanted = {row["name"] for row in report.tensors} if report.config.get("output") != "adapter" else set()
    again = "Delete the folder and merge again."
    try:
        files = {file: read_header(file) for file in folder.glob("*.safetensors")}
    except ModelError as err:
        raise ModelError(f"{folder} holds this merge already, damaged: {err} {again}") from None
    held = {name for header in files.values() for name in header}
    if not files or wanted - held:
        what = min(wanted - held) if files else "weights"
        raise ModelError(f"{folder} holds the report of this merge, but not its {what}. {again}")


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
