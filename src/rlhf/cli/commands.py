"""The commands of `rlhf` and where each is implemented; only the one that is asked for is imported."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup

from rlhf.cli.options import SettingsCommand, UsageError


@dataclass(frozen=True, slots=True)
class Entry:
    """Where a command is implemented."""

    implementation: str
    """``module:attribute`` below ``rlhf.cli``: a function, or the ``typer.Typer`` of a group of commands."""
    panel: str
    """Heading in `rlhf --help`."""
    takes_settings: bool = False
    """Whether it takes KEY=VALUE."""

    def command(self, name: str) -> Any:
        """The command, after its module was imported."""
        module, _, attribute = self.implementation.partition(":")
        implementation = getattr(import_module(f"rlhf.cli.{module}"), attribute)
        return _click_command(name, implementation, panel=self.panel, takes_settings=self.takes_settings)


def _click_command(name: str, implementation: Any, *, panel: str | None, takes_settings: bool) -> Any:
    app = typer.Typer(rich_markup_mode="rich")
    if isinstance(implementation, typer.Typer):
        app.add_typer(implementation, name=name, rich_help_panel=panel)
    else:
        app.command(name, cls=SettingsCommand if takes_settings else None, rich_help_panel=panel)(implementation)
    return typer.main.get_group(app).commands[name]


COMMANDS = {
    "run": Entry("run:run", "The loop", takes_settings=True),
    "evaluate": Entry("evaluate:evaluate", "The loop", takes_settings=True),
    "compare": Entry("compare_models:compare", "The loop", takes_settings=True),
    "gate": Entry("gate:gate", "The loop", takes_settings=True),
    "registry": Entry("registry:app", "The loop"),
    "merge": Entry("merge:merge", "The loop"),
    "search": Entry("search:app", "The loop"),
    "serve": Entry("serve:serve", "The loop", takes_settings=True),
    "export": Entry("export:export", "The loop"),
    "report": Entry("report_command:report", "Look"),
    "lineage": Entry("runs:lineage", "Look"),
    "generate": Entry("generate:generate", "Look"),
    "methods": Entry("methods:methods", "Look"),
    "validate": Entry("validate_doctor:validate", "Look", takes_settings=True),
    "plan": Entry("plan:plan", "Look", takes_settings=True),
    "doctor": Entry("validate_doctor:doctor", "Look"),
    "annotate": Entry("annotate:annotate", "The human side"),
    "judge": Entry("certify:app", "The human side"),
    "config": Entry("config:app", "Files and settings"),
    "data": Entry("data:app", "Files and settings"),
    "debug": Entry("debug:app", "Look"),
    "runs": Entry("runs:app", "Files and settings"),
    "feedback": Entry("feedback:app", "The human side"),
}
"""In the order of `rlhf --help`. The commands of one stage, such as `rlhf sft`, come after `run`: ``rlhf.cli.run.stages_with_commands``."""


RENAMED = {
    "feedback admit": "feedback restore-access",
    "feedback prioritise": "feedback prioritize",
    "feedback compare open": "feedback compare start",
    "feedback plan": "feedback sample-size",
    "runs diff": "runs compare",
}
"""Commands from before the first release, and what they are called now: the answer to an old script."""


class LazyCommands(Mapping[str, Any]):
    """Name -> command of every command of `rlhf`; each is built when it is looked up.

    The settings of all kinds of stages are imported only for a name that is not in ``COMMANDS``, and to list the names.
    """

    def __init__(self) -> None:
        self._built: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._built:
            self._built[name] = COMMANDS[name].command(name) if name in COMMANDS else self._of_stage(name)
        return self._built[name]

    def __iter__(self) -> Iterator[str]:
        first, *others = COMMANDS
        return iter((first, *self._stages, *others))

    def __len__(self) -> int:
        return len(COMMANDS) + len(self._stages)

    def __contains__(self, name: object) -> bool:
        return name in COMMANDS or name in self._stages

    @cached_property
    def _stages(self) -> Mapping[str, str]:
        from rlhf.cli.run import stages_with_commands

        return stages_with_commands()

    def _of_stage(self, kind: str) -> Any:
        from rlhf.cli.run import one_stage

        return _click_command(kind, one_stage(kind, self._stages[kind]), panel="One stage", takes_settings=True)


class RLHFCommands(TyperGroup):
    """The group `rlhf`; an unknown command that is a method's or a stage's name is answered with how to run that."""

    def __init__(self, **settings: Any) -> None:
        """As of any group, with the commands of ``COMMANDS``."""
        super().__init__(**settings)
        self.commands: Any = LazyCommands()

    def list_commands(self, ctx: Any) -> list[str]:
        """As of any group; no command is imported for its name."""
        return list(self.commands)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """As of any group, with a hint for an unknown command, and for one that has another name now."""
        for old, new in RENAMED.items():
            if args[: len(words := old.split())] == words:
                raise UsageError(f"No such command '{old}': it is called `rlhf {new}` now", ctx=ctx)
        if not args or args[0] in self.commands:
            return super().resolve_command(ctx, args)
        from rlhf.config.methods import method_behind
        from rlhf.config.schema import stage_classes

        name_and_method = method_behind(args[0], self.commands)
        if name_and_method is None and args[0] in stage_classes():
            raise UsageError(
                f"No such command '{args[0]}'. It is a kind of stage: write `kind: {args[0]}` in a recipe and start it with "
                f"`rlhf run` (rlhf config schema {args[0]} lists its settings)",
                ctx=ctx,
            )
        if name_and_method is None:
            return super().resolve_command(ctx, args)
        name, method = name_and_method
        settings = " ".join(f"{key}={str(value).lower()}" for key, value in method.settings.items())
        raise UsageError(
            f"No such command '{args[0]}'. The method {name} is: rlhf {method.kind} {settings}".rstrip()
            + f" ... (rlhf methods {name} tells more)",
            ctx=ctx,
        )
