"""The commands of `rlhf` and where each is implemented; only the one that is asked for is imported."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from copy import copy
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from rlhf.cli.options import SettingsCommand, UsageError
from rlhf.config.stages import STAGE_KINDS


@dataclass(frozen=True, slots=True)
class Entry:
    """A command, as it is known before its module is imported."""

    implementation: str
    """``module:attribute`` below ``rlhf.cli``: a function, or the ``typer.Typer`` of a group of commands."""
    panel: str
    """Heading in `rlhf --help`."""
    about: str
    """Line of `rlhf --help`, and the first of the command's own help: plain text."""
    takes_settings: bool = False
    """Whether it takes KEY=VALUE."""
    of_stage: bool = False
    """Whether ``implementation`` makes the function, given the kind of stage that it runs."""

    def listed(self, name: str) -> TyperCommand:
        """The command's line of `rlhf --help`, without its module."""
        return TyperCommand(name, help=self._first_line, rich_help_panel=self.panel)

    def command(self, name: str) -> Any:
        """The command, after its module was imported."""
        module, _, attribute = self.implementation.partition(":")
        implementation = getattr(import_module(f"rlhf.cli.{module}"), attribute)
        app = typer.Typer(rich_markup_mode="rich")
        if isinstance(implementation, typer.Typer):
            app.add_typer(implementation, name=name, help=self._first_line, rich_help_panel=self.panel)
        else:
            function = implementation(name) if self.of_stage else implementation
            cls = SettingsCommand if self.takes_settings else None
            app.command(name, cls=cls, help=self._help(function), rich_help_panel=self.panel)(function)
        return typer.main.get_group(app).commands[name]

    @property
    def _first_line(self) -> str:
        from rich.markup import escape  # here: rich is not needed to parse a command line

        return escape(self.about)

    def _help(self, function: Any) -> str:
        """The first line, then what the function's docstring says below its own."""
        _, *others = (inspect.getdoc(function) or "").split("\n\n")
        return "\n\n".join([self._first_line, *others])


COMMANDS = {
    "run": Entry(
        "run:run", "The loop", "Run a recipe: every stage that is not there yet, then the report.", takes_settings=True
    ),
    "evaluate": Entry(
        "evaluate:evaluate",
        "The loop",
        "Measure a model on held-out prompts: numbers with intervals, next to a baseline's where one is given.",
        takes_settings=True,
    ),
    "compare": Entry(
        "compare_models:compare",
        "The loop",
        "Say which of two models is better: better, worse, or not yet known, and about how many more prompts would tell; or rate several.",
        takes_settings=True,
    ),
    "gate": Entry(
        "gate:gate",
        "The loop",
        "Compare a model with the champion. Exits with 0 where it passes, 20 where it fails, 21 where that is undecided.",
        takes_settings=True,
    ),
    "registry": Entry("registry:app", "The loop", "Released models: versions, aliases, promotion, rollback."),
    "merge": Entry(
        "merge:merge",
        "The loop",
        "Merge models without training: linear, task arithmetic, TIES, DARE, SLERP, Model Stock, or your own method.",
    ),
    "search": Entry("search:app", "The loop", "Better answers for more tokens: strategies, and which to take."),
    "serve": Entry(
        "serve:serve",
        "The loop",
        "Serve models behind OpenAI's API, reward models behind vLLM's for scores, until Ctrl-C or SIGTERM.",
        takes_settings=True,
    ),
    "export": Entry(
        "export:export",
        "The loop",
        "Write a model for another program: adapters merged, read back, and compared with the original before it gets its name.",
    ),
    "watch": Entry(
        "watch:watch", "Look", "Show a run, or a server, while it works: a page on this machine, until Ctrl-C."
    ),
    "report": Entry("report_command:report", "Look", "Write report.html of a run again."),
    "lineage": Entry(
        "runs:lineage",
        "Look",
        "Trace a file back to the data files and the recipe it was made from. Exits with 1 where one has changed or is gone.",
    ),
    "generate": Entry(
        "generate:generate",
        "Look",
        "Sample completions, or search for better ones; one JSON object a line on standard output.",
    ),
    "methods": Entry(
        "methods:methods", "Look", "List training methods, or tell of one what it is and what its settings do."
    ),
    "validate": Entry(
        "validate_doctor:validate",
        "Look",
        "Say everything that can be known to be wrong with a recipe before it trains. Exits as the run would.",
        takes_settings=True,
    ),
    "plan": Entry(
        "plan:plan",
        "Look",
        "Predict memory and time of every training stage, and recommend how to run it; trains nothing.",
        takes_settings=True,
    ),
    "doctor": Entry(
        "validate_doctor:doctor",
        "Look",
        "Check machine, versions, disk, threads and a tiny forward pass. Exits with 1 where something is unsafe.",
    ),
    "annotate": Entry(
        "annotate:annotate",
        "The human side",
        "Collect judgments: add tasks to a store and serve the labeling page until Ctrl-C.",
    ),
    "judge": Entry("certify:app", "The human side", "How far a judge agrees with people, before anything rests on it."),
    "config": Entry("config:app", "Files and settings", "Look at settings before you run."),
    "data": Entry("data:app", "Files and settings", "Look at data before you train."),
    "debug": Entry("debug:app", "Look", "Look into scores and distances, sample by sample."),
    "runs": Entry("runs:app", "Files and settings", "Look at runs, and clear away what they no longer need."),
    "feedback": Entry(
        "feedback:app",
        "The human side",
        "Judgments of people: bring them in, look at them, take them out for training.",
    ),
}
"""In the order of `rlhf --help`. The commands of one stage, such as `rlhf sft`, come after `run`: ``stages_with_commands``."""


RENAMED = {
    "feedback admit": "feedback restore-access",
    "feedback prioritise": "feedback prioritize",
    "feedback compare open": "feedback compare start",
    "feedback plan": "feedback sample-size",
    "runs diff": "runs compare",
}
"""Commands from before the first release, and what they are called now: the answer to an old script."""


def stages_with_commands() -> dict[str, str]:
    """Kinds of stages that can be run alone, in the order of `rlhf --help`, each with the help of its command."""
    return {kind: entry.command for kind, entry in STAGE_KINDS.items() if entry.command}


class LazyCommands(Mapping[str, Any]):
    """Name -> command of every command of `rlhf`; each is built when it is looked up."""

    def __init__(self) -> None:
        (first, entry), *others = COMMANDS.items()
        stages = {
            kind: Entry("run:one_stage", "One stage", about, takes_settings=True, of_stage=True)
            for kind, about in stages_with_commands().items()
        }
        self._entries = {first: entry, **stages, **dict(others)}
        self._built: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._built:
            self._built[name] = self._entries[name].command(name)
        return self._built[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def listed(self) -> dict[str, TyperCommand]:
        """Every command as `rlhf --help` shows it; none of them is imported."""
        return {name: entry.listed(name) for name, entry in self._entries.items()}


class RLHFCommands(TyperGroup):
    """The group `rlhf`; an unknown command that is a method's or a stage's name is answered with how to run that."""

    def __init__(self, **settings: Any) -> None:
        """As of any group, with the commands of ``COMMANDS``."""
        super().__init__(**settings)
        self.commands: Any = LazyCommands()

    def list_commands(self, ctx: Any) -> list[str]:
        """As of any group; no command is imported for its name."""
        return list(self.commands)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """As of any group; no command is imported for its line."""
        listing = copy(self)
        listing.commands = self.commands.listed()
        super(RLHFCommands, listing).format_help(ctx, formatter)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """As of any group, with a hint for an unknown command, and for one that has another name now."""
        for old, new in RENAMED.items():
            if args[: len(words := old.split())] == words:
                raise UsageError(f"No such command '{old}': it is called `rlhf {new}` now", ctx=ctx)
        if not args or args[0] in self.commands:
            return super().resolve_command(ctx, args)
        from rlhf.config.methods import method_behind

        name_and_method = method_behind(args[0], self.commands)
        if name_and_method is None and args[0] in STAGE_KINDS:
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
            + f" ... (see `rlhf methods {name}`)",
            ctx=ctx,
        )
