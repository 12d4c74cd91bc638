"""What happened to the rows of a data set on their way to token ids: nothing is dropped or changed without a count."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rlhf.data.contracts import BadRow, Row
from rlhf.data.message_text import counted, listed


@dataclass(slots=True)
class TokenizationReport:
    """Counters of one data set; every one that is not zero shows in ``to_text``."""

    num_rows: int = 0
    """Rows read: usable, bad, ties and identical pairs alike."""
    num_usable: int = 0
    """Items of the data set. A ranking may give many, a tie gives none."""
    num_tokens: int = 0
    """Distinct tokens, a shared prefix counted once."""
    num_scored: int = 0
    """Tokens that a loss sees."""
    boundary_moved: int = 0
    """Rows whose tokenizer merges across the end of the prompt; the boundary went left to the last common token."""
    question_differs: int = 0
    """Dialogues whose template asks with something that the answered dialogue lacks, such as an opened ``<think>``."""
    lost_fields: int = 0
    """Dialogues of which the chat template leaves out a field that ``allow_lost_fields`` names."""
    truncated: int = 0
    """Rows cut to ``max_length`` or ``max_prompt_length``."""
    dropped_too_long: int = 0
    """Rows left out under ``truncation="drop"``, or because nothing to learn would have been left of them."""
    empty_completions: int = 0
    """Completions of no text, which teach to stop at once."""
    no_eos: int = 0
    """Completions that end without EOS or another end-of-turn token: cut, or ``add_eos=False``."""
    eos_inside: int = 0
    """Completions with EOS before their end: its text is in the data."""
    ties: int = 0
    """Comparisons and rankings in which nothing is better; left out."""
    identical: int = 0
    """Pairs whose chosen and rejected are equal; left out, for nothing can be learned from them."""
    repeated_ids: int = 0
    """Rows whose id another row had already; ``#2``, ``#3`` ... was put behind it."""
    other_columns: dict[str, int] = field(default_factory=dict)
    """Columns in addition to the row's own kind, and how many rows have each: kept, and given to trainers and rewards by name."""
    bad_rows: list[BadRow] = field(default_factory=list)
    """Rows skipped under ``on_bad_row="skip"``, each with place and reason."""

    def count_columns(self, row: Row) -> None:
        """Note the columns of a row that nothing here reads; of files that have no fixed ones the first hundred names."""
        for name in row.columns:
            if name in self.other_columns or len(self.other_columns) < MOST_COLUMNS:
                self.other_columns[name] = self.other_columns.get(name, 0) + 1

    def add(self, other: TokenizationReport) -> None:
        """Add the counters and bad rows of further rows; not their other columns, of which only the first names of all rows count."""
        for name, value in asdict(other).items():
            if isinstance(value, int):
                setattr(self, name, getattr(self, name) + value)
        self.bad_rows += other.bad_rows

    def to_dict(self) -> dict[str, Any]:
        """All counters and the list of bad rows."""
        return asdict(self)

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> TokenizationReport:
        """The inverse of ``to_dict``."""
        return cls(
            **{
                **saved,
                "other_columns": dict(saved["other_columns"]),
                "bad_rows": [BadRow(**row) for row in saved["bad_rows"]],
            }
        )

    def to_text(self) -> str:
        """One line of counts, then the first bad rows."""
        counts = {name: value for name, value in asdict(self).items() if isinstance(value, int)}
        shown = ["num_rows", "num_usable", "num_tokens", "num_scored"]
        parts = [
            f"{counts[name]:,} {name.removeprefix('num_')}" for name in shown if counts[name] or name != "num_scored"
        ]
        parts += [
            f"{value:,} {name.replace('_', ' ')}" for name, value in counts.items() if value and name not in shown
        ]
        columns = [f"other columns, kept: {listed(self.other_columns)}"] if self.other_columns else []
        return "\n".join([", ".join(parts), *columns, *bad_row_lines(self.bad_rows)])


MOST_COLUMNS = 100

REASONS = {
    "bad_rows": "bad",
    "dropped_too_long": "too long for max_length or max_prompt_length",
    "ties": "without a preference (a tie)",
    "identical": "with two equal texts",
}
"""Why a row is left out -> in words."""


def left_out(report: TokenizationReport) -> dict[str, int]:
    """Why rows were left out, in words, and how many; empty where all were used."""
    counts = {
        what: len(report.bad_rows) if key == "bad_rows" else getattr(report, key) for key, what in REASONS.items()
    }
    return {what: count for what, count in counts.items() if count}


def nothing_left(name: str, report: TokenizationReport) -> str:
    """The message for a data set of which no row can be trained on."""
    reasons = ", ".join(f"{count:,} {what}" for what, count in left_out(report).items())
    first = f" The first bad row: {report.bad_rows[0].where}: {report.bad_rows[0].reason}" if report.bad_rows else ""
    return (
        f"{name}: no row of the data is left to train on; of {counted(report.num_rows, 'row')} {reasons or 'none were usable'}."
        f"{first} Look at it with: rlhf data check"
    )


SHOWN = 20
"""Reasons for bad rows that a report's text lists, each with its rows; its ``to_dict`` has all."""

SHOWN_RUNS = 8
"""Places, or ranges of them, that are listed for one reason."""

NUMBERED = re.compile(r"(?P<name>(?s:.*?))(?P<number>\d+)")
"""What ends in a number, as the place of a row in a file does."""


def bad_row_lines(bad_rows: Sequence[BadRow]) -> list[str]:
    """A heading and the bad rows, those of one reason on one line; nothing where there is none."""
    if not bad_rows:
        return []
    by_reason: dict[str, list[str]] = {}
    for row in bad_rows:
        by_reason.setdefault(row.reason, []).append(row.where)
    lines = [f"{len(bad_rows):,} bad row{'s' if len(bad_rows) > 1 else ''}:"]
    lines += [f"  {places(wheres)}: {reason}" for reason, wheres in list(by_reason.items())[:SHOWN]]
    if len(by_reason) > SHOWN:
        rest = sum(map(len, list(by_reason.values())[SHOWN:]))
        lines.append(f"  ... and {rest:,} more")
    return lines


def places(wheres: Sequence[str]) -> str:
    """Places of rows on one line, neighbors joined: ``d.jsonl:1-60, 75 (61 rows)``."""
    if len(wheres) == 1:
        return wheres[0]
    runs: list[tuple[str, int, int]] = []
    for where in wheres:
        numbered = NUMBERED.fullmatch(where)
        if numbered is None:  # rows made in memory may be called anything
            return (
                f"{', '.join(wheres[:SHOWN_RUNS])}{' ...' if len(wheres) > SHOWN_RUNS else ''} ({len(wheres):,} rows)"
            )
        name, number = numbered["name"], int(numbered["number"])
        if runs and runs[-1][0] == name and runs[-1][2] == number - 1:
            runs[-1] = (name, runs[-1][1], number)
        else:
            runs.append((name, number, number))
    shown = [
        f"{name if place == 0 or runs[place - 1][0] != name else ''}{first}{f'-{last}' if last > first else ''}"
        for place, (name, first, last) in enumerate(runs[:SHOWN_RUNS])
    ]
    return f"{', '.join(shown)}{' ...' if len(runs) > SHOWN_RUNS else ''} ({len(wheres):,} rows)"
