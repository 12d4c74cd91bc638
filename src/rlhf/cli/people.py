"""`rlhf feedback token`, `revoke` and `restore-access`: who may come in besides those who were invited."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from rlhf.cli.stores import STORE, StoreOption, opened_store


def token(
    name: Annotated[str, typer.Argument(help="Of the program.")],
    store: StoreOption = STORE,
    scope: Annotated[
        list[str] | None,
        typer.Option(
            help="What it is for: completions, scores, feedback, metrics or shares; may be repeated. By default all but shares."
        ),
    ] = None,
    requests: Annotated[
        str | None,
        typer.Option(help="How many requests it may send, such as 60/minute; by default as many as the server says."),
    ] = None,
) -> None:
    """Make a program's token, for POST /api/events and as a key of `rlhf serve --keys`; an earlier one of that name ends."""
    from rlhf.store import access

    if "://" not in store and not Path(store).exists():  # a server that only has keys needs no labeling project first
        print(f"The store {store} is new.", file=sys.stderr)
    with opened_store(store, must_exist=False) as opened:
        print(access.add_api_token(opened.engine, name, scopes=scope or (), requests=requests))


def revoke(
    name: Annotated[str, typer.Argument(help="Of a person, or of a program with --token.")],
    store: StoreOption = STORE,
    is_token: Annotated[bool, typer.Option("--token", help="The name is of a program's token.")] = False,
) -> None:
    """Shut somebody out at once; their judgments stay, and what they had open goes back to the queue."""
    from rlhf.store import access

    with opened_store(store) as opened:
        if is_token:
            access.revoke_api_token(opened.engine, name)
        else:
            access.set_active(opened.engine, name, False)
    print(f"{name} is shut out.")


def restore_access(
    name: Annotated[str, typer.Argument(help="Of somebody who was shut out.")], store: StoreOption = STORE
) -> None:
    """Let somebody in again; they need their password or a new invitation."""
    from rlhf.store import access

    with opened_store(store) as opened:
        access.set_active(opened.engine, name, True)
    print(f"{name} may come in again.")
