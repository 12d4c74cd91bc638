"""The command line: parses, calls the rooms, prints. A command's module is imported when the command is asked for."""

from __future__ import annotations

import io
import os
import sys
import traceback
from typing import Annotated

import typer

from rlhf.allocator import forget_kernels
from rlhf.cli.commands import RLHFCommands
from rlhf.cli.error_exit import DEBUG, Interrupted, exit_code_of, signals_heeded
from rlhf.errors import InterruptedRun, printable
from rlhf.version import __version__

app = typer.Typer(
    name="rlhf",
    cls=RLHFCommands,
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
    debug: Annotated[bool, typer.Option("--debug", help="Print the whole trace of an error.")] = False,
) -> None:
    """Options of no command in particular."""


def main() -> None:
    """Entry point."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    forget_kernels()
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # torch's profiler tells standard error of its beginning and end
    if "--debug" in sys.argv[1:]:  # wherever it stands: people add it at the end of the line that failed
        sys.argv.remove("--debug")
        os.environ[DEBUG] = "1"
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(
                errors="backslashreplace"
            )  # a file's name or an error's text may hold what can't be written
    with signals_heeded() as ignore_signals:
        try:
            app()
        except (Exception, Interrupted, InterruptedRun) as err:
            ignore_signals()
            if os.environ.get(DEBUG):
                sys.stderr.write(printable(traceback.format_exc()))
            raise SystemExit(exit_code_of(err)) from None
