"""Arguments and helpers that several commands share."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperCommand, TyperGroup

from rlhf.training.console import setup_logging

Overrides = Annotated[
    list[str] | None,
    typer.Argument(help="Settings to change, as key.sub=value.", show_default=False, metavar="[KEY=VALUE]..."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="JSON instead of text.")]
QuietOption = Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")]
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
    """A command that takes KEY=VALUE; who writes a setting as an option is told so."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As of any command, with a word more about an option that there is none of."""
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


class CommandsByKind(TyperGroup):
    """The commands, with those of one stage; an error about an unknown one names the command of a method, or the stage of a recipe, that
    is called so."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """As of any group."""
        if cmd_name not in self.commands:
            self._load_stages()
        return super().get_command(ctx, cmd_name)

    def list_commands(self, ctx: Any) -> list[str]:
        """As of any group."""
        self._load_stages()
        return super().list_commands(ctx)

    def _load_stages(self) -> None:
        """Only where they are asked for: the settings of all kinds of stages take half a second to import."""
        from rlhf.cli.run import stage_commands

        run, *others = self.commands.items()
        self.commands = dict([run, *stage_commands().items(), *others])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """As of any group, with a word more about a command that there is none of."""
        if args and args[0] not in self.commands:
            self._load_stages()
        if not args or args[0] in self.commands:
            return super().resolve_command(ctx, args)
        from rlhf.config.methods import method_behind
        from rlhf.config.schema import stage_classes

        found = method_behind(args[0], self.commands)
        if found is None and args[0] in stage_classes():
            raise UsageError(
                f"No such command '{args[0]}'. It is a kind of stage: write `kind: {args[0]}` in a recipe and start it with "
                f"`rlhf run` (rlhf config schema {args[0]} lists its settings)",
                ctx=ctx,
            )
        if found is None:
            return super().resolve_command(ctx, args)
        name, method = found
        settings = " ".join(f"{key}={str(value).lower()}" for key, value in method.settings.items())
        raise UsageError(
            f"No such command '{args[0]}'. The method {name} is: rlhf {method.kind} {settings}".rstrip()
            + f" ... (rlhf methods {name} tells more)",
            ctx=ctx,
        )


def _as_setting(option: str, args: list[str]) -> str:
    """``--learning-rate 1e-3`` and ``--learning-rate=1e-3`` as ``learning_rate=1e-3``."""
    key = option.lstrip("-").replace("-", "_")
    for place, item in enumerate(args):
        name, equals, value = item.partition("=")
        if name == option:
            behind = args[place + 1 : place + 2]
            return f"{key}={value if equals else next((x for x in behind if not x.startswith('-')), 'VALUE')}"
    return f"{key}=VALUE"


def console() -> Console:
    """For people; data goes to standard output by ``print``."""
    return setup_logging()
