"""`rlhf debug`: look at scores and at distances, sample by sample. Heavy imports happen inside the commands."""

from __future__ import annotations

import typer

app = typer.Typer(help="Look into scores and distances, sample by sample.", no_args_is_help=True)
