"""The texts that completions are compared with: columns of the prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlhf.data.contracts import Prompt
from rlhf.errors import DataError

COLUMNS = ("references", "reference", "completion", "chosen")
"""The first of them that a row has."""


def references_of(prompt: Prompt) -> list[str]:
    """The reference texts of a prompt; none where its row has none.

    Raises:
        DataError: The column holds something else than texts.
    """
    name = next((name for name in COLUMNS if prompt.columns.get(name) not in (None, "", [])), None)
    if name is None:
        return []
    value = prompt.columns[name]
    if isinstance(value, str):
        return [value]
    if isinstance(value, Sequence) and all(isinstance(item, str) for item in value):
        return [text for text in value if text]
    if isinstance(value, Sequence) and all(isinstance(item, Mapping) for item in value):
        return ["\n".join(str(message.get("content", "")) for message in value)]
    raise DataError(f"Prompt {prompt.id!r}: column {name!r} is {_short(value)}; wanted a text or a list of texts.")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
