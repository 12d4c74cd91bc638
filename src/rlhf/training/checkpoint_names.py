"""What the folder of a checkpoint is called; for anyone who looks at a run without loading what is in it."""

from __future__ import annotations

import re
from pathlib import Path

PREFIX = "checkpoint-"
_NAME = re.compile(rf"{PREFIX}(\d{{8,}})(?:-(\d+))?")


def step_of(path: Path) -> int | None:
    """120 of a folder called checkpoint-00000120 or checkpoint-00000120-2; None where that is not a checkpoint's name."""
    numbers = step_and_number(path.name)
    return numbers[0] if numbers else None


def step_and_number(name: str) -> tuple[int, int] | None:
    """The step, and which save of it: (120, 2) of checkpoint-00000120-2."""
    parts = _NAME.fullmatch(name)
    return (int(parts[1]), int(parts[2] or 1)) if parts else None
