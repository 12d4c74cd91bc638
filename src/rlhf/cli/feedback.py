"""`rlhf feedback`: what people said, in and out of a store. Heavy imports happen inside the commands."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlhf.cli import compare, feedback_export, guidelines, people, project_plan
from rlhf.cli.options import JsonOption, console
from rlhf.cli.stores import (
    STORE,
    BatchOption,
    ClassesOption,
    KindOption,
    RightPriorOption,
    SmoothingOption,
    StoreOption,
    opened_store,
    say_recorded,
)
from rlhf.errors import ConfigError

if TYPE_CHECKING:
    from rlhf.data.read import OnBadRow
    from rlhf.feedback.tasks import SourceItems

app = typer.Typer(
    help="Judgments of people: bring them in, look at them, take them out for training.", no_args_is_help=True
)


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
    judgments: Annotated[
        bool, typer.Option("--judgments/--no-judgments", help="Whether judgments in the files come along.")
    ] = True,
    classes: ClassesOption = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave bad rows out and list them.")] = False,
) -> None:
    """Add tasks to a store, and the judgments that a file holds.

    Rows become tasks by what they hold: two completions are compared, several ranked, one is called good or bad; rows of an item, an
    annotator and a label are labels of several classes. The same file may be imported again: what is there already stays as it is. All
    of an import is kept, or nothing.
    """
    from rlhf.data.message_text import counted, listed, printable
    from rlhf.feedback.classes import CLASSES, check_classes, parsed_classes
    from rlhf.feedback.imports import import_items, left_out_words, overlap_words
    from rlhf.feedback.layouts import LABELS

    given = parsed_classes(classes) if classes is not None else None
    layout = LABELS if layout is None and (given or kind == "multiclass") else layout
    name, found = _read(file, layout, kind=kind, batch=batch or "", gold=gold, skip_bad=skip_bad)
    if given and name != LABELS:
        raise ConfigError(f"--classes is for rows of an item, an annotator and a label; {file[0]} is read as {name!r}.")
    with opened_store(store, must_exist=False) as opened:
        how: OnBadRow = "skip" if skip_bad else "error"
        stored = opened.setting(CLASSES) or ()
        if given and (missing := [one for one in stored if one not in given]):
            raise ConfigError(f"This store has the classes {listed(stored)}; --classes leaves out {listed(missing)}.")
        if known_classes := given or stored:
            check_classes(found, known_classes, how)
        done = import_items(opened, found.items, with_judgments=judgments, on_other_texts=how)
        overlap = overlap_words(found.items, opened.rules.overlap) if judgments else ""
        if given:
            opened.set_setting(CLASSES, list(given))
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
) -> tuple[str, SourceItems]:
    """Items of all files together: completions of one prompt may stand in several of them."""
    from dataclasses import replace

    from rlhf.errors import look_up
    from rlhf.feedback.exchange import FORMATS, OURS, detect, read_as
    from rlhf.feedback.layouts import LABELS
    from rlhf.feedback.tasks import STDIN, read_items

    if layout is not None:
        look_up(FORMATS, layout, kind="format")
    name = layout or (OURS if STDIN in files else detect(files[0]))
    if FORMATS[name].read is None:
        source: Any = files[0] if len(files) == 1 else files
        on_bad_row: Any = "skip" if skip_bad else "error"
        return name, read_items(source, kind=kind, batch=batch, all_gold=gold, on_bad_row=on_bad_row)
    fixed = "multiclass" if name == LABELS else None
    if kind not in (None, fixed) or gold or (len(files) > 1 and name != LABELS):
        raise ConfigError(
            f"--kind, --gold and several files are for rows of our own; {files[0]} is read as {name!r}, which knows how it asks."
            + (" Gold labels have a column `gold` that is true." if gold and name == LABELS else "")
        )
    found = read_as(name, *files, on_bad_row="skip" if skip_bad else "error")
    if batch:
        found.items = [replace(item, task=replace(item.task, batch=item.task.batch or batch)) for item in found.items]
    return name, found


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
def feedback_report(
    store: StoreOption = STORE,
    classes: ClassesOption = None,
    smoothing: SmoothingOption = None,
    right_prior: RightPriorOption = None,
    as_json: JsonOption = False,
) -> None:
    """How far annotators agree, whom to trust, and which items divide them."""
    from rlhf.feedback.classes import parsed_classes
    from rlhf.feedback.consensus import Belief
    from rlhf.feedback.report import report_json, report_text

    how: Any = {
        "classes": None if classes is None else parsed_classes(classes),
        "belief": Belief(smoothing=smoothing, right_prior=right_prior),
    }
    with opened_store(store) as opened:
        if as_json:
            print(json.dumps(report_json(opened, **how), indent=2, ensure_ascii=False))
        else:
            print(report_text(opened, **how))


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

    from rlhf.web.auth import invitation_link
    from rlhf.web.server_settings import ADDRESS, WebSettings

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


@app.command("prioritize")
def feedback_prioritize(
    reward: Annotated[
        list[str], typer.Option(help="Folder of a reward model with several members, or several of them.")
    ],
    store: StoreOption = STORE,
) -> None:
    """Ask first what reward models disagree on: a judgment there teaches most."""
    from rlhf.models.sources import check_there

    for folder in reward:
        check_there(folder)
    from rlhf.data.message_text import counted
    from rlhf.feedback.active import reward_priorities
    from rlhf.models.reward import RewardModel

    with opened_store(store) as opened:
        priorities = reward_priorities(list(opened.tasks()), [RewardModel.from_pretrained(folder) for folder in reward])
        opened.set_priorities(priorities)
        print(f"{counted(len(priorities), 'task')} put in order of how much the reward models disagree on them.")


app.command("export")(feedback_export.export)
app.command("simulate")(project_plan.simulate)
app.command("sample-size")(project_plan.sample_size)
app.command("guidelines")(guidelines.guidelines)
for _command in (people.token, people.revoke, people.restore_access):
    app.command()(_command)
app.add_typer(compare.app, name="compare")
