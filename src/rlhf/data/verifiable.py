"""Rows with an answer that is not to be compared with completions: they say `verifiable: false`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlhf.data.contracts import Prompt
from rlhf.data.message_text import counted
from rlhf.errors import DataError

VERIFIABLE = "verifiable"
"""Column of prompt rows."""


def is_verifiable(columns: Mapping[str, Any]) -> bool | None:
    """What a row says in its column ``verifiable``; None where it says nothing.

    Raises:
        ValueError: Neither true nor false.
    """
    value = columns.get(VERIFIABLE)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().lower() in ("true", "false"):  # of a CSV file
        return value.strip().lower() == "true"
    raise ValueError(f"its column {VERIFIABLE!r} holds {value!r}; wanted true or false")


def count_unverifiable(prompts: Sequence[Prompt]) -> str:
    """How many prompts say `verifiable: false`, in words; the empty text for none.

    Raises:
        DataError: A row says neither true nor false.
    """
    count = 0
    for prompt in prompts:
        try:
            count += is_verifiable(prompt.columns) is False
        except ValueError as err:
            raise DataError(f"Prompt {prompt.id!r} can't be used: {err}.") from None
    return f"{count:,} of {counted(len(prompts), 'prompt')} not verifiable, left to other rewards" if count else ""
