"""Which rows are held out: by prompt, so that no prompt is on both sides, or by row, for data in which all prompts are one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from rlhf.data.contracts import Row
from rlhf.data.dedup import row_text
from rlhf.data.expand import prompt_key
from rlhf.errors import DataError
from rlhf.seeds import derive_seed

SplitBy = Literal["prompt", "row"]


def held_out_numbers(rows: Sequence[Row], frac: float, *, seed: int, by: SplitBy = "prompt") -> list[int]:
    """Numbers of the rows to hold out. What they say and the seed decide, not the order of rows.

    Args:
        rows: Training rows; several may come from one row of a file, such as both sides of a pair.
        frac: Share of the rows to hold out, in (0, 1); at least one.
        seed: Of this split.
        by: ``prompt`` keeps rows with the same prompt on one side; ``row`` what was one row of a file, and rows with the same texts.

    Returns:
        In order; fewer than there are rows.

    Raises:
        DataError: All of it belongs together, so one side would be empty.
    """
    units: dict[str, list[int]] = {}
    for number, key in enumerate(_keys(rows, by)):
        units.setdefault(key, []).append(number)
    if len(units) < 2:
        same, way_out = ("texts", "give") if by == "row" else ("prompt", "split by row (`eval_split: row`), or give")
        raise DataError(
            f"All rows ({len(rows):,}) have the same {same}, so none can be held out; {way_out} held-out rows of your own (`eval_data`)."
        )
    wanted = max(1, round(frac * len(rows)))
    held_out: list[int] = []
    for key in sorted(units, key=lambda text: derive_seed(seed, "split", text)):
        if len(held_out) >= wanted or (held_out and len(held_out) + len(units[key]) == len(rows)):
            break
        held_out += units[key]
    return sorted(held_out)


def _keys(rows: Sequence[Row], by: SplitBy) -> list[str]:
    """What tells the units of a split apart, of each row."""
    if by == "prompt":
        return [prompt_key(row) for row in rows]
    texts: dict[str, list[str]] = {}
    for row in rows:
        texts.setdefault(row.where, []).append(row_text(row))
    return ["\x1d".join(texts[row.where]) for row in rows]
