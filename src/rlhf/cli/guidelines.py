"""`rlhf feedback guidelines`: what annotators are asked to look at. Heavy imports happen inside the command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rlhf.cli.options import JsonOption
from rlhf.cli.stores import STORE, StoreOption, opened_store
from rlhf.errors import ConfigError


def guidelines(
    file: Annotated[
        Path | None,
        typer.Argument(help="YAML or JSON: a list with name, description, weight and examples; without it, show them."),
    ] = None,
    store: StoreOption = STORE,
    as_json: JsonOption = False,
) -> None:
    """Show what a store asks its annotators to look at, or set it from a file.

    What is shown is such a file: `rlhf feedback guidelines > guide.yaml`, edit it, `rlhf feedback guidelines guide.yaml`. The
    page shows new guidelines with the next task; nothing need be stopped.
    """
    from rlhf.data.message_text import counted
    from rlhf.feedback.guidelines_file import guidelines_json, guidelines_yaml, read_guidelines
    from rlhf.feedback.store_guidelines import guidelines_of, set_guidelines

    if file is None:
        with opened_store(store) as opened:
            in_force = guidelines_of(opened)
        print(guidelines_json(in_force) if as_json else guidelines_yaml(in_force), end="\n" if as_json else "")
        return
    if as_json:
        raise ConfigError("--json shows what a store asks for, and a file sets it; leave one of them out.")
    wanted = read_guidelines(file)  # before the store is made
    with opened_store(store, must_exist=False) as opened:
        set_guidelines(opened, wanted)
    examples = sum(len(one.examples) for one in wanted)
    with_examples = f" ({counted(examples, 'example')})" if examples else ""
    print(f"Asked for from now on: {', '.join(one.name for one in wanted)}{with_examples}.")
