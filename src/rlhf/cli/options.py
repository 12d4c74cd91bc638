"""Arguments and helpers that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

Overrides = Annotated[
    list[str] | None,
    typer.Argument(help="Settings to change, as key.sub=value.", show_default=False, metavar="[KEY=VALUE]..."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="JSON instead of text.")]
QuietOption = Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")]


def console() -> Console:
    """For people; data goes to standard output by ``print``."""
    return Console(stderr=False)
