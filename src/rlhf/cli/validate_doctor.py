"""`rlhf validate` and `rlhf doctor`: look before you train. Heavy imports happen inside the commands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from rlhf.cli.options import JsonOption, LaunchOption, Overrides
from rlhf.errors import printable


def validate(
    recipe: Annotated[Path, typer.Argument(help="A YAML recipe.")],
    overrides: Overrides = None,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick", help="Read the first 100 rows of each file and load no tokenizer; what `rlhf run` begins with."
        ),
    ] = False,
    launch: LaunchOption = None,
    as_json: JsonOption = False,
) -> None:
    """`rlhf validate`, whose help is in ``COMMANDS``."""
    from rlhf.pipeline.validate import validate_file

    validation = validate_file(recipe, overrides or [], launch=launch, deep=not quick)
    print(
        json.dumps(validation.to_dict(), indent=2, ensure_ascii=False) if as_json else printable(validation.to_text())
    )
    if validation.exit_code:
        raise typer.Exit(validation.exit_code)


def doctor(
    run_dir: Annotated[Path, typer.Argument(help="Where runs are written; need not exist.")] = Path("runs"),
    quick: Annotated[bool, typer.Option("--quick", help="Only look; score, train and start nothing.")] = False,
    as_json: JsonOption = False,
) -> None:
    """`rlhf doctor`, whose help is in ``COMMANDS``."""
    from rlhf.pipeline.doctor import examine

    examination = examine(run_dir, trials=not quick)
    print(
        json.dumps(examination.to_dict(), indent=2, ensure_ascii=False) if as_json else printable(examination.to_text())
    )
    if not examination.is_safe:
        raise typer.Exit(1)
