"""`rlhf feedback`: what people said, in and out of a store. Heavy imports happen inside the commands."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlhf.cli import compare, guidelines, rehearsal
from rlhf.cli.options import JsonOption, console
from rlhf.cli.stores import STORE, StoreOption, opened_store, say_recorded
from rlhf.errors import ConfigError

if TYPE_CHECKING:
    from rlhf.data.read import OnBadRow
    from rlhf.feedback.exchange import Format
    from rlhf.feedback.exports import Selection
    from rlhf.feedback.store import PreferenceStore
    from rlhf.feedback.tasks import Found

app = typer.Typer(
    help="Judgements of people: bring them in, look at them, take them out for training.", no_args_is_help=True
)

KindOption = Annotated[
    str | None, typer.Option(help="pairwise, graded5, graded7, ranking, rating or binary.", show_default=False)
]
BatchOption = Annotated[str | None, typer.Option(help="Name of a batch of tasks.", show_default=False)]


@app.command("import")
def feedback_import(
    file: Annotated[
        list[str],
        typer.Argument(help="Files of rows or of another tool, a folder of Argilla's, or `-` for standard input."),
    ],
    store: StoreOption = STORE,
    layout: Annotated[
        str | None, typer.Option("--format", help="How the files are laid out (see `formats`); found out by default.")
    ] = None,
    kind: KindOption = None,
    batch: BatchOption = None,
    gold: Annotated[
        bool, typer.Option("--gold", help="What the rows say is known to be right: these tasks check the annotators.")
    ] = False,
    judgements: Annotated[
        bool, typer.Option("--judgements/--no-judgements", help="Whether judgements in the files come along.")
    ] = True,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave bad rows out and list them.")] = False,
) -> None:
    """Add tasks to a store, and the judgements that a file holds.

    Rows become tasks by what they hold: two completions are compared, several ranked, one is called good or bad. The same
    file may be imported again: what is there already stays as it is. All of an import is kept, or nothing.
    """
    from rlhf.data.words import counted, printable
    from rlhf.feedback.imports import import_items, left_out_words, overlap_words

    name, found = _read(file, layout, kind=kind, batch=batch or "", gold=gold, skip_bad=skip_bad)
    with opened_store(store, must_exist=False) as opened:
        how: OnBadRow = "skip" if skip_bad else "error"
        done = import_items(opened, found.items, with_judgements=judgements, on_other_texts=how)
        overlap = overlap_words(found.items, opened.rules.overlap) if judgements else ""
    known = f", {done.num_known:,} there already" if done.num_known else ""
    print(f"{counted(done.num_added, 'task')} added{known} (read as {name!r}).")
    if done.gold_not_taken:
        num_gold = sum(item.task.gold is not None for item in found.items)
        print(
            f"! {counted(len(done.gold_not_taken), 'gold answer')} of {counted(num_gold, 'gold row')} not taken: the tasks were there "
            f"without it or with another, and stay as they were asked (the first: {done.gold_not_taken[0]!r}). Give the gold rows ids of "
            "their own, or import them into a new store before the other rows."
        )
    if done.recorded.num_added or done.recorded.num_known:
        say_recorded(done.recorded)
    if overlap:
        print(overlap)
    for line in left_out_words([*found.left_out, *done.left_out]):
        print(printable(line))


def _read(
    files: list[str], layout: str | None, *, kind: str | None, batch: str, gold: bool, skip_bad: bool
) -> tuple[str, Found]:
    """Items of all files together: completions of one prompt may stand in several of them."""
    from dataclasses import replace

    from rlhf.errors import look_up
    from rlhf.feedback.exchange import FORMATS, OURS, detect, read_as
    from rlhf.feedback.tasks import STDIN, read_items

    if layout is not None:
        look_up(FORMATS, layout, kind="format")
    name = layout or (OURS if STDIN in files else detect(files[0]))
    if FORMATS[name].read is None:
        source: Any = files[0] if len(files) == 1 else files
        on_bad_row: Any = "skip" if skip_bad else "error"
        return name, read_items(source, kind=kind, batch=batch, all_gold=gold, on_bad_row=on_bad_row)
    if kind is not None or gold or len(files) > 1:
        raise ConfigError(
            f"--kind, --gold and several files are for rows of our own; {files[0]} is read as {name!r}, which knows how it asks."
        )
    found = read_as(name, files[0], on_bad_row="skip" if skip_bad else "error")
    if batch:
        found.items = [replace(item, task=replace(item.task, batch=item.task.batch or batch)) for item in found.items]
    return name, found


@app.command("export")
def feedback_export(
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
        typer.Option(help="One row for each item instead of each judgement: majority, dawid-skene or bradley-terry."),
    ] = None,
    ties: Annotated[
        str | None,
        typer.Option(help="With --aggregate: drop what nobody wins (drop), or keep it (rows are then comparisons)."),
    ] = None,
    min_judgements: Annotated[
        int | None, typer.Option(help="With --aggregate: leave out items that fewer people judged (1).", min=1)
    ] = None,
    qualified: Annotated[
        bool,
        typer.Option("--qualified", help="Only judgements of annotators who meet the rules of `rlhf feedback report`."),
    ] = False,
    min_items: Annotated[
        int | None, typer.Option(help="With --qualified: judgements an annotator has made at least (50).", min=0)
    ] = None,
    min_agreement: Annotated[
        float | None, typer.Option(help="With --qualified: least agreement with the others (0.7).", min=0, max=1)
    ] = None,
    min_gold_accuracy: Annotated[
        float | None, typer.Option(help="With --qualified: least share of gold items right (0.8).", min=0, max=1)
    ] = None,
    kind: KindOption = None,
    batch: BatchOption = None,
    unjudged: Annotated[
        bool, typer.Option("--unjudged", help="Also tasks that nobody has judged yet (JSONL or JSON).")
    ] = False,
    events: Annotated[
        bool,
        typer.Option("--events", help="What users of a served model did (thumbs, edits, votes) instead of judgements."),
    ] = False,
    regenerate_confidence: Annotated[
        float | None,
        typer.Option(help="With --events: also take regenerations, as preferences this sure (0 to 1).", min=0, max=1),
    ] = None,
) -> None:
    """Write judgements as training data, each with where it came from.

    For a reward model: `rlhf feedback export pairs.jsonl --aggregate dawid-skene`, then `rlhf reward ... use_confidence=true`.
    """
    known = _writable(layout)
    bars: dict[str, Any] = {
        "min_judgements": min_items, "min_agreement": min_agreement, "min_gold_accuracy": min_gold_accuracy,
    }  # fmt: skip
    _refuse_idle(
        {
            "--ties": ties, "--min-judgements": min_judgements, "--min-items": min_items, "--min-agreement": min_agreement,
            "--min-gold-accuracy": min_gold_accuracy, "--regenerate-confidence": regenerate_confidence, "--aggregate": aggregate,
            "--qualified": qualified or None, "--kind": kind, "--batch": batch, "--unjudged": unjudged or None,
            "--events": events or None,
        }
    )  # fmt: skip
    if aggregate is not None and known.write_items is not None:
        raise ConfigError(
            f"{layout!r} holds single judgements; leave --aggregate out, or write --format rows, trl or openai."
        )
    if events and known.write_items is not None:
        raise ConfigError(
            f"{layout!r} holds tasks and judgements of them, and what users did is rows; leave --events out, or write --format rows, "
            "trl or openai."
        )
    with opened_store(store) as opened:
        if events:
            _write_events(opened, output, layout, kind, regenerate_confidence)
            return
        from rlhf.data.words import counted, printable
        from rlhf.feedback.exports import select
        from rlhf.feedback.quality import QualityRules

        rules = QualityRules(**{name: bar for name, bar in bars.items() if bar is not None})
        selection = select(opened, kind=kind, batch=batch, only_qualified=qualified, rules=rules)
        for name, why in selection.unqualified.items():
            print(printable(f"left out: {name}: {why}"))
        if selection.simulated:
            print(f"! {selection.simulated}")
        if known.write_items is not None:
            number = known.write_items(output, selection.items, selection.guidelines)
            said = counted(selection.num_judgements, "judgement")
            print(f"{counted(number, 'task')} with {said} written to {output}.")
            return
        rows = _rows(selection, output, layout, aggregate, ties or "drop", min_judgements or 1, unjudged)
        _write(output, layout, rows, selection.notes(with_unjudged=unjudged, aggregated=aggregate is not None))


IDLE_WITHOUT = {
    "--aggregate": ("--ties", "--min-judgements"),
    "--qualified": ("--min-items", "--min-agreement", "--min-gold-accuracy"),
    "--events": ("--regenerate-confidence",),
}
"""Options of `export` that do nothing unless another one is given."""
IDLE_WITH = {
    "--events": ("--aggregate", "--qualified", "--batch", "--unjudged"),
    "--aggregate": ("--unjudged",),
}
"""And those that do nothing beside another one."""


def _refuse_idle(given: Mapping[str, object]) -> None:
    """Refuse options that were given and would do nothing: whoever gave them expects something of it.

    Raises:
        ConfigError: There are such.
    """
    said = {name for name, value in given.items() if value is not None}
    for table, word, mend in ((IDLE_WITHOUT, "without", "add"), (IDLE_WITH, "with", "leave out")):
        for other, options in table.items():
            idle = [name for name in options if name in said]
            if idle and (other in said) == (word == "with"):
                does, it = ("does", "it") if len(idle) == 1 else ("do", "them")
                raise ConfigError(
                    f"{' and '.join(idle)} {does} nothing {word} {other}; leave {it} out, or {mend} {other}."
                )


def _writable(layout: str) -> Format:
    from rlhf.errors import look_up
    from rlhf.feedback.exchange import FORMATS, OURS, SAVED

    known = look_up(FORMATS, layout, kind="format")
    if layout not in (OURS, SAVED) and known.write_items is None and known.row_of is None:
        can = ", ".join(name for name, one in FORMATS.items() if name in (OURS, SAVED) or one.write_items or one.row_of)
        raise ConfigError(f"{layout!r} is only read; what can be written: {can}.")
    return known


def _rows(
    selection: Selection,
    output: Path,
    layout: str,
    aggregate: str | None,
    ties: str,
    min_judgements: int,
    unjudged: bool,
) -> list[dict[str, Any]]:
    from rlhf.data.readers import FileFormat
    from rlhf.data.sources import file_format
    from rlhf.feedback.consensus import consensus_rows
    from rlhf.feedback.exchange import OURS, SAVED
    from rlhf.feedback.rows import rows_of

    if aggregate is not None:
        return consensus_rows(
            selection.items,
            aggregate=aggregate,
            ties=ties,
            min_judgements=min_judgements,
            guidelines=selection.guidelines,
        )
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


def _write_events(
    store: PreferenceStore, output: Path, layout: str, kind: str | None, regenerate_confidence: float | None
) -> None:
    from rlhf.data.words import counted
    from rlhf.feedback.exports import files_of_events
    from rlhf.feedback.production import rows_of_events

    found = rows_of_events(store.events(), regenerate_confidence=regenerate_confidence)
    notes = [f"left out: {counted(number, 'event')}: {reason}" for reason, number in found.left_out.items()]
    files = files_of_events(output, found.rows, kind=kind) or {output: []}
    for path, rows in files.items():
        _write(path, layout, rows, notes if path == next(iter(files)) else [])
    if len(files) > 1:
        print(
            "Rows of different kinds train different models, so each kind has a file; --kind pairwise or binary writes one."
        )


def _write(output: Path, layout: str, rows: list[dict[str, Any]], notes: list[str]) -> None:
    from rlhf.data.words import counted
    from rlhf.data.write import write_rows
    from rlhf.errors import DataError
    from rlhf.feedback.exchange import OURS, SAVED, write_dataset, write_pairs

    for note in notes:
        print(note)
    if not rows:
        raise DataError(f"There is nothing to export yet, so {output} was not written.")
    if layout in (OURS, SAVED):
        number = write_rows(output, rows) if layout == OURS else write_dataset(output, rows)
        print(f"{counted(number, 'row')} written to {output}.")
        return
    number, left_out = write_pairs(layout, output, rows)
    if not number:
        raise DataError(f"No row has a winner, and {layout!r} holds pairs, so {output} was not written.")
    print(
        f"{counted(number, 'row')} written to {output}{f', {left_out:,} without a winner left out' if left_out else ''}."
    )


@app.command("formats")
def feedback_formats(as_json: JsonOption = False) -> None:
    """List the layouts that can be imported and exported."""
    from rlhf.feedback.layouts import LAYOUTS

    rows = [
        {"name": name, "import": True, "export": known.exports, "about": known.about} for name, known in LAYOUTS.items()
    ]
    if as_json:
        print(json.dumps(rows, indent=1, ensure_ascii=False))
        return
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    for row in rows:
        how = " ".join(word for word in ("import", "export") if row[word])
        table.add_row(str(row["name"]), how, str(row["about"]))
    console().print(table)


@app.command("report")
def feedback_report(store: StoreOption = STORE, as_json: JsonOption = False) -> None:
    """How far annotators agree, whom to trust, and which items divide them."""
    from rlhf.feedback.report import report_json, report_text

    with opened_store(store) as opened:
        print(json.dumps(report_json(opened), indent=2, ensure_ascii=False) if as_json else report_text(opened))


@app.command("invite")
def feedback_invite(
    name: Annotated[str, typer.Argument(help="Who is to judge; a name of your choice, shown to the owner only.")],
    store: StoreOption = STORE,
    owner: Annotated[bool, typer.Option("--owner", help="Invite them as an owner, who sees everything.")] = False,
    url: Annotated[
        str | None,
        typer.Option(
            help="Where they reach `rlhf annotate`; by default where it was last served from this store.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Print a link by which somebody comes in, once. The server need not be stopped for it."""
    from urllib.parse import urlsplit

    from rlhf.feedback.web.auth import invitation_link
    from rlhf.feedback.web.settings import ADDRESS, WebSettings

    if url is not None and (urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname):
        raise ConfigError(f"--url is {url!r}; wanted an address such as https://label.example.org.")
    with opened_store(store) as opened:
        known = url or opened.setting(ADDRESS)
        settings = WebSettings(public_url=known)
        print(invitation_link(opened, name, role="owner" if owner else "annotator", settings=settings))
    if known is None:
        print(
            f"No server was started with this store yet, so the link begins with {settings.base_url}; if `rlhf annotate` gets "
            "another address (--port, --public-url), say it by --url.",
            file=sys.stderr,
        )


@app.command("prioritise")
def feedback_prioritise(
    reward: Annotated[
        list[str], typer.Option(help="Folder of a reward model with several members, or several of them.")
    ],
    store: StoreOption = STORE,
) -> None:
    """Ask first what reward models disagree on: a judgement there teaches most."""
    from rlhf.data.words import counted
    from rlhf.feedback.active import reward_priorities
    from rlhf.models.reward import RewardModel

    with opened_store(store) as opened:
        priorities = reward_priorities(list(opened.tasks()), [RewardModel.from_pretrained(folder) for folder in reward])
        opened.set_priorities(priorities)
        print(f"{counted(len(priorities), 'task')} put in order of how much the reward models disagree on them.")


app.command("simulate")(rehearsal.simulate)
app.command("plan")(rehearsal.plan)
app.command("guidelines")(guidelines.guidelines)
app.add_typer(compare.app, name="compare")
