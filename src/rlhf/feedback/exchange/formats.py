"""Other tools' files and public data: one table of formats, each a reader, a writer, or both.

read_as("ultrafeedback", path)      tasks and what was said of them
detect(path)                        which format a file seems to be in
write_items / write_pairs           through the table
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from rlhf.data.contracts import BadRow, Kind, Row, RowError
from rlhf.data.formats import COLUMNS, HH_TURN, canonical_columns, detect_kind, parse_row
from rlhf.data.message_text import counted, listed
from rlhf.data.read import OnBadRow
from rlhf.data.write import write_rows
from rlhf.errors import DataError, did_you_mean, look_up
from rlhf.feedback.exchange import argilla, dialogues, label_studio, labels, published
from rlhf.feedback.exchange.lines import Line, Reader, lines_of
from rlhf.feedback.guidelines import AnnotationGuideline
from rlhf.feedback.identity import merged
from rlhf.feedback.items import Item, check_item, laid_out_as
from rlhf.feedback.layouts import LABELS, OURS, SAVED
from rlhf.feedback.tasks import STDIN, SourceItems

ItemWriter = Callable[[Path, Sequence[Item], Sequence[AnnotationGuideline]], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """How one layout is read and written; what it is, ``rlhf.feedback.layouts`` says."""

    columns: tuple[str, ...] = ()
    """What a row of it has and others have not: it is recognized by them."""
    is_it: Callable[[Mapping[str, Any]], bool] = lambda row: True
    """Asked where the columns are there and do not settle it."""
    read: Reader | None = None
    key: str | None = None
    """Rows one behind the other that agree in this column are one task."""
    write_items: ItemWriter | None = None
    """Writes tasks and judgments."""
    row_of: Callable[[Row], dict[str, Any]] | None = None
    """Writes pairs or labels, one row each."""


def _is_hh(row: Mapping[str, Any]) -> bool:
    return "prompt" not in row and isinstance(row.get("chosen"), str) and HH_TURN in row["chosen"]


FORMATS: Mapping[str, Format] = {
    OURS: Format(),
    SAVED: Format(),
    "label-studio": Format(
        columns=("data",),
        is_it=lambda row: isinstance(row.get("data"), Mapping), read=label_studio.from_label_studio,
        write_items=lambda path, items, _: label_studio.write_label_studio(path, items),
    ),
    "argilla": Format(
        columns=("fields", "responses"), read=argilla.from_argilla,
        write_items=argilla.write_argilla,
    ),
    "argilla-flat": Format(
        columns=("status",),
        is_it=lambda row: any(name.endswith(".responses") for name in row), read=argilla.from_argilla_flat,
    ),
    "ultrafeedback": Format(
        columns=("instruction", "completions"),
        is_it=lambda row: "ranks" not in row and "ratings" not in row, read=published.ultrafeedback,
    ),
    "helpsteer2": Format(
        columns=("prompt", "response", *published.HELPSTEER_DIMENSIONS), read=published.helpsteer2, key="prompt",
    ),
    "helpsteer2-preference": Format(
        columns=("prompt", "response_1", "response_2", "preference_strength"), read=published.helpsteer2_preference,
    ),
    "helpsteer3": Format(
        columns=("context", "response1", "response2", "overall_preference"), read=published.helpsteer3,
    ),
    "nectar": Format(columns=("prompt", "answers"), read=published.nectar),
    "shp": Format(
        columns=("history", "human_ref_A", "human_ref_B", "labels"), read=published.shp
    ),
    "pku-saferlhf": Format(
        columns=("prompt", "response_0", "response_1", "better_response_id", "safer_response_id"), read=published.pku_saferlhf,
    ),
    LABELS: Format(
        columns=("|".join(labels.LABEL), "|".join((*labels.ANNOTATOR, "gold"))), is_it=labels.is_labels, read=labels.from_labels
    ),
    "openai": Format(
        columns=("input", "preferred_output|preferred_completion"),
        read=dialogues.from_openai, row_of=dialogues.to_openai,
    ),
    "hh": Format(
        columns=("chosen", "rejected"), is_it=_is_hh, read=dialogues.from_hh,
        row_of=dialogues.to_hh,
    ),
    "trl": Format(row_of=dialogues.to_trl),
    "sharegpt": Format(row_of=dialogues.to_sharegpt),
    "alpaca": Format(row_of=dialogues.to_alpaca),
}  # fmt: skip
"""Name to format. Those without a reader of their own are rows as this library reads them anyway."""


def detect(source: str | Path) -> str:
    """The format a file is in, by the columns of its first readable row.

    Raises:
        DataError: None fits; says what was found and which is nearest.
    """
    first = next((line for line in lines_of(_file_of(source)) if isinstance(line, Line)), None)
    if first is None:
        raise DataError(f"{source} holds no row that can be read; `rlhf data check {source}` tells why.")
    for name, known in FORMATS.items():
        if known.read is not None and not _missing(known, first.cells) and known.is_it(first.cells):
            return name
    try:
        kind = detect_kind(canonical_columns(first.cells, first.where), where=first.where, header=first.cells_are_text)
    except RowError as err:
        raise RowError(first.where, _nearest(first.cells) or _unknown(first.cells, err)) from err
    if (
        kind is Kind.PROMPT
        and not {"completions", "completion_a"} & set(first.cells)
        and (hint := _nearest(first.cells))
    ):
        raise RowError(first.where, hint)
    return OURS


def _missing(known: Format, row: Mapping[str, Any]) -> list[str]:
    return [column for column in known.columns if not any(name in row for name in column.split("|"))]


def _nearest(row: Mapping[str, Any]) -> str:
    """The format of which more than half of the columns are there, and what is missing; empty where there is none."""
    shares = {
        name: 1 - len(_missing(known, row)) / len(known.columns) for name, known in FORMATS.items() if known.columns
    }
    best = max(shares, key=lambda name: shares[name])
    missing = _missing(FORMATS[best], row)
    if shares[best] <= 0.5 or not missing:
        return ""
    hint = did_you_mean(missing[0], row)
    return f"columns found: {listed(row)}. Nearest is {best!r}, which lacks {listed(missing)}.{hint}"


def _unknown(row: Mapping[str, Any], err: RowError) -> str:
    hint = next((h for name in row if name not in COLUMNS and (h := did_you_mean(name, COLUMNS))), "")
    return f"{err.reason}{hint} Or name the layout with --format: {', '.join(FORMATS)}."


def read_as(name: str, *sources: str | Path, on_bad_row: OnBadRow = "error") -> SourceItems:
    """Tasks and judgments of a file in one of the formats that have a reader of their own.

    Args:
        name: In ``FORMATS``.
        sources: Files, read one after the other; of Argilla also the folder.
        on_bad_row: ``error`` stops at the first; ``skip`` lists them.

    Raises:
        DataError: A bad row, or no usable one.
        UnknownNameError: There is no such format.
    """
    known = look_up(FORMATS, name, kind="format")
    if known.read is None:
        raise DataError(f"{name!r} has no reader of its own; its rows are read as {OURS!r}.")
    if STDIN in sources:
        raise DataError(f"Rows of the format {name!r} are read from a file; standard input takes {OURS!r} alone.")
    found = SourceItems()
    made: list[tuple[str, Item]] = []
    lines = (line for source in sources for line in lines_of(_file_of(source)))
    for group in _groups(lines, known.key, found, on_bad_row):
        try:
            with laid_out_as(f"a row of {name!r}", group[0].where):
                made += [(group[0].where, check_item(item, group[0].where)) for item in known.read(group)]
        except DataError as err:
            _left_out(err, group[0].where, found, on_bad_row)
    found.items = merged(made)
    if not found.items:
        first = f" The first: {found.left_out[0].where}: {found.left_out[0].reason}" if found.left_out else ""
        raise DataError(
            f"{', '.join(map(str, sources))}: no row can be used as {name!r}; {counted(len(found.left_out), 'bad row')}.{first}"
        )
    return found


def _groups(
    lines: Iterable[Line | RowError], key: str | None, found: SourceItems, on_bad_row: OnBadRow
) -> Iterator[list[Line]]:
    good = []
    for line in lines:
        if isinstance(line, RowError):
            _left_out(line, line.where, found, on_bad_row)
        else:
            good.append(line)
    if key is None:
        yield from ([line] for line in good)
    else:
        for _, group in groupby(good, key=lambda line: line.cells.get(key)):
            yield list(group)


def _left_out(err: DataError, where: str, found: SourceItems, on_bad_row: OnBadRow) -> None:
    if on_bad_row == "error":
        raise err if isinstance(err, RowError) or str(err).startswith(where) else RowError(where, str(err))
    found.left_out.append(
        BadRow(where, err.reason if isinstance(err, RowError) else str(err).removeprefix(f"{where}: "))
    )


def _file_of(source: str | Path) -> str | Path:
    """The file to read: of a folder that Argilla wrote, its records."""
    inside = Path(source) / argilla.RECORDS
    return inside if inside.is_file() else source


def write_pairs(name: str, path: Path, rows: Iterable[Mapping[str, Any]]) -> tuple[int, int]:
    """Write rows of ours as pairs (or labels) of another layout; ties and what has no winner is left out.

    Returns:
        How many were written, and how many left out.
    """
    from rlhf.data.expand import preferences_of

    known = look_up(FORMATS, name, kind="format")
    assert known.row_of is not None, "the caller looks first"
    written: list[dict[str, Any]] = []
    num_left_out = 0
    for number, raw in enumerate(rows, 1):
        row = parse_row(dict(raw), where=f"row {number}", row_id=str(raw.get("id", "")))
        pairs: Sequence[Row] = preferences_of(row) if row.kind in ("preference", "comparison", "ranking") else [row]
        if row.kind == "unpaired" and name in ("sharegpt", "alpaca") and not raw["label"]:
            pairs = []
        num_left_out += not pairs
        written += [known.row_of(pair) for pair in pairs]
    return (write_rows(path, written) if written else 0), num_left_out
