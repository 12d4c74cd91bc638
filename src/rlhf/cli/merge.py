"""`rlhf merge`: models merged tensor by tensor, as a mergekit file says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from rlhf.cli.options import JsonOption, QuietOption, console
from rlhf.errors import printable
from rlhf.formatting import bytes_text

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
    seed: Annotated[int | None, typer.Option(help="Seed of methods that draw; the file's by default.", min=0)] = None,
    threads: Annotated[
        int | None, typer.Option(help="Tensors at a time; by default one for each processor.", min=1)
    ] = None,
    shard_size: Annotated[float, typer.Option(help="Most GiB of one file of weights.", min=0.001)] = 4.5,
    hashes: Annotated[
        bool,
        typer.Option(help="Name the parents' files by their hashes in the card; each file is read once more for it."),
    ] = True,
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """`rlhf merge`, whose help is in ``COMMANDS``."""
    from rlhf.config.merging import MergeConfig

    settings = MergeConfig.read(config)
    if seed is not None:
        settings = settings.updated(seed=seed)
    folder = out or config.parent / config.stem
    from rlhf.merging.merger import ModelMerger
    from rlhf.merging.output_folder import check_empty

    merger = ModelMerger(settings, threads=threads, shard_bytes=int(shard_size * GIB), hashes=hashes)
    if dry_run and settings.output == "adapter":
        from rlhf.merging.adapter_merge import open_adapters

        _, labels, adapters = open_adapters(settings)
        check_empty(folder)
        if not quiet:
            _say(
                f"{len(labels)} adapters fit together, {len(adapters[0].low_rank)} weights each; the result would be written to {folder}"
            )
        return
    if dry_run:
        plan = merger.plan()
        check_empty(folder)
        if not quiet:
            for note in plan.notes:
                _say(f"note       {note}")
            _say(
                f"{len(plan.tasks)} tensors, {bytes_text(plan.nbytes)}, would be written to {folder}; {len(plan.dropped)} are left out"
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


def _say(text: str) -> None:
    console().print(printable(text), markup=False, highlight=False, soft_wrap=True)
