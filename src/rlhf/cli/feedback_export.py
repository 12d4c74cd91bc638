"""`rlhf feedback export`: judgments as training data. Heavy imports happen inside the command."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlhf.cli.feedback_events import (
    ConsentOption,
    DifferenceOption,
    EventsOption,
    EventsWanted,
    NotInOption,
    RegenerateOption,
    ScaleOption,
    SinceOption,
    SourceOption,
    ThresholdsOption,
    event_rows,
    moment,
)
from rlhf.cli.stores import (
    STORE,
    BatchOption,
    ClassesOption,
    KindOption,
    RightPriorOption,
    SmoothingOption,
    StoreOption,
    opened_store,
)
from rlhf.errors import ConfigError
from rlhf.files import private_files

if TYPE_CHECKING:
    from rlhf.feedback.exchange import Format
    from rlhf.feedback.exports import Selection
    from rlhf.store import PreferenceStore


def export(
    output: Annotated[
        Path,
        typer.Argument(
            help="File to write; its ending names the file format (.jsonl, .parquet, .csv, .json). A folder for datasets."
        ),
    ],
    store: StoreOption = STORE,
    layout: Annotated[str, typer.Option("--format", help="Layout of the rows; see `rlhf feedback formats`.")] = "rows",
    aggregate: Annotated[
        str | None,
        typer.Option(help="One row for each item instead of each judgment: majority, dawid-skene or bradley-terry."),
    ] = None,
    ties: Annotated[
        str | None,
        typer.Option(help="With --aggregate: drop what nobody wins (drop), or keep it (rows are then comparisons)."),
    ] = None,
    min_judgments: Annotated[
        int | None, typer.Option(help="With --aggregate: leave out items that fewer people judged (1).", min=1)
    ] = None,
    qualified: Annotated[
        bool,
        typer.Option(
            "--qualified",
            help="Only judgments of annotators who meet the rules of `rlhf feedback report`; with --events, without users who always "
            "click the same.",
        ),
    ] = False,
    min_items: Annotated[
        int | None,
        typer.Option(
            help="With --qualified: judgments an annotator has made at least (50); with --events, from how many on a user is looked at (20).",
            min=0,
        ),
    ] = None,
    min_agreement: Annotated[
        float | None, typer.Option(help="With --qualified: least agreement with the others (0.7).", min=0, max=1)
    ] = None,
    min_gold_accuracy: Annotated[
        float | None, typer.Option(help="With --qualified: least share of gold items right (0.8).", min=0, max=1)
    ] = None,
    smoothing: SmoothingOption = None,
    right_prior: RightPriorOption = None,
    kind: KindOption = None,
    classes: ClassesOption = None,
    batch: BatchOption = None,
    unjudged: Annotated[
        bool, typer.Option("--unjudged", help="Also tasks that nobody has judged yet (JSONL or JSON).")
    ] = False,
    events: EventsOption = False,
    regenerate_probability: RegenerateOption = None,
    min_rating_difference: DifferenceOption = None,
    rating_thresholds: ThresholdsOption = None,
    rating_scale: ScaleOption = None,
    consent: ConsentOption = False,
    not_in: NotInOption = None,
    source: SourceOption = None,
    since: SinceOption = None,
) -> None:
    """Write judgments as training data, each with where it came from.

    For a reward model: `rlhf feedback export pairs.jsonl --aggregate dawid-skene`, then `rlhf reward ... use_label_probability=true`.
    """
    known = _writable(layout)
    first = moment(since) if since is not None else None
    bars: dict[str, Any] = {
        "min_judgments": min_items, "min_agreement": min_agreement, "min_gold_accuracy": min_gold_accuracy,
    }  # fmt: skip
    _refuse_idle(
        {
            "--ties": ties, "--min-judgments": min_judgments, "--min-items": min_items, "--min-agreement": min_agreement,
            "--min-gold-accuracy": min_gold_accuracy, "--regenerate-probability": regenerate_probability, "--aggregate": aggregate,
            "--qualified": qualified or None, "--kind": kind, "--batch": batch, "--unjudged": unjudged or None,
            "--events": events or None, "--classes": classes, "--smoothing": smoothing, "--right-prior": right_prior,
            "--min-rating-difference": min_rating_difference, "--rating-thresholds": rating_thresholds, "--rating-scale": rating_scale,
            "--consent": consent or None, "--not-in": not_in or None,
        }
    )  # fmt: skip
    _check_combination(known, layout, aggregate, events, has_belief=not (smoothing is None and right_prior is None))
    with (
        opened_store(store) as opened,
        private_files(),
        _nothing_deleted_meanwhile(opened),
    ):  # files name annotators and users
        if events:
            wanted = EventsWanted(
                kind=kind, qualified=qualified, min_items=min_items, regenerate_probability=regenerate_probability,
                min_rating_difference=min_rating_difference, rating_thresholds=rating_thresholds, rating_scale=rating_scale,
                consent=consent, not_in=not_in or (), since=first,
            )  # fmt: skip
            _write_events(opened, output, layout, wanted)
            return
        from rlhf.data.message_text import counted
        from rlhf.feedback.classes import parsed_classes
        from rlhf.feedback.consensus import Belief
        from rlhf.feedback.exports import select
        from rlhf.feedback.quality import QualityRules

        rules = QualityRules(**{name: bar for name, bar in bars.items() if bar is not None})
        names = parsed_classes(classes) if classes is not None else None
        selection = select(
            opened, kind=kind, batch=batch, only_qualified=qualified, rules=rules, classes=names, since=first
        )
        _check_layout(selection, layout)
        _say_of_people(selection)
        if known.write_items is not None:
            _write_tasks(opened, output, layout, known, selection)
            return
        notes = selection.notes(with_unjudged=unjudged, aggregated=aggregate is not None)
        if aggregate is None:
            _write(opened, output, layout, _rows(selection, output, layout, unjudged), notes)
            return
        from rlhf.feedback.consensus import consensus_rows

        consensus = consensus_rows(
            selection.items, aggregate=aggregate, ties=ties or "drop", min_judgments=min_judgments or 1, guidelines=selection.guidelines,
            classes=selection.classes, belief=Belief(smoothing=smoothing, right_prior=right_prior),
        )  # fmt: skip
        if consensus.num_undecided and ties is None:
            notes.append(f"left out: {counted(consensus.num_undecided, 'tie')} (--ties keep writes them, too).")
        several = len(consensus.learned) > 1
        notes += [f"{f'{learned.what}: ' if several else ''}{learned.tempering}" for learned in consensus.learned]
        _write(opened, output, layout, consensus.rows, notes)


def _say_of_people(selection: Selection) -> None:
    """Whose judgments stay behind, and whether those that leave are people's."""
    from rlhf.data.message_text import printable

    for name, why in selection.unqualified.items():
        print(printable(f"left out: {name}: {why}"))
    if selection.simulated:
        print(f"! {selection.simulated}")


def _check_combination(known: Format, layout: str, aggregate: str | None, events: bool, *, has_belief: bool) -> None:
    """Refuse options that contradict each other.

    Raises:
        ConfigError: They do.
    """
    if aggregate == "majority" and has_belief:
        raise ConfigError(
            "--smoothing and --right-prior are Dawid-Skene's, and --aggregate majority has neither; leave them out."
        )
    if aggregate is not None and known.write_items is not None:
        raise ConfigError(
            f"{layout!r} holds single judgments; leave --aggregate out, or write --format rows, trl or openai."
        )
    if events and known.write_items is not None:
        raise ConfigError(
            f"{layout!r} holds tasks and judgments of them, and what users did is rows; leave --events out, or write --format rows, "
            "trl or openai."
        )


@contextlib.contextmanager
def _nothing_deleted_meanwhile(store: PreferenceStore) -> Iterator[None]:
    """Around reading a store and writing what it held; files that may hold what was deleted in between are deleted again.

    Raises:
        StorageError: Somebody was forgotten meanwhile.
    """
    from rlhf.errors import StorageError
    from rlhf.store.deletion import num_deletions
    from rlhf.store.exported_files import exports_of

    number = num_deletions(store.engine)
    before = {(export.path, tuple(export.hashes)) for export in exports_of(store.engine)}
    yield
    if num_deletions(store.engine) == number:
        return
    written = [one.path for one in exports_of(store.engine) if (one.path, tuple(one.hashes)) not in before]
    for path in written:
        if path.is_file():
            path.unlink()
    raise StorageError(
        f"Somebody was forgotten while {', '.join(map(str, written)) or 'this'} was written, so it was deleted again. Repeat the command."
    )


IDLE_WITHOUT = {
    "--aggregate": ("--ties", "--min-judgments", "--smoothing", "--right-prior"),
    "--qualified": ("--min-items", "--min-agreement", "--min-gold-accuracy"),
    "--events": (
        "--regenerate-probability",
        "--min-rating-difference",
        "--rating-thresholds",
        "--rating-scale",
        "--consent",
        "--not-in",
    ),
}
"""Options of `export` that do nothing unless another one is given."""
IDLE_WITH = {
    "--events": ("--aggregate", "--batch", "--unjudged", "--classes", "--min-agreement", "--min-gold-accuracy"),
    "--aggregate": ("--unjudged",),
}
"""And those that do nothing together with another one."""


def _refuse_idle(given: Mapping[str, object]) -> None:
    """Refuse options that were given and would do nothing: anyone who gave them expects something of it.

    Raises:
        ConfigError: There are such.
    """
    said = {name for name, value in given.items() if value is not None}
    for table, word, remedy in ((IDLE_WITHOUT, "without", "add"), (IDLE_WITH, "with", "leave out")):
        for other, options in table.items():
            idle = [name for name in options if name in said]
            if idle and (other in said) == (word == "with"):
                does, it = ("does", "it") if len(idle) == 1 else ("do", "them")
                raise ConfigError(
                    f"{' and '.join(idle)} {does} nothing {word} {other}; leave {it} out, or {remedy} {other}."
                )


def _writable(layout: str) -> Format:
    from rlhf.errors import look_up
    from rlhf.feedback.exchange import FORMATS
    from rlhf.feedback.layouts import LAYOUTS

    known = look_up(FORMATS, layout, kind="format")
    if not LAYOUTS[layout].exports:
        can = ", ".join(name for name, one in LAYOUTS.items() if one.exports)
        raise ConfigError(f"{layout!r} is only read; what can be written: {can}.")
    return known


def _check_layout(selection: Selection, layout: str) -> None:
    """Refuse labels of several classes where there is no place for them.

    Raises:
        ConfigError: The layout holds none, or the file would hold other tasks besides.
    """
    from rlhf.feedback.exchange import OURS, SAVED
    from rlhf.store.values import TaskKind

    if TaskKind.MULTICLASS not in selection.kinds:
        return
    if layout not in (OURS, SAVED):
        raise ConfigError(
            f"{layout!r} has no place for labels of several classes; write --format rows, or choose other tasks with --kind."
        )
    if len(selection.kinds) > 1:
        raise ConfigError(
            f"The tasks are of {', '.join(sorted(selection.kinds))}, and rows of kind multiclass need a file of their own; choose one "
            "with --kind."
        )


def _rows(selection: Selection, output: Path, layout: str, unjudged: bool) -> list[dict[str, Any]]:
    from rlhf.data.readers import FileFormat
    from rlhf.data.sources import file_format
    from rlhf.feedback.exchange import OURS, SAVED
    from rlhf.feedback.rows import rows_of

    is_ours = layout in (OURS, SAVED)
    if unjudged and not is_ours:
        raise ConfigError(
            f"{layout!r} has no row for a task that nobody judged; leave --unjudged out, or write --format rows."
        )
    flat = layout == SAVED or file_format(output) in (FileFormat.CSV, FileFormat.PARQUET)
    if flat and unjudged and is_ours:
        raise ConfigError(
            f"{output} would be a table, which gives every row every column, and a task that nobody judged has others; write .jsonl "
            "or .json for --unjudged."
        )
    if flat and is_ours and len(selection.kinds) > 1:
        raise ConfigError(
            f"{output} is a table, and the tasks are of {', '.join(sorted(selection.kinds))}, which have other columns; write .jsonl, "
            "or choose one with --kind."
        )
    return list(
        rows_of(selection.items, guidelines=selection.guidelines, flat=flat, with_unjudged=unjudged and is_ours)
    )


def _write_tasks(store: PreferenceStore, output: Path, layout: str, known: Format, selection: Selection) -> None:
    """Tasks and judgments as another tool's own."""
    from rlhf.data.message_text import counted

    assert known.write_items is not None
    number = known.write_items(output, selection.items, selection.guidelines)
    _remember(store, output, layout, number)
    said = counted(selection.num_judgments, "judgment")
    print(f"{counted(number, 'task')} with {said} written to {output}.")


def _write_events(store: PreferenceStore, output: Path, layout: str, wanted: EventsWanted) -> None:
    from rlhf.feedback.exports import files_of_events

    rows, notes = event_rows(store, wanted)
    files = files_of_events(output, rows, kind=wanted.kind) or {output: []}
    for path, rows in files.items():
        _write(store, path, layout, rows, notes if path == next(iter(files)) else [])
    if len(files) > 1:
        print(
            "Rows of different kinds train different models, so each kind has a file; --kind pairwise or binary writes one."
        )


def _write(store: PreferenceStore, output: Path, layout: str, rows: list[dict[str, Any]], notes: list[str]) -> None:
    from rlhf.data.message_text import counted
    from rlhf.data.write import write_rows
    from rlhf.errors import DataError
    from rlhf.feedback.exchange import OURS, SAVED, write_dataset, write_pairs

    for note in notes:
        print(note)
    if not rows:
        raise DataError(f"There is nothing to export yet, so {output} was not written.")
    if layout in (OURS, SAVED):
        number = write_rows(output, rows) if layout == OURS else write_dataset(output, rows)
        _remember(store, output, layout, number, rows)
        print(f"{counted(number, 'row')} written to {output}.")
        return
    number, left_out = write_pairs(layout, output, rows)
    if not number:
        raise DataError(f"No row has a winner, and {layout!r} holds pairs, so {output} was not written.")
    _remember(store, output, layout, number, rows)
    print(
        f"{counted(number, 'row')} written to {output}{f', {left_out:,} without a winner left out' if left_out else ''}."
    )


def _remember(
    store: PreferenceStore, output: Path, layout: str, number: int, rows: list[dict[str, Any]] | None = None
) -> None:
    """The file in the store, which must reach it when somebody is to be forgotten, and the traces of its rows next to it."""
    from rlhf.feedback.trace_files import write_traces
    from rlhf.store.exported_files import keep_export

    write_traces(output, rows or [])
    keep_export(store.engine, output, layout, number)
