"""Rows of feedback that a file of training data holds already: the same prompt with the same completions.

Texts are compared as Unicode's NFKC, case-folded, with every run of white space as one space; messages as their contents, a line each.
What is found is the same text; a paraphrase is not found.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rlhf.data.contracts import MessagesRow, Row
from rlhf.data.read import read_rows

COMPLETIONS = ("completion", "chosen", "rejected", "completion_a", "completion_b")
"""Columns of a row that hold a completion each."""
Known = frozenset[tuple[str, str]]
"""Normalized prompts, each with one of its completions."""


def normalized(text: Any) -> str:
    """What is compared of a text or of messages."""
    if not isinstance(text, str):
        text = "\n".join(str(message.get("content") or "") for message in text)
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def known_completions(*sources: str) -> Known:
    """Prompts with their completions in files of rows of any kind.

    Raises:
        DataError: A file can't be read, or a row is bad.
    """
    return frozenset(
        (prompt, normalized(completion))
        for source in sources
        for row in read_rows(source, streaming=True)
        for prompt, completion in _texts_of(row)
    )


def without_known(rows: Iterable[Mapping[str, Any]], known: Known) -> tuple[list[dict[str, Any]], int]:
    """Rows of which some completion is new, and how many others there were.

    Args:
        rows: Of ``rows_of_events``.
        known: Of ``known_completions``.
    """
    kept, number = [], 0
    for row in rows:
        prompt = normalized(row["prompt"])
        if all((prompt, normalized(row[name])) in known for name in COMPLETIONS if name in row):
            number += 1
        else:
            kept.append(dict(row))
    return kept, number


def _texts_of(row: Row) -> Iterator[tuple[str, Any]]:
    if isinstance(row, MessagesRow):
        for place, message in enumerate(row.messages):
            if message.get("role") == "assistant":
                yield normalized(row.messages[:place]), message.get("content") or ""
        return
    prompt = getattr(row, "prompt", None)
    if prompt is None:
        return
    for name in COMPLETIONS:
        if (completion := getattr(row, name, None)) is not None:
            yield normalized(prompt), completion
    for completion in getattr(row, "completions", ()):
        yield normalized(prompt), completion
