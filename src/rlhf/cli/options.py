"""Arguments and helpers that several commands share."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from rlhf.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from rich.console import Console

Overrides = Annotated[
    list[str] | None,
    typer.Argument(help="Settings to change, as key.sub=value.", show_default=False, metavar="[KEY=VALUE]..."),
]
LaunchOption = Annotated[
    Path | None,
    typer.Option(
        "--launch",
        help="A YAML file with the section `launch` of a recipe, in the place of the recipe's own.",
        show_default=False,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="JSON instead of text.")]
QuietOption = Annotated[bool, typer.Option("--quiet", help="Print only errors.")]
DeviceOption = Annotated[
    str, typer.Option("--device", help="Where models are: cpu, cuda, cuda:N; auto takes a GPU where there is one.")
]
RunsOption = Annotated[Path, typer.Option("--runs", help="Where the run folders lie.")]
RUNS = Path("runs")
RUN = typer.Argument(help="A run folder, or its name in --runs.")


UsageError: Any = typer.BadParameter.__bases__[0]
"""typer's own: it may bring a click of its own, which is another one than the package of that name."""


MISSPELLED = 0.75
"""How alike two options are of which one is the other misspelled: `--quite` and `--quiet`."""


class SettingsCommand(TyperCommand):
    """A command that takes KEY=VALUE; an option that is a setting is answered with how to write it."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As of any command, with a hint for an unknown option."""
        given = list(args)
        try:
            return super().parse_args(ctx, args)
        except UsageError as err:
            option = getattr(err, "option_name", None)
            if isinstance(option, str) and option.startswith("--"):
                # As they come, anything is offered for anything: `--help` for `--model`.
                near = difflib.get_close_matches(option, getattr(err, "possibilities", None) or [], cutoff=MISSPELLED)
                err.possibilities = near
                if near:
                    raise
                err.message += f". Settings are written KEY=VALUE, without dashes: {_as_setting(option, given)}"
            raise


def _as_setting(option: str, args: list[str]) -> str:
    """``--learning-rate 1e-3`` and ``--learning-rate=1e-3`` as ``learning_rate=1e-3``."""
    key = option.lstrip("-").replace("-", "_")
    for place, item in enumerate(args):
        name, equals, value = item.partition("=")
        if name == option:
            behind = args[place + 1 : place + 2]
            return f"{key}={value if equals else next((x for x in behind if not x.startswith('-')), 'VALUE')}"
    return f"{key}=VALUE"


def known_settings(items: list[str] | None, known: Sequence[str]) -> dict[str, Any]:
    """KEY=VALUE of a command that has a few settings of its own.

    Raises:
        ConfigError: A key that is not among them.
    """
    from rlhf.config.base import apply_overrides

    given = apply_overrides({}, items or [])
    for name in given:
        if name not in known:
            raise ConfigError(f"There is no setting {name!r}.{did_you_mean(name, known)} Known: {', '.join(known)}.")
    return {
        name: value["path"] if isinstance(value, Mapping) and set(value) == {"path"} else value
        for name, value in given.items()
    }


def file_name(text: str) -> str:
    """The last parts of a path that tell it apart, as one word."""
    return re.sub(r"[^A-Za-z0-9_.]+", "_", text.strip("/."))[-60:]


def console() -> Console:
    """For people; data goes to standard output by ``print``."""
    from rlhf.training.console import setup_logging  # here: rich is not needed to parse a command line

    return setup_logging()
