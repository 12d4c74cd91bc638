"""`rlhf data tasks`: the tasks of a verifiers environment as prompts. Heavy imports happen inside the command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from rlhf.cli.options import JsonOption
from rlhf.errors import ConfigError, printable


def data_tasks(
    recipe: Annotated[Path, typer.Argument(help="A recipe with a stage whose environment is of the kind verifiers.")],
    output: Annotated[Path, typer.Argument(help="File to write; its ending names the format.")],
    stage: Annotated[str | None, typer.Option(help="Which stage; by default the only one.", show_default=False)] = None,
    skip: Annotated[int, typer.Option(help="Leave out so many tasks, the first ones.", min=0)] = 0,
    limit: Annotated[int | None, typer.Option(help="Tasks at most; by default all.", min=1, show_default=False)] = None,
    text: Annotated[
        bool, typer.Option("--text", help="Prompts in plain text, for a model without a chat template.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Write the tasks of a verifiers environment as prompts, with the tools that its harness offers.

    \b
    rlhf data tasks run.yaml prompts.jsonl --limit 500
    rlhf data tasks run.yaml heldout.jsonl --skip 500 --limit 100
    """
    from rlhf.config.environments import VerifiersEnvironmentConfig, environments_of
    from rlhf.config.recipe import load_recipe
    from rlhf.data.message_text import counted
    from rlhf.data.write import write_rows
    from rlhf.rollout.verifiers_tasks import read_tasks

    by_stage = {
        name: settings
        for name, one in load_recipe(recipe, []).stages.items()
        for settings in environments_of(one).values()
        if isinstance(settings, VerifiersEnvironmentConfig) and stage in (None, name)
    }
    if len(by_stage) != 1:
        what = f"several ({', '.join(by_stage)}); choose one with --stage" if by_stage else "none"
        where = f"stage {stage!r} of {recipe}" if stage is not None else str(recipe)
        raise ConfigError(f"Of environments of the kind verifiers, {where} has {what}.")
    (settings,) = by_stage.values()
    rows = read_tasks(settings, skip=skip, limit=limit, as_text=text)
    write_rows(output, rows)
    tools = [tool["function"]["name"] for tool in rows[0].get("tools", [])]
    if as_json:
        print(json.dumps({"source": settings.source, "written": str(output), "rows": len(rows), "tools": tools}))
        return
    offered = f", with the tools {', '.join(tools)}" if tools else ""
    print(printable(f"{output}: {counted(len(rows), 'task')} of {settings.source}{offered}"))
