"""Look before you train: what ``rlhf data check|stats|convert|dedup FILE`` does, as functions.

Each returns a report with ``to_text`` for people and ``to_dict`` for machines; none holds more than one row of text in
memory but ``run_convert`` and ``run_dedup``.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack, cast

from rlhf.data.chat import ROLES, is_out_of_turn
from rlhf.data.contracts import (
    UNKNOWN,
    BadRow,
    Kind,
    PreferenceRow,
    PreferenceSample,
    RankingSample,
    Row,
    Text,
)
from rlhf.data.dedup import digest, duplicate_groups, plain_text, row_text
from rlhf.data.expand import preferences_of, row_texts
from rlhf.data.message_text import counted, short
from rlhf.data.read import NoUsableRowError, ReadOptions, open_rows, read_or_list_bad_rows
from rlhf.data.row_conversion import ConvertReport as ConvertReport
from rlhf.data.row_conversion import run_convert as run_convert
from rlhf.data.row_report import SHOWN, bad_row_lines, places
from rlhf.data.row_statistics import StatsReport as StatsReport
from rlhf.data.row_statistics import run_stats as run_stats
from rlhf.data.sources import Source, file_format, source_name
from rlhf.data.write import write_rows

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from rlhf.data.dataset_options import DatasetOptions

FOR_THE_PROMPT = frozenset(
    {"context", "contexts", "input", "passage", "document", "article", "history", "system", "system_prompt"}
)
"""Names of columns that published data sets put into the prompt."""
Finding = Literal["duplicate", "identical", "tie", "empty", "out of turn", "repeated"]
"""What is not wrong with a row, but worth knowing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckReport:
    """What a file is, and what is wrong with it."""

    source: str
    format: str
    """Of the file: jsonl, json, csv, parquet, arrow; or what else the rows came from."""
    kind: str
    """Of most rows; rows of another kind count as bad."""
    conversational: bool
    """Texts are lists of messages."""
    num_rows: int
    num_usable: int
    columns: Mapping[str, int]
    """Columns in addition to the kind's own, and how many rows have each."""
    num_identical: int
    """Pairs whose chosen and rejected are equal."""
    num_ties: int
    """Comparisons and rankings in which nothing is better."""
    num_empty_completions: int
    """Rows with a completion of only white space."""
    num_prompt_repeated: int
    """Rows whose completions all begin with the prompt again: it would be given to the model twice."""
    num_out_of_turn: int
    """Dialogues in which a speaker follows himself, the assistant begins, or a system message is not the first."""
    odd_roles: Mapping[str, int]
    """Roles that few templates know, and how many rows have each: often misspelled."""
    num_duplicates: int
    """Rows that say the same as an earlier one, but for case and white space."""
    found_at: Mapping[Finding, Sequence[str]] = field(default_factory=dict)
    """Where the rows are that the counts above are of."""
    bad_rows: Sequence[BadRow] = ()

    def to_dict(self) -> dict[str, Any]:
        """All of it."""
        return asdict(self)

    def to_text(self) -> str:
        """A few lines, then the bad rows."""
        style = "conversational" if self.conversational else "standard"
        lines = [
            f"{self.source}: {self.format}, {f'{style} {self.kind} rows' if self.kind != UNKNOWN else 'no row of a known kind'}",
            f"{self.num_usable:,} of {counted(self.num_rows, 'row')} usable",
        ]
        if self.columns:
            lines.append("other columns: " + ", ".join(f"{name} ({count:,})" for name, count in self.columns.items()))
        lines += [
            f"column {short(name)} reaches no token of {counted(count, 'row')}: if the model should read it, write it into the prompt"
            for name, count in self.columns.items()
            if name.lower() in FOR_THE_PROMPT
        ]
        findings: tuple[tuple[int, str, str, Finding | None], ...] = (
            (self.num_duplicates, "duplicate", "of an earlier row", "duplicate"),
            (self.num_identical, "pair", "with equal texts (nothing to learn from; left out of training)", "identical"),
            (self.num_ties, "tie", "(left out of training)", "tie"),
            (self.num_empty_completions, "row", "with an empty completion", "empty"),
            (
                self.num_out_of_turn,
                "dialogue",
                "whose roles are out of order (whether that is right, the chat template decides)",
                "out of turn",
            ),
            *((count, "row", f"with the unusual role {short(role)}", None) for role, count in self.odd_roles.items()),
            (
                self.num_prompt_repeated,
                "row",
                "whose completions repeat the prompt (drop the column prompt with `columns`)",
                "repeated",
            ),
        )
        for count, noun, what, name in findings:
            at = self.found_at.get(name, ()) if name is not None else ()
            lines += [f"{counted(count, noun)} {what}{f': {places(at)}' if at else ''}"] if count else []
        return "\n".join(lines + bad_row_lines(self.bad_rows))


@dataclass(frozen=True, slots=True, kw_only=True)
class DedupReport:
    """Which rows say the same."""

    source: str
    written: str | None
    num_rows: int
    num_kept: int
    near: float | None
    groups: Sequence[Sequence[str]]
    """Places of duplicate rows; the first of each is kept."""
    bad_rows: Sequence[BadRow] = ()

    def to_dict(self) -> dict[str, Any]:
        """All of it."""
        return asdict(self)

    def to_text(self) -> str:
        """One line, then the first sets of duplicates."""
        what = "equal" if self.near is None else f"at least {self.near:g} similar"
        end = f", written to {self.written}" if self.written else ""
        lines = [f"{self.source}: {self.num_kept:,} of {counted(self.num_rows, 'row')} kept ({what} rows dropped){end}"]
        lines += [
            f"  {group[0]} = {', '.join(group[1:4])}{' ...' if len(group) > 4 else ''}" for group in self.groups[:SHOWN]
        ]
        if len(self.groups) > SHOWN:
            lines.append(f"  ... and {len(self.groups) - SHOWN:,} more sets")
        return "\n".join(lines + bad_row_lines(self.bad_rows))


def run_check(
    source: Source,
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    made_for: str | None = None,
    **options: Unpack[DatasetOptions],
) -> CheckReport:
    """Read all of a source and say what it is and what is wrong with it; bad rows are listed, never raised.

    Args:
        source: See ``rlhf.data.read.open_rows``.
        tokenizer: To tokenize every row as a run would, which finds fields that its chat template leaves out.
        made_for: The data set that rows are tokenized for, a key of ``rlhf.data.plans.PLANS``; None for what suits the kind of each.
        options: As a data set takes them.

    Raises:
        DataError: The source can't be opened, or holds nothing at all.
    """
    reading = {key: value for key, value in options.items() if key in ReadOptions.__annotations__}
    stream = open_rows(source, **cast(ReadOptions, reading | {"on_bad_row": "skip"}))
    tokenized = None
    if tokenizer is not None:
        from rlhf.data.token_view import RowTrial  # here: it loads torch, which a look at rows does without

        tokenized = RowTrial(tokenizer, made_for, options)
    rows = iter(stream)
    kinds: dict[Kind, list[tuple[int, str]]] = {}
    bad: list[tuple[int, BadRow]] = []
    places_of: dict[Finding, list[str]] = {}
    columns, conversational = Counter[str](), Counter[bool]()
    odd_roles = Counter[str]()
    seen: set[bytes] = set()
    for number in range(1 << 62):
        try:
            row = next(rows, None)
        except NoUsableRowError:
            if not stream.bad_rows:
                raise
            row = None  # every row is bad, which is what the report is to say
        bad += [(number, bad_row) for bad_row in stream.bad_rows]
        stream.bad_rows.clear()
        if row is None:
            break
        if tokenized is not None and (reason := tokenized.why_refused(row)):
            bad.append((number, BadRow(row.where, reason)))
            continue
        kinds.setdefault(row.kind, []).append((number, row.where))
        columns.update(row.columns.keys())
        conversational[any(isinstance(text, list) for text in row_texts(row).values())] += 1
        for finding in _findings(row):
            places_of.setdefault(finding, []).append(row.where)
        odd_roles.update(_odd_roles(row))
        key = digest(row_text(row))
        if key in seen:
            places_of.setdefault("duplicate", []).append(row.where)
        seen.add(key)
    kind = max(kinds, key=lambda k: len(kinds[k]), default=None)
    for other, those in kinds.items():
        if other is not kind:
            reason = f"a row of kind {other}, and most are of kind {kind}."
            bad += [(number, BadRow(where, reason)) for number, where in those]
    num_usable = len(kinds[kind]) if kind is not None else 0
    counts = {finding: len(wheres) for finding, wheres in places_of.items()}
    return CheckReport(
        source=source_name(source),
        format=_format(source),
        kind=str(kind) if kind is not None else UNKNOWN,
        conversational=conversational[True] > conversational[False],
        num_rows=num_usable + len(bad),
        num_usable=num_usable,
        columns=dict(columns),
        num_identical=counts.get("identical", 0),
        num_ties=counts.get("tie", 0),
        num_empty_completions=counts.get("empty", 0),
        num_prompt_repeated=counts.get("repeated", 0),
        num_out_of_turn=counts.get("out of turn", 0),
        odd_roles=dict(odd_roles.most_common(SHOWN)),
        num_duplicates=counts.get("duplicate", 0),
        found_at=places_of,
        bad_rows=[bad_row for _, bad_row in sorted(bad, key=lambda pair: pair[0])],
    )


def run_dedup(
    source: Source,
    out: str | os.PathLike[str] | None = None,
    *,
    near: float | None = None,
    **options: Unpack[ReadOptions],
) -> DedupReport:
    """Find rows that say the same and, where ``out`` is given, write the first of each.

    Args:
        source: See ``rlhf.data.read.open_rows``, which takes ``options`` too.
        out: Where to write; None to look only.
        near: Least similarity of near duplicates, such as 0.8; None for equal rows only.
    """
    if out is not None:
        file_format(out)
    table = read_or_list_bad_rows(source, options)
    rows = table.rows
    groups = duplicate_groups([row_text(row) for row in rows], near=near)
    dropped = {number for group in groups for number in group[1:]}
    kept = [row for number, row in enumerate(rows) if number not in dropped]
    if out is not None:
        write_rows(out, kept)
    return DedupReport(
        source=source_name(source),
        written=None if out is None else os.fspath(out),
        num_rows=len(rows),
        num_kept=len(kept),
        near=near,
        groups=[[rows[number].where or f"row {number + 1}" for number in group] for group in groups],
        bad_rows=table.bad_rows,
    )


def _findings(row: Row) -> Iterator[Finding]:
    """What is not wrong with a row, but worth knowing."""
    texts = row_texts(row)
    prompt = texts.pop("prompt", None)
    completions = [plain_text(text) for name, text in texts.items() if name not in ("text", "messages")]
    if any(not text.strip() for text in completions):
        yield "empty"
    if isinstance(row, PreferenceRow) and row.chosen == row.rejected:
        yield "identical"
    if isinstance(row, (PreferenceSample, RankingSample)) and not preferences_of(row):
        yield "tie"
    if any(isinstance(text, list) and is_out_of_turn(text) for text in _dialogues(row)):
        yield "out of turn"
    if isinstance(prompt, str) and prompt and completions and all(text.startswith(prompt) for text in completions):
        yield "repeated"


def _dialogues(row: Row) -> list[Text]:
    """The texts of a row, each completion behind its prompt where both are messages."""
    texts = row_texts(row)
    prompt = texts.pop("prompt", None)
    if not isinstance(prompt, list):
        return list(texts.values())
    return [prompt + text for text in texts.values() if isinstance(text, list)] or [prompt]


def _odd_roles(row: Row) -> set[str]:
    texts = [text for text in row_texts(row).values() if isinstance(text, list)]
    return {message["role"] for text in texts for message in text} - set(ROLES)


def _format(source: Any) -> str:
    paths = [source] if isinstance(source, (str, os.PathLike)) else source if isinstance(source, Sequence) else []
    formats = {
        str(file_format(path)) for path in paths if isinstance(path, (str, os.PathLike)) and Path(path).is_file()
    }
    return " and ".join(sorted(formats)) or ("folder" if paths and _is_folder(paths[0]) else "rows")


def _is_folder(path: Any) -> bool:
    return isinstance(path, (str, os.PathLike)) and Path(path).is_dir()
