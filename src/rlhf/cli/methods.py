"""`rlhf methods`: which training methods there are, and what makes a stage be one."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import rlhf
from rlhf.cli.options import JsonOption, console

if TYPE_CHECKING:
    from rich.console import RenderableType

    from rlhf.config.methods import Method


NO_WIDTH = 1000
"""Wider than any line."""


def methods(
    name: Annotated[str | None, typer.Argument(help="A method, such as dpo; all of them by default.")] = None,
    as_json: JsonOption = False,
) -> None:
    """`rlhf methods`, whose help is in ``COMMANDS``."""
    from rlhf.config.methods import METHODS, method
    from rlhf.errors import folded

    if name is not None:
        name = next((known for known in METHODS if folded(known) == folded(name)), name)
        chosen = method(name)
        if as_json:
            print(json.dumps(_as_json(name, chosen), indent=1, ensure_ascii=False))
        else:
            _print_one(name, chosen)
    elif as_json:
        print(json.dumps([_as_json(each, METHODS[each]) for each in METHODS], indent=1, ensure_ascii=False))
    else:
        out = console()
        if not out.is_terminal:  # a file or a pipe has no width to cut lines to
            from rich.console import Console

            out = Console(width=NO_WIDTH)
        for part in _tables():
            out.print(part)


def _tables() -> Iterator[RenderableType]:
    """Each family's heading and its methods: name, what it does, who published it."""
    from rich.table import Table
    from rich.text import Text

    from rlhf.config.methods import FAMILIES, METHODS

    for family, words in FAMILIES.items():
        yield Text(words, style="bold")
        table = Table.grid(padding=(0, 2))
        table.add_column(no_wrap=True, min_width=max(map(len, METHODS)))
        table.add_column(no_wrap=True, overflow="ellipsis")
        for name, each in METHODS.items():
            if each.family == family:
                table.add_row(name, Text.assemble(each.about, "  ", (each.published, "dim")))
        yield table
        yield ""
    yield "`rlhf methods NAME` tells of one what its settings do."


def _print_one(name: str, shown: Method) -> None:
    from rich.table import Table
    from rich.text import Text

    from rlhf.config.method_options import REQUIRED, described_options, source_of
    from rlhf.config.methods import as_settings, page_of, recipe_of

    recipe, page = _on_disk(recipe_of(name)), _on_disk(page_of(name))
    out = console()
    facts = Table.grid(padding=(0, 2))
    facts.add_column(no_wrap=True)
    facts.add_column()
    where = f"https://arxiv.org/abs/{shown.arxiv}" if shown.arxiv else ""
    for label, text in (
        ("paper", f"{shown.published}  {where}".strip() or shown.citation),
        ("stage", as_settings(shown)),
        ("computed", f"rlhf.{shown.computed_by.replace(':', '.')}"),
        ("recipe", f"rlhf run {recipe}" if recipe else _absent(recipe_of(name))),
        ("page", page or _absent(page_of(name))),
    ):
        facts.add_row(Text(label, style="dim"), Text(text))
    out.print(Text(shown.title, style="bold"))
    out.print(Text(shown.about))
    out.print()
    out.print(facts)
    out.print()
    settings = Table.grid(padding=(0, 2))
    settings.add_column(no_wrap=True)
    settings.add_column(no_wrap=True, max_width=24)
    settings.add_column(ratio=1)
    for setting in described_options(shown):
        source = "" if setting.default == REQUIRED else f"  [{source_of(shown, setting) or 'not stated'}]"
        settings.add_row(setting.name, Text(setting.default), Text.assemble(setting.told, (source, "dim")))
    out.print(settings)
    out.print()
    out.print(Text("In brackets: where the default comes from."))
    out.print(Text(f"`rlhf config schema {shown.kind}` lists every setting of the stage."))


def _as_json(name: str, described: Method) -> dict[str, Any]:
    from rlhf.config.method_options import described_options, source_of
    from rlhf.config.methods import page_of, recipe_of

    return {
        "name": name,
        **{key: getattr(described, key) for key in ("title", "about", "family", "kind", "settings", "computed_by")},
        "citation": described.citation,
        "options": [
            {**dataclasses.asdict(setting), "source": source_of(described, setting)}
            for setting in described_options(described)
        ],
        "recipe": _on_disk(recipe_of(name)),
        "page": _on_disk(page_of(name)),
    }


def _checkout() -> Path | None:
    """The repository that this package runs from; None for an installed package, which has neither recipes nor pages."""
    root = Path(rlhf.__file__).parents[2]
    return root if (root / "docs" / "methods").is_dir() else None


def _on_disk(name: str) -> str | None:
    """Where a file of the repository is, as a path from here if it is below the working folder; None if it is not on this machine."""
    root = _checkout()
    if root is None or not (root / name).is_file():
        return None
    path = root / name
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def _absent(name: str) -> str:
    """Why a file of the repository can't be opened here."""
    if _checkout() is None:
        return f"{name} of the repository, which is not part of the installed package"
    return f"none yet: {name} does not exist (docs/extending.md says how it is written)"
