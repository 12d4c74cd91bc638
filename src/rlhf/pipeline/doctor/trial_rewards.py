"""Reward functions for the doctor's test of the worker process."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any


def length(prompts: Sequence[Any], completions: Sequence[str], **columns: Any) -> list[float]:
    """The number of characters: answers at once."""
    return [float(len(completion)) for completion in completions]


def never(prompts: Sequence[Any], completions: Sequence[str], **columns: Any) -> list[float]:
    """Does not answer in this century."""
    while True:
        time.sleep(60.0)
