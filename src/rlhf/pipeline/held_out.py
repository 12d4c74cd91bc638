"""Prompts that ``RLHFTrainer`` keeps from its training calls, so that ``evaluate`` asks something new."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rlhf.data.expand import prompt_key
from rlhf.data.read import open_rows
from rlhf.data.readers import FileFormat
from rlhf.data.sources import file_format
from rlhf.errors import DataError
from rlhf.files import write_text
from rlhf.seeds import derive_seed

FOLDER = "held_out"
"""Inside the run folder."""
FORMATS = (FileFormat.JSONL, FileFormat.JSON)
"""Of which a row can be written down again as it was."""


@dataclass(frozen=True, slots=True)
class Split:
    """A file of rows in two, no prompt in both."""

    training: Path
    held_out: Path
    num_held_out: int
    """Prompts, whatever number of rows has each."""
    num_prompts: int


def split_by_prompt(source: str, folder: Path, *, frac: float, seed: int) -> Split | None:
    """Write a file's rows into two, every row of a prompt into the same one; which prompts, only seed and prompts decide.

    Args:
        source: A JSON or JSONL file.
        folder: Where the two are written; left as they are where they hold what they should.
        frac: Share of the prompts that are held out, at least one.
        seed: The run's.

    Returns:
        None where it can't be done: another format, fewer than two prompts, no share to hold out, or a bad row, of which the
        stage that reads the file will complain.
    """
    path = Path(source).expanduser()
    if not frac or not path.is_file() or file_format(path) not in FORMATS:
        return None
    try:
        stream = open_rows(source)
        keys = [prompt_key(row).strip() for row in stream]
        rows = [raw.value for part in stream.parts for raw in part.read(0)]
    except DataError:
        return None
    if not all(isinstance(row, Mapping) for row in rows):
        return None
    prompts = sorted(set(keys), key=lambda key: derive_seed(seed, "held out", key))
    count = min(max(1, round(frac * len(prompts))), len(prompts) - 1)
    if count < 1:
        return None
    chosen = set(prompts[:count])
    both = []
    for name, is_chosen in (("training", False), ("held_out", True)):
        both.append(folder / f"{path.name.removesuffix('.gz').rpartition('.')[0]}.{name}.jsonl")
        _write([row for row, key in zip(rows, keys, strict=True) if (key in chosen) is is_chosen], both[-1])
    return Split(both[0], both[1], count, len(prompts))


def _write(rows: list[Mapping[str, object]], path: Path) -> None:
    """Only where something else is there: another process may be reading it."""
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    if not path.is_file() or path.read_bytes() != text.encode():
        write_text(path, text)
