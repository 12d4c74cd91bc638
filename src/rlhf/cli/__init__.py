"""The command line: parses, calls the rooms, prints. Heavy imports happen inside the commands."""

from __future__ import annotations

import io
import os
import sys
import traceback
from typing import Annotated

import typer

from rlhf.allocator import forget_kernels
from rlhf.cli import annotate, checks, config, data, feedback, generate, methods, people, plan, report_command, runs
from rlhf.cli.command_group import CommandsByKind
from rlhf.cli.error_exit import DEBUG, Interrupted, exit_code_of, signals_heeded
from rlhf.cli.options import SettingsCommand
from rlhf.cli.run import run
from rlhf.errors import InterruptedRun, printable
from rlhf.version import __version__

app = typer.Typer(
    name="rlhf",
    cls=CommandsByKind,
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


app.command(cls=SettingsCommand, rich_help_panel="The loop")(run)
app.command(rich_help_panel="Look")(report_command.report)
app.command(rich_help_panel="Look")(runs.lineage)
app.command(rich_help_panel="Look")(generate.generate)
app.command(rich_help_panel="Look")(methods.methods)
app.command(cls=SettingsCommand, rich_help_panel="Look")(checks.validate)
app.command(cls=SettingsCommand, rich_help_panel="Look")(plan.plan)
app.command(rich_help_panel="Look")(checks.doctor)
app.command(rich_help_panel="The human side")(annotate.annotate)
app.add_typer(config.app, name="config")
app.add_typer(data.app, name="data")
app.add_typer(runs.app, name="runs")
for _command in (people.token, people.revoke, people.restore_access):
    feedback.app.command()(_command)
app.add_typer(feedback.app, name="feedback", rich_help_panel="The human side")


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
    try:
        with signals_heeded():
            app()
    except (Exception, Interrupted, InterruptedRun) as err:
        if os.environ.get(DEBUG):
            sys.stderr.write(printable(traceback.format_exc()))
        raise SystemExit(exit_code_of(err)) from None
