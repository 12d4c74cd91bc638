"""How a file's columns are given the names that are read here: what a message shows to anyone who has other ones."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping, Sequence

MEANT: Mapping[str, str] = {
    "question": "prompt", "query": "prompt", "problem": "prompt", "instruction_text": "prompt", "user": "prompt",
    "answer": "completion", "solution": "completion", "reply": "completion", "assistant": "completion", "target": "completion",
    "win": "chosen", "preferred": "chosen", "better": "chosen", "lose": "rejected", "dispreferred": "rejected",
    "worse": "rejected", "conversation": "messages", "dialogue": "messages", "dialog": "messages", "content": "text",
    "document": "text", "score": "rating",
}  # fmt: skip
"""Columns of published data sets and what they are here. No alias: `answer` next to a prompt may be for the reward alone."""

MOST_LETTERS = 20
"""Of a name that may be a misspelled one of ours."""

NO_TEXTS = frozenset({"id", "ids", "len", "length", "model", "num", "rating", "score", "source", "tokens"})
"""Words in names of columns that say something about a text and do not hold it."""

RENAME = " Rename columns with columns={'THEIRS': 'OURS'}, in a recipe `columns: {THEIRS: OURS}`, on the command line columns.THEIRS=OURS."
"""Where no column seems to mean one of ours."""


def rename_hint(theirs: Iterable[str], wanted: Sequence[str]) -> str:
    """The renaming that columns seem to ask for, in Python, in a recipe and on the command line; the empty text where none does.

    Args:
        theirs: Columns that are there and known under no name of ours.
        wanted: Columns of ours that are not there.
    """
    renamed = meant_columns(theirs, wanted)
    if not renamed:
        return ""
    recipe = ", ".join(f"{name if name.isidentifier() else json.dumps(name)}: {ours}" for name, ours in renamed.items())
    typed = " ".join(f"columns.{name}={ours}" for name, ours in renamed.items())
    line = f", on the command line {typed}" if all(map(str.isidentifier, renamed)) else ""
    return f" Rename with columns={renamed!r}, in a recipe `columns: {{{recipe}}}`{line}."


def meant_columns(theirs: Iterable[str], wanted: Sequence[str]) -> dict[str, str]:
    """Their column -> ours that it seems to mean; arguments as of ``rename_hint``."""
    renamed: dict[str, str] = {}
    for name in theirs:
        ours = MEANT.get(name.lower()) or _nearest(name.lower(), wanted)
        if ours is not None and ours in wanted and ours not in renamed.values():
            renamed[name] = ours
    return renamed


def _nearest(name: str, wanted: Sequence[str]) -> str | None:
    """The column of ours that a name misspells, or has as one of its words: `chosen` of `response_chosen`."""
    near = difflib.get_close_matches(name, wanted, n=1) if len(name) <= MOST_LETTERS else []
    words = re.findall(r"[a-z]+", name)
    inside = [ours for ours in wanted if ours in words] if not NO_TEXTS.intersection(words) else []
    return next(iter([*near, *inside]), None)
