"""Rows of one kind or format to another, from file to file: ``rlhf data convert``."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Unpack

from rlhf.data.chat import ChatFormat, chat_format
from rlhf.data.contracts import BadRow, Kind, Row, RowError
from rlhf.data.expand import (
    completion_of,
    pair_up,
    preferences_of,
    prompt_of,
    to_conversational,
    to_standard,
    unpaired_of,
)
from rlhf.data.message_text import counted
from rlhf.data.read import ReadOptions, read_or_list_bad_rows
from rlhf.data.row_report import bad_row_lines
from rlhf.data.sources import Source, file_format, source_name
from rlhf.data.write import write_rows
from rlhf.errors import ConfigError, DataError, look_up

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertReport:
    """What was written."""

    source: str
    written: str
    steps: Sequence[str]
    num_read: int
    num_written: int
    bad_rows: Sequence[BadRow] = ()

    def to_dict(self) -> dict[str, Any]:
        """All of it."""
        return asdict(self)

    def to_text(self) -> str:
        """One line, then the bad rows."""
        how = f" ({', '.join(self.steps)})" if self.steps else ""
        line = (
            f"{self.source}: {counted(self.num_read, 'row')} read, {self.num_written:,} written to {self.written}{how}"
        )
        return "\n".join([line, *bad_row_lines(self.bad_rows)])


Conversion = Callable[[Sequence[Row], ChatFormat | None], Sequence[Row]]

CONVERSIONS: Mapping[str, Conversion] = {
    "explicit": lambda rows, _: rows,
    "preference": lambda rows, _: [pair for row in rows for pair in preferences_of(row)],
    "unpaired": lambda rows, _: [side for row in rows for side in unpaired_of(row)],
    "paired": lambda rows, _: pair_up(rows),
    "completion": lambda rows, _: [completion_of(row) for row in rows],
    "prompt": lambda rows, _: [prompt_of(row) for row in rows],
    "conversational": lambda rows, _: [to_conversational(row) for row in rows],
    "standard": lambda rows, chat: [to_standard(row, _need_chat(chat)) for row in rows],
}
"""What ``run_convert`` can do to rows.

``explicit`` gives pairs a prompt (reading does that already), ``preference`` turns comparisons and rankings into pairs,
``unpaired`` pairs into labeled completions, ``paired`` ratings and labels into pairs.
"""

CONVERTS: Mapping[str, Sequence[Kind]] = {
    "explicit": (Kind.PREFERENCE,),
    "preference": (Kind.PREFERENCE, Kind.COMPARISON, Kind.RANKING),
    "unpaired": (Kind.UNPAIRED, Kind.PREFERENCE, Kind.COMPARISON, Kind.RANKING),
    "paired": (Kind.RATING, Kind.UNPAIRED),
    "completion": (Kind.COMPLETION, Kind.PREFERENCE),
    "prompt": tuple(kind for kind in Kind if kind is not Kind.TEXT),
    "conversational": tuple(kind for kind in Kind if kind is not Kind.STEPWISE),
    "standard": tuple(kind for kind in Kind if kind is not Kind.STEPWISE),
}
"""The kinds of row that each conversion takes."""


def run_convert(
    source: Source,
    out: str | os.PathLike[str],
    *,
    to: str | Sequence[str] | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    chat_template: str | None = None,
    **options: Unpack[ReadOptions],
) -> ConvertReport:
    """Read a source, change its rows, and write them in the format that ``out``'s name asks for.

    Without ``to`` only the file format changes, names become canonical and implicit prompts explicit.

    Args:
        source: See ``rlhf.data.read.open_rows``, which takes ``options`` too.
        out: A name that ends in .jsonl, .json, .csv (each also .gz) or .parquet.
        to: Names in ``CONVERSIONS``, as a list or with commas between them, applied in order.
        tokenizer: Whose chat template ``standard`` uses.
        chat_template: Instead of the tokenizer's own; see ``rlhf.data.chat.chat_format``.

    Raises:
        DataError: A bad row, or one that a step can't take.
    """
    file_format(out)
    steps = [step.strip() for step in to.split(",")] if isinstance(to, str) else list(to or ())
    changes = [(step, look_up(CONVERSIONS, step, kind="conversion")) for step in steps]
    chat = None
    if "standard" in steps:
        if tokenizer is None:
            raise ConfigError("Messages become text by a tokenizer's chat template; name the tokenizer.")
        chat = chat_format(tokenizer, chat_template)
    table = read_or_list_bad_rows(source, options)
    rows: Sequence[Row] = table.rows
    num_read = len(rows)
    for step, change in changes:
        for row in rows:
            if row.kind not in CONVERTS[step]:
                wanted = ", ".join(CONVERTS[step])
                raise RowError(row.where, f"a row of kind {row.kind}; {step!r} takes rows of kind {wanted}.")
        rows = change(rows, chat)
    if not rows:
        raise DataError(
            f"Nothing is left to write to {out}: {', '.join(steps)} of {counted(num_read, 'row')} of {source_name(source)} gave none."
        )
    num_written = write_rows(out, rows)
    return ConvertReport(
        source=source_name(source),
        written=os.fspath(out),
        steps=tuple(steps),
        num_read=num_read,
        num_written=num_written,
        bad_rows=table.bad_rows,
    )


def _need_chat(chat: ChatFormat | None) -> ChatFormat:
    assert chat is not None, "run_convert makes it whenever 'standard' is asked for"
    return chat
