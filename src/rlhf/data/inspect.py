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

import numpy as np

from rlhf.data.chat import ROLES, is_out_of_turn
from rlhf.data.contracts import (
    UNKNOWN,
    BadRow,
    Kind,
    PreferenceRow,
    PreferenceSample,
    RankingSample,
    RatingSample,
    Row,
    StepwiseRow,
    Text,
    UnpairedRow,
)
from rlhf.data.dedup import digest, duplicate_groups, plain_text, row_text
from rlhf.data.expand import preferences_of, prompt_key, row_texts
from rlhf.data.message_text import counted, short
from rlhf.data.read import NoUsableRowError, ReadOptions, open_rows, read_or_list_bad_rows
from rlhf.data.row_conversion import ConvertReport as ConvertReport
from rlhf.data.row_conversion import run_convert as run_convert
from rlhf.data.row_report import SHOWN, bad_row_lines, places
from rlhf.data.sources import Source, file_format, source_name
from rlhf.data.write import write_rows
from rlhf.formatting import percentage

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from rlhf.data.dataset_options import DatasetOptions

FOR_THE_PROMPT = frozenset(
    {"context", "contexts", "input", "passage", "document", "article", "history", "system", "system_prompt"}
)
"""Names of columns that published data sets put into the prompt."""
PERCENTILES = (5, 25, 50, 75, 95, 99)
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
class Lengths:
    """Distribution of lengths."""

    count: int
    mean: float
    min: int
    max: int
    percentiles: Mapping[int, float]

    @classmethod
    def of(cls, lengths: Sequence[int]) -> Lengths:
        """Of at least one length."""
        values = np.asarray(lengths)
        cuts = np.percentile(values, PERCENTILES)
        return cls(
            count=len(values),
            mean=float(values.mean()),
            min=int(values.min()),
            max=int(values.max()),
            percentiles={cut: float(value) for cut, value in zip(PERCENTILES, cuts, strict=True)},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StatsReport:
    """How long the texts are and how the labels fall."""

    source: str
    kind: str
    num_rows: int
    num_prompts: int
    """Distinct ones."""
    characters: Mapping[str, Lengths]
    """By column; ``row`` is the longest sequence of a row, prompt included."""
    tokens: Mapping[str, Lengths] | None
    """The same in tokens, where a tokenizer was given; without special tokens and chat template."""
    labels: Mapping[str, int] = field(default_factory=dict)
    """How often each label, preference or rating occurs."""
    chosen_longer_frac: float | None = None
    """Share of pairs whose chosen text is the longer one. Far from one half, a reward model learns length first."""
    bad_rows: Sequence[BadRow] = ()

    def to_dict(self) -> dict[str, Any]:
        """All of it."""
        return asdict(self)

    def to_text(self) -> str:
        """A table of lengths and a few lines."""
        lines = [
            f"{self.source}: {counted(self.num_rows, f'{self.kind} row')}, {counted(self.num_prompts, 'distinct prompt')}"
        ]
        for unit, table in (("characters", self.characters), ("tokens", self.tokens)):
            if table:
                heads = "".join(f"{f'p{cut}':>9}" for cut in PERCENTILES)
                lines.append(f"{unit:<16}{'mean':>9}{'min':>9}{heads}{'max':>9}")
                for name, lengths in table.items():
                    cuts = "".join(f"{value:>9,.0f}" for value in lengths.percentiles.values())
                    lines.append(f"  {name:<14}{lengths.mean:>9,.1f}{lengths.min:>9,}{cuts}{lengths.max:>9,}")
        if self.labels:
            lines.append("labels: " + ", ".join(f"{label} {count:,}" for label, count in self.labels.items()))
        if self.chosen_longer_frac is not None:
            lines.append(f"chosen is longer in {percentage(self.chosen_longer_frac)} of pairs")
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


def run_stats(
    source: Source, *, tokenizer: PreTrainedTokenizerBase | None = None, **options: Unpack[ReadOptions]
) -> StatsReport:
    """Measure the texts of a source; bad rows are listed.

    Args:
        source: See ``rlhf.data.read.open_rows``.
        tokenizer: To count tokens too.
        options: ``columns``, ``split``, ``subset``, ``limit``.
    """
    options["on_bad_row"] = "skip"
    stream = open_rows(source, **options)
    characters: dict[str, list[int]] = {}
    tokens: dict[str, list[int]] = {}
    kinds, labels = Counter[str](), Counter[str]()
    prompts: set[bytes] = set()
    longer: list[float] = []
    for row in stream:
        texts = {name: plain_text(text) for name, text in row_texts(row).items()}
        kinds[row.kind] += 1
        prompts.add(digest(prompt_key(row)))
        labels.update(_labels(row))
        _add_lengths(characters, {name: len(text) for name, text in texts.items()})
        if tokenizer is not None:
            ids = tokenizer(list(texts.values()), add_special_tokens=False, verbose=False)["input_ids"]
            _add_lengths(tokens, dict(zip(texts, map(len, ids), strict=True)))
        if isinstance(row, PreferenceRow):
            difference = len(texts["chosen"]) - len(texts["rejected"])
            longer.append(0.5 + 0.5 * float(np.sign(difference)))
    return StatsReport(
        source=source_name(source),
        kind=" and ".join(kinds),
        num_rows=kinds.total(),
        num_prompts=len(prompts),
        characters={name: Lengths.of(lengths) for name, lengths in characters.items()},
        tokens={name: Lengths.of(lengths) for name, lengths in tokens.items()} if tokenizer is not None else None,
        labels=dict(sorted(labels.items())),
        chosen_longer_frac=sum(longer) / len(longer) if longer else None,
        bad_rows=stream.bad_rows,
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


def _labels(row: Row) -> list[str]:
    if isinstance(row, UnpairedRow):
        return ["desirable" if row.label else "undesirable"]
    if isinstance(row, PreferenceSample):
        return [f"{row.preference} {row.strength}" if row.strength else str(row.preference)]
    if isinstance(row, RatingSample):
        return [f"{row.rating:g}"]
    if isinstance(row, StepwiseRow):
        return ["right" if label else "wrong" for label in row.labels]
    return []


def _add_lengths(lengths: dict[str, list[int]], of_row: Mapping[str, int]) -> None:
    """Add one row's lengths by column; the items of a list go into one column."""
    prompt = of_row.get("prompt", 0)
    steps = [length for name, length in of_row.items() if name.startswith("completions[")]
    for name, length in of_row.items():
        lengths.setdefault(name.partition("[")[0], []).append(length)
    rest = [length for name, length in of_row.items() if name != "prompt"]
    if rest and "prompt" in of_row:
        lengths.setdefault("row", []).append(prompt + max(rest, default=0) if not steps else prompt + max(steps))


def _format(source: Any) -> str:
    paths = [source] if isinstance(source, (str, os.PathLike)) else source if isinstance(source, Sequence) else []
    formats = {
        str(file_format(path)) for path in paths if isinstance(path, (str, os.PathLike)) and Path(path).is_file()
    }
    return " and ".join(sorted(formats)) or ("folder" if paths and _is_folder(paths[0]) else "rows")


def _is_folder(path: Any) -> bool:
    return isinstance(path, (str, os.PathLike)) and Path(path).is_dir()
