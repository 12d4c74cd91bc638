"""`rlhf feedback import` and `convert`: other tools' files into a store, or into rows. Heavy imports happen inside the commands."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlhf.cli.options import JsonOption
from rlhf.cli.stores import STORE, BatchOption, ClassesOption, KindOption, StoreOption, opened_store, say_recorded
from rlhf.errors import ConfigError
from rlhf.files import private_files

if TYPE_CHECKING:
    from rlhf.data.contracts import BadRow
    from rlhf.data.read import OnBadRow
    from rlhf.feedback.imports import Imported
    from rlhf.feedback.tasks import SourceItems
    from rlhf.feedback.trace_imports import TraceItems, TraceRules

FilesArgument = Annotated[
    list[str],
    typer.Argument(help="Files of rows or of another tool, a folder of Argilla's, or `-` for standard input."),
]
FormatOption = Annotated[
    str | None, typer.Option("--format", help="How the files are laid out (see `formats`); found out by default.")
]
SkipBadOption = Annotated[bool, typer.Option("--skip-bad", help="Leave bad rows out and list them.")]
PersonalDataOption = Annotated[
    str | None,
    typer.Option(
        help="Secrets and personal data in texts: refuse the import, mask them, or keep them. Conversations are refused by default.",
        show_default=False,
    ),
]
ConsentOption = Annotated[
    str | None,
    typer.Option(
        help="Conversations: dotted path of a field that must be true; others are left out.", show_default=False
    ),
]
LabelOption = Annotated[
    str | None,
    typer.Option(
        help="hf-traces and atif: dotted path of a field that says whether a session went well.", show_default=False
    ),
]
UnjudgedOption = Annotated[
    bool,
    typer.Option("--unjudged", help="Conversations: also answers of which nobody said anything, as tasks to judge."),
]


def import_(
    file: FilesArgument,
    store: StoreOption = STORE,
    layout: FormatOption = None,
    kind: KindOption = None,
    batch: BatchOption = None,
    gold: Annotated[
        bool, typer.Option("--gold", help="What the rows say is known to be right: these tasks check the annotators.")
    ] = False,
    judgments: Annotated[
        bool, typer.Option("--judgments/--no-judgments", help="Whether judgments in the files come along.")
    ] = True,
    classes: ClassesOption = None,
    skip_bad: SkipBadOption = False,
    personal_data: PersonalDataOption = None,
    consent_field: ConsentOption = None,
    label_field: LabelOption = None,
    unjudged: UnjudgedOption = False,
    as_json: JsonOption = False,
) -> None:
    """Add tasks to a store, and the judgments that a file holds.

    Rows become tasks by what they hold: two completions are compared, several ranked, one is called good or bad; rows of an item, an
    annotator and a label are labels of several classes; conversations with thumbs, votes and edits become judgments. The same file may
    be imported again: what is there already stays as it is. All of an import is kept, or nothing.
    """
    from rlhf.feedback.classes import CLASSES, check_classes, parsed_classes
    from rlhf.feedback.imports import import_items, overlap_words
    from rlhf.feedback.layouts import LABELS

    given = parsed_classes(classes) if classes is not None else None
    layout = LABELS if layout is None and (given or kind == "multiclass") else layout
    name = _layout_of(file, layout)
    if given and name != LABELS:
        raise ConfigError(f"--classes is for rows of an item, an annotator and a label; {file[0]} is read as {name!r}.")
    rules = _rules(name, personal_data, consent_field, label_field, unjudged)
    how: OnBadRow = "skip" if skip_bad else "error"
    traces: TraceItems | None = None
    with opened_store(store, must_exist=False) as opened:
        if rules is not None:
            _refuse_for_traces(file[0], name, kind, gold)
            from rlhf.feedback.trace_imports import read_traces
            from rlhf.store.deletion import forgotten_people
            from rlhf.store.pseudonyms import store_pseudonyms

            source_items: SourceItems = (
                traces := read_traces(
                    name, *file, rules=rules, pseudonym=store_pseudonyms(opened), forgotten=forgotten_people(opened.engine),
                    batch=batch or "", on_bad_row=how,
                )
            )  # fmt: skip
        else:
            source_items = _read(file, name, kind=kind, batch=batch or "", gold=gold, skip_bad=skip_bad)
            _look_through(source_items, personal_data)
        stored = opened.setting(CLASSES) or ()
        if given and (missing := [one for one in stored if one not in given]):
            from rlhf.data.message_text import listed

            raise ConfigError(f"This store has the classes {listed(stored)}; --classes leaves out {listed(missing)}.")
        if known_classes := given or stored:
            check_classes(source_items, known_classes, how)
        done = import_items(opened, source_items.items, with_judgments=judgments, on_other_texts=how)
        overlap = overlap_words(source_items.items, opened.rules.overlap) if judgments and rules is None else ""
        if given:
            opened.set_setting(CLASSES, list(given))
    consent = _consent_words(rules)
    if as_json:
        print(json.dumps(_as_dict(name, source_items, traces, done, rules), indent=2, ensure_ascii=False))
        return
    _say(name, source_items, done, overlap)
    _say_traces(traces, consent)


def convert(
    file: Annotated[list[str], typer.Argument(help="Files of another tool.")],
    output: Annotated[Path, typer.Argument(help="File to write; its ending names the file format.")],
    layout: FormatOption = None,
    skip_bad: SkipBadOption = False,
    personal_data: PersonalDataOption = None,
    consent_field: ConsentOption = None,
    label_field: LabelOption = None,
    unjudged: UnjudgedOption = False,
) -> None:
    """Write other tools' feedback as rows for training, without a store.

    Thumbs (binary rows) and comparisons train different models, so each kind has a file of its own where both are there. A store adds
    what a file can't: agreement, quality of annotators, what is known already, and forgetting somebody.
    """
    from rlhf.data.message_text import counted, printable
    from rlhf.data.readers import FileFormat
    from rlhf.data.sources import file_format
    from rlhf.data.write import write_rows
    from rlhf.errors import DataError
    from rlhf.feedback.exports import with_kind
    from rlhf.feedback.imports import left_out_words
    from rlhf.feedback.rows import rows_of
    from rlhf.feedback.trace_files import write_traces
    from rlhf.feedback.trace_imports import passing_pseudonyms, read_traces

    name = _layout_of(file, layout)
    rules = _rules(name, personal_data, consent_field, label_field, unjudged)
    if rules is None:
        source_items = _read(file, name, kind=None, batch="", gold=False, skip_bad=skip_bad)
        _look_through(source_items, personal_data)
        traces = None
    else:
        how: OnBadRow = "skip" if skip_bad else "error"
        source_items = traces = read_traces(name, *file, rules=rules, pseudonym=passing_pseudonyms(), on_bad_row=how)
    flat = file_format(output) in (FileFormat.CSV, FileFormat.PARQUET)
    kinds = list(dict.fromkeys(item.task.kind for item in source_items.items))
    num_written = 0
    with private_files():
        for kind in kinds:
            items = [item for item in source_items.items if item.task.kind is kind]
            rows = list(rows_of(items, flat=flat, with_unjudged=unjudged and not flat))
            path = output if len(kinds) == 1 else with_kind(output, str(kind))
            if rows:
                print(f"{counted(write_rows(path, rows), 'row')} of kind {kind} written to {printable(path)}.")
                write_traces(path, rows)
            num_written += len(rows)
    for line in left_out_words(source_items.left_out):
        print(printable(line))
    _say_traces(traces, _consent_words(rules))
    if not num_written:
        raise DataError(
            f"No row has a judgment, so {output} was not written; --unjudged writes answers without one to .jsonl or .json."
        )


def _layout_of(files: Sequence[str], layout: str | None) -> str:
    from rlhf.errors import look_up
    from rlhf.feedback.exchange import FORMATS, OURS, detect
    from rlhf.feedback.tasks import STDIN

    if layout is not None:
        look_up(FORMATS, layout, kind="format")
    return layout or (OURS if STDIN in files else detect(files[0]))


def _rules(
    name: str, personal_data: str | None, consent_field: str | None, label_field: str | None, unjudged: bool
) -> TraceRules | None:
    """What an import of conversations takes; None for other layouts, where options of conversations are refused."""
    from rlhf.feedback.exchange import FORMATS

    if FORMATS[name].read_traces is None:
        options = {"--consent-field": consent_field, "--label-field": label_field, "--unjudged": unjudged}
        if idle := [option for option, value in options.items() if value]:
            raise ConfigError(f"{' and '.join(idle)} is for conversations; this file is read as {name!r}.")
        return None
    if label_field and name not in ("hf-traces", "atif"):
        raise ConfigError(f"--label-field is for hf-traces and atif; {name!r} has fields for what users said.")
    from rlhf.feedback.trace_imports import TraceRules

    return TraceRules(
        personal_data=personal_data or "refuse",
        consent_field=consent_field or "",
        label_field=label_field or "",
        with_unjudged=unjudged,
    )


def _refuse_for_traces(file: str, name: str, kind: str | None, gold: bool) -> None:
    if kind is not None or gold:
        raise ConfigError(
            f"--kind and --gold are for rows of our own; {file} is read as {name!r}, which knows how it asks."
        )


def _look_through(source_items: SourceItems, action: str | None) -> None:
    """Look for personal data in rows of other layouts, where that was asked for."""
    if action is None:
        return
    from rlhf.feedback.personal_data import guarded_items

    findings = guarded_items(source_items, action)
    for line in findings.lines():
        print(f"personal data, {line}", file=sys.stderr)


def _consent_words(rules: TraceRules | None) -> str:
    if rules is None or rules.consent_field:
        return ""
    return "! Whether these users agreed that their conversations are kept and trained on was not checked (--consent-field PATH)."


def _say(name: str, source_items: SourceItems, done: Imported, overlap: str) -> None:
    from rlhf.data.message_text import counted, printable
    from rlhf.feedback.imports import left_out_words

    known = f", {done.num_known:,} there already" if done.num_known else ""
    print(f"{counted(done.num_added, 'task')} added{known} (read as {name!r}).")
    if done.gold_not_taken:
        num_gold = sum(item.task.gold is not None for item in source_items.items)
        print(
            f"! {counted(len(done.gold_not_taken), 'gold answer')} of {counted(num_gold, 'gold row')} not taken: the tasks were there "
            f"without it or with another, and stay as they were asked (the first: {done.gold_not_taken[0]!r}). Give the gold rows ids of "
            "their own, or import them into a new store before the other rows."
        )
    if done.recorded.num_added or done.recorded.num_known:
        say_recorded(done.recorded)
    if overlap:
        print(overlap)
    for line in left_out_words([*source_items.left_out, *done.left_out]):
        print(printable(line))


def _say_traces(traces: TraceItems | None, consent: str) -> None:
    """What became of conversations: what is no row, what was found in the texts, and what was not checked."""
    from rlhf.data.message_text import printable
    from rlhf.feedback.imports import left_out_words

    if traces is None:
        return
    for line in left_out_words(traces.no_rows):
        print(printable(line.replace("left out", "no row", 1)))
    for line in traces.lines():
        print(printable(line))
    if consent:
        print(consent)


def _as_dict(
    name: str, source_items: SourceItems, traces: TraceItems | None, done: Imported, rules: TraceRules | None
) -> dict[str, Any]:
    """What an import did, for machines."""
    told: dict[str, Any] = {
        "format": name, "tasks_added": done.num_added, "tasks_known": done.num_known, "judgments_added": done.recorded.num_added,
        "judgments_known": done.recorded.num_known, "corrections": done.recorded.num_corrections,
        "kinds": dict(Counter(str(item.task.kind) for item in source_items.items)),
        "bad_rows": _counted_reasons([*source_items.left_out, *done.left_out]),
    }  # fmt: skip
    if traces is not None and rules is not None:
        told |= {
            "no_rows": _counted_reasons(traces.no_rows), "pairs_of_thumbs": traces.num_pairs_of_thumbs,
            "personal_data": {"action": rules.personal_data, "found": traces.findings.to_dict()},
            "consent": {"checked": bool(rules.consent_field), "field": rules.consent_field or None},
        }  # fmt: skip
    return told


def _counted_reasons(rows: Sequence[BadRow]) -> dict[str, int]:
    return dict(Counter(row.reason for row in rows).most_common())


def _read(files: list[str], name: str, *, kind: str | None, batch: str, gold: bool, skip_bad: bool) -> SourceItems:
    """Items of all files together: completions of one prompt may stand in several of them."""
    from dataclasses import replace

    from rlhf.feedback.exchange import FORMATS, read_as
    from rlhf.feedback.layouts import LABELS
    from rlhf.feedback.tasks import read_items

    if FORMATS[name].read is None:
        source: Any = files[0] if len(files) == 1 else files
        on_bad_row: Any = "skip" if skip_bad else "error"
        return read_items(source, kind=kind, batch=batch, all_gold=gold, on_bad_row=on_bad_row)
    fixed = "multiclass" if name == LABELS else None
    if kind not in (None, fixed) or gold or (len(files) > 1 and name != LABELS):
        raise ConfigError(
            f"--kind, --gold and several files are for rows of our own; {files[0]} is read as {name!r}, which knows how it asks."
            + (" Gold labels have a column `gold` that is true." if gold and name == LABELS else "")
        )
    source_items = read_as(name, *files, on_bad_row="skip" if skip_bad else "error")
    if batch:
        source_items.items = [
            replace(item, task=replace(item.task, batch=item.task.batch or batch)) for item in source_items.items
        ]
    return source_items
