"""The command line: parses, calls the rooms, prints. Heavy imports happen inside the commands."""

from __future__ import annotations

import os
from typing import Annotated

import typer
from rich.console import Console

from rlhf import __version__
from rlhf.cli import config, data, look
from rlhf.cli.run import OneStage, one_stage, run
from rlhf.errors import RLHFError

app = typer.Typer(
    name="rlhf",
    help="Learn from human preferences: SFT, reward models, PPO, GRPO, DPO, evaluation, in one recipe.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


def _print_version(asked: bool) -> None:
    if asked:
        print(__version__)
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Options of no command in particular."""


app.command(rich_help_panel="The loop")(run)
for _kind in OneStage:
    app.command(_kind.value, rich_help_panel="One stage")(one_stage(_kind))
app.command(rich_help_panel="Look")(look.report)
app.command(rich_help_panel="Look")(look.generate)
app.add_typer(config.app, name="config")
app.add_typer(data.app, name="data")


def main() -> None:
    """Entry point: one clear line for a user's mistake, the whole trace for ours (or with RLHF_DEBUG=1)."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        app()
    except RLHFError as err:
        if os.environ.get("RLHF_DEBUG"):
            raise
        errors = Console(stderr=True)
        errors.print("[bold red]error:[/] ", end="")
        errors.print(str(err), markup=False, highlight=False, soft_wrap=True)
        for note in getattr(err, "__notes__", ()):
            errors.print(note, markup=False, highlight=False, style="dim", soft_wrap=True)
        raise SystemExit(err.exit_code) from None
