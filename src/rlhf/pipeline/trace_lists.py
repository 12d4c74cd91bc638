"""The conversations that a stage's data files were made from: a list for each file, ``traces/HASH.json`` in the stage's folder.

``rlhf.feedback.trace_files`` says where the traces of a data file are from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from rlhf.feedback.trace_files import read_trace_list, traces_of_file
from rlhf.files import make_folder, write_json
from rlhf.pipeline.artifacts import STAGE_INPUT

FOLDER = "traces"


def keep_trace_lists(folder: Path, parents: Mapping[str, str]) -> None:
    """Keep the lists of the files that a stage reads.

    Args:
        folder: Of the stage.
        parents: As in ``MadeFrom``.
    """
    for parent in dict.fromkeys(parents.values()):
        source, _, digest = parent.rpartition("@")
        if source.startswith(STAGE_INPUT):
            continue
        if traces := traces_of_file(Path(source)):
            make_folder(folder / FOLDER)
            write_json(
                folder / FOLDER / f"{digest}.json",
                {"file": source, "content": digest, "traces": [asdict(one) for one in traces]},
            )


def trace_list(folder: Path, parent: str) -> tuple[Path, int] | None:
    """The list that a stage keeps of one of its inputs, and how many traces it has; None where it keeps none."""
    path = folder / FOLDER / f"{parent.rpartition('@')[2]}.json"
    return (path, len(read_trace_list(path))) if path.is_file() else None
