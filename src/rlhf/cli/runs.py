"""`rlhf runs` and `rlhf lineage`: look at what runs left, and clear away what is not needed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlhf.cli.options import RUN, RUNS, JsonOption, RunsOption, console
from rlhf.errors import ConfigError, RunBusyError, printable
from rlhf.formatting import bytes_text

if TYPE_CHECKING:
    from rlhf.pipeline.runs import RunLook

app = typer.Typer(no_args_is_help=True)


@app.command("list")
def runs_list(runs: RunsOption = RUNS, as_json: JsonOption = False) -> None:
    """List runs: stages done, when, result, size on disk."""
    from rich.table import Table
    from rich.text import Text

    from rlhf.pipeline.lock import age_in_words
    from rlhf.pipeline.runs import look_at, run_folders

    summaries = [look_at(run) for run in run_folders(runs)]
    if as_json:
        _print_json([run.to_dict() for run in summaries])
        return
    if not summaries:
        console().print(f"There are no runs in {runs}.", markup=False)
        return
    table = Table(box=None, pad_edge=False)
    for title in ("run", "stages", "last event", "result", "size"):
        table.add_column(title, no_wrap=title != "result")  # the others stay whole where the line is too short
    for run in sorted(summaries, key=lambda run: run.changed, reverse=True):
        done = f"{run.num_finished}/{len(run.stages)}{', running' if run.running else ''}"
        result = Text(run.result, no_wrap=True, overflow="ellipsis")
        table.add_row(
            _plain(run.name), done, f"{age_in_words(_seconds_since(run.changed))} ago", result, bytes_text(run.bytes)
        )
    console().print(table)


@app.command("show")
def runs_show(run: Annotated[str, RUN], runs: RunsOption = RUNS, as_json: JsonOption = False) -> None:
    """Show a run's stages: what each made, when, alarms, and what lies around it."""
    from rlhf.pipeline.runs import find_run, look_at

    summary = look_at(find_run(run, runs))
    if as_json:
        _print_json(summary.to_dict())
    else:
        _show(summary)


@app.command("compare")
def runs_compare(
    first: Annotated[str, RUN],
    second: Annotated[str, RUN],
    runs: RunsOption = RUNS,
    everything: Annotated[
        bool, typer.Option("--all", help="Every number of every stage, those of its last step too.")
    ] = False,
    page: Annotated[
        Path | None,
        typer.Option(help="Where to write the page; by default FIRST-vs-SECOND.html in --runs.", show_default=False),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Compare two runs: results, settings and input files that differ; curves and samples on a page."""
    from rich.table import Table

    from rlhf.pipeline.run_comparison import compare_runs, words_for
    from rlhf.pipeline.runs import find_run

    folders = find_run(first, runs), find_run(second, runs)
    comparison = compare_runs(*folders)
    if as_json:
        _print_json(comparison.to_dict())
        if page is None:
            return
    else:
        table = Table("", *map(_plain, comparison.runs), box=None, pad_edge=False)
        results = comparison.results if everything else comparison.headlines
        for name, a, b in results:
            table.add_row(_plain(words_for(name)), _number(a), _number(b))
        if not results:
            table.add_row("(neither run has a result)", "", "")
        table.add_section()
        for place, a, b in comparison.settings:
            table.add_row(_plain(place), _plain(a), _plain(b))
        for place, a, b in comparison.inputs:
            table.add_row(f"{_plain(place)}: other content", a[:8], b[:8])
        if not comparison.settings:
            table.add_row("(the settings are the same)", "", "")
        console().print(table)
        if more := len(comparison.results) - len(results):
            console().print(f"{more} more number{'s' * (more > 1)} with --all.", markup=False, highlight=False)
    from rlhf.pipeline.report.compare_page import write_comparison

    written = write_comparison(*folders, page or folders[1].parent / f"{folders[0].name}-vs-{folders[1].name}.html")
    if not as_json:
        console().print(f"Page: {written}", markup=False, highlight=False, soft_wrap=True)


@app.command("prune")
def runs_prune(
    names: Annotated[
        list[str] | None, typer.Argument(help="Only these runs; all of --runs by default.", show_default=False)
    ] = None,
    runs: RunsOption = RUNS,
    whole: Annotated[bool, typer.Option("--whole", help="The named runs themselves, with everything in them.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Delete it; without this, only say what would go.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go, whatever else is given.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Delete results that were made before the present ones, checkpoints of finished stages, and leftovers of killed processes."""
    from rlhf.pipeline.runs import find_run, prune, run_folders

    if whole and not names:
        raise ConfigError("--whole deletes whole runs and wants their names: rlhf runs prune NAME --whole --yes.")
    folders = [find_run(name, runs) for name in names] if names else run_folders(runs)
    pruning = prune(folders, whole=whole, delete=yes and not dry_run)
    if as_json:
        _print_json(pruning.to_dict())
        return
    out = console()
    for item in pruning.removable:
        out.print(f"{item.path}  {bytes_text(item.bytes)}  {item.why}", markup=False, highlight=False, soft_wrap=True)
    for name in pruning.busy:
        out.print(f"{name}: in use by a live process; left alone", markup=False, highlight=False, soft_wrap=True)
    if not pruning.removable and names and pruning.busy:
        raise RunBusyError(
            f"Nothing was deleted. Prune {' and '.join(pruning.busy)} when no process works there any more."
        )
    if not pruning.removable:
        out.print("Nothing to delete.")
    elif pruning.deleted:
        out.print(f"Deleted {len(pruning.removable)}, {bytes_text(pruning.bytes)} freed.", highlight=False)
    else:
        out.print(f"{bytes_text(pruning.bytes)} would be freed; --yes deletes it.", highlight=False)


def lineage(
    path: Annotated[
        Path | None, typer.Argument(help="A file or folder of a run, or a copy of a weight file.", show_default=False)
    ] = None,
    runs: RunsOption = RUNS,
    trace: Annotated[
        str | None,
        typer.Option(
            help="Instead of a path: the id of a conversation or message; names what learned from it.",
            show_default=False,
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """`rlhf lineage`; the first line of its help is in ``COMMANDS``, and the others are:

    With --trace the other way round: from a conversation that was imported (`rlhf feedback import`) to the weights that learned from it.
    """
    if (path is None) == (trace is None):
        raise ConfigError("Give either a file or folder of a run, or --trace ID.")
    if path is None:
        _learned(trace or "", runs, as_json)
        return
    from rlhf.pipeline.lineage import lineage as origin_of

    traced = origin_of(path, runs=runs)
    if as_json:
        _print_json(traced.to_dict())
    else:
        print(printable(traced.to_text()))
    if not traced.is_whole:
        raise typer.Exit(1)


def _learned(trace: str, runs: Path, as_json: bool) -> None:
    """What learned from a conversation."""
    from rlhf.pipeline.trace_lineage import learned_from

    learned = learned_from(runs, name=trace)
    if as_json:
        _print_json([one.to_dict() for one in learned])
    elif not learned:
        print(printable(f"No run in {runs} learned from a file that has the trace {trace!r}."))
    for one in learned if not as_json else ():
        print(printable(one.words()))


def _show(run: RunLook) -> None:
    from rlhf.pipeline.run_comparison import words_for

    out = console()
    running = ", running now" if run.running else ""
    out.print(
        f"{run.name}  {run.folder}  {bytes_text(run.bytes)}{running}", markup=False, highlight=False, soft_wrap=True
    )
    width = max([12, *(len(stage.name) for stage in run.stages)])
    out.print(f"{'stage':<{width}} {'kind':<12} {'status':<11} {'key':<16} {'time':>8}  outcome", soft_wrap=True)
    for stage in run.stages:
        seconds = f"{stage.seconds:.0f} s" if stage.seconds is not None else ""
        words = [stage.headline or stage.trouble]
        words += [f"{stage.alarms} alarm{'s' * (stage.alarms > 1)}"] * (stage.alarms > 0)
        words += [f"checkpoints: {', '.join(stage.checkpoints)}"] * bool(stage.checkpoints)
        words += [f"{stage.previous} earlier result{'s' * (stage.previous > 1)} kept"] * (stage.previous > 0)
        line = f"{stage.name:<{width}} {stage.kind:<12} {stage.status:<11} {stage.key:<16} {seconds:>8}  "
        line += "  ".join(word for word in words if word)
        out.print(line.rstrip(), markup=False, highlight=False, soft_wrap=True)
    for name, value in run.outcome.items():
        if value is not None:
            out.print(f"{words_for(name)} = {_number(value)}", markup=False, highlight=False)


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False))


def _plain(text: str) -> str:
    from rich.markup import escape

    return escape(text)


def _number(value: Any) -> str:
    return "not measured" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)


def _seconds_since(moment: float) -> float:
    import time

    return max(0.0, time.time() - moment)
