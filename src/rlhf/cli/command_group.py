"""All commands, with those of one stage, which are loaded when they are asked for."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup

from rlhf.cli.options import UsageError


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
