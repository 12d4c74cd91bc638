"""`rlhf merge`: models merged tensor by tensor, as a mergekit file says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlhf.cli.options import JsonOption, QuietOption, console
from rlhf.errors import printable
from rlhf.formatting import bytes_text

if TYPE_CHECKING:
    from rlhf.config.merging import MergeConfig

GIB = 2**30


def merge(
    config: Annotated[Path, typer.Argument(help="A YAML file as mergekit's.")],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Folder of the merged model; by default next to the file, with its name."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything that can be known before, and write nothing.")
    ] = False,
    seed: Annotated[int | None, typer.Option(help="Seed of what is drawn; the file's by default.", min=0)] = None,
    threads: Annotated[
        int | None, typer.Option(help="Tensors at a time; by default one for each processor.", min=1)
    ] = None,
    shard_size: Annotated[float, typer.Option(help="Most GiB of one file of weights.", min=0.001)] = 4.5,
    hashes: Annotated[
        bool,
        typer.Option(help="Name the parents' files by their hashes in the card; each file is read once more for it."),
    ] = True,
    greedy: Annotated[
        str | None,
        typer.Option(
            metavar="SUITE",
            help="Average only models that do not make the mean worse on a capability suite: a bundled one's name, or a YAML file.",
            show_default=False,
        ),
    ] = None,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """`rlhf merge`, whose help is in ``COMMANDS``."""
    from rlhf.config.merging import MergeConfig

    settings = MergeConfig.read(config)
    if seed is not None:
        settings = settings.updated(seed=seed)
    folder = out or config.parent / config.stem
    how: dict[str, Any] = {"threads": threads, "shard_bytes": int(shard_size * GIB), "hashes": hashes}
    if greedy is not None:
        _greedy_soup(settings, greedy, folder, how, dry_run=dry_run, quiet=quiet, as_json=as_json)
        return
    from rlhf.merging.merger import ModelMerger

    merger = ModelMerger(settings, **how)
    if dry_run:
        summary = merger.dry_run(folder)
        if as_json:
            print(json.dumps(summary, indent=2, ensure_ascii=False))
        elif not quiet:
            for note in summary["notes"]:
                _say(f"note       {note}")
            there = "are there already, in" if summary["finished"] else "would be written to"
            size = f"{'about ' * (summary['output'] == 'adapter')}{bytes_text(summary['nbytes'])}"
            _say(
                f"{len(summary['parents'])} {summary['output']}s fit together; {summary['num_tensors']} tensors, {size}, {there} {folder}; "
                f"{len(summary['dropped'])} are left out"
            )
        return
    from rich.progress import Progress

    with Progress(console=console(), transient=True, disable=quiet or as_json) as bar:  # draws on a terminal only
        task = bar.add_task("merging", total=None)
        report = merger.merge(folder, progress=lambda done, total: bar.update(task, completed=done, total=total))
    if as_json:
        print(json.dumps(report.to_dict(), indent=2, ensure_ascii=False))
    elif not quiet:
        _say(report.summary())
        _say(f"model      {folder}")


def _greedy_soup(
    settings: MergeConfig,
    suite: str,
    folder: Path,
    how: dict[str, Any],
    *,
    dry_run: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    from rlhf.merging.output_folder import check_empty
    from rlhf.pipeline.greedy_soup import SuiteGate, greedy_soup, soup_of

    soup, gate = soup_of(settings, **how), SuiteGate(suite, seed=settings.seed)
    check_empty(folder)
    if dry_run:
        asked = gate.to_dict()
        summary = {**soup.dry_run(folder), "suite": asked}
        if as_json:
            print(json.dumps(summary, indent=2, ensure_ascii=False))
        elif not quiet:
            _say(
                f"{len(soup.models)} models fit together and would be asked {asked['num_items']} items of the suite {asked['name']}; the "
                f"soup, {bytes_text(summary['nbytes'])}, would be written to {folder}"
            )
        return
    made = greedy_soup(soup, gate, folder)
    if as_json:
        print(json.dumps({**made.to_dict(), "suite": gate.to_dict()}, indent=2, ensure_ascii=False))
    elif not quiet:
        first, *others = made.trials
        _say(f"start      {first.model}: {first.alone:.4f} on the suite {gate.to_dict()['name']}")
        for trial, ruling in zip(others, gate.rulings, strict=True):
            what = "kept" if trial.kept else "left out"
            _say(f"{what:<11}{trial.model}: {trial.alone:.4f} alone, {trial.together:.4f} with it; {ruling.reason}")
        _say(f"model      {folder}, the mean of {len(made.ingredients)} of {len(made.trials)}: {made.score:.4f}")


def _say(text: str) -> None:
    console().print(printable(text), markup=False, highlight=False, soft_wrap=True)
