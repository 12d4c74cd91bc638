"""The texts that a model learned from, as far as records and files say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from rlhf.config.stage_union import Stage, stage_adapter
from rlhf.data.contracts import Text
from rlhf.data.expand import row_texts
from rlhf.errors import RLHFError
from rlhf.pipeline.validate.ancestry import Made, Surroundings, ancestors
from rlhf.pipeline.validate.row_cache import open_rows


def training_texts(
    recipe: Mapping[str, Any], name: str, model: str, *, run: Path, runs: Path, unread: list[str]
) -> Iterator[tuple[str, str]]:
    """(place, text) of every row that a model and the models behind it learned from.

    Args:
        recipe: As written.
        name: The stage that names the model.
        model: Its path in that stage: a folder, a hub name or ``stage:NAME``.
        run: The recipe's run folder.
        runs: Where the origin of copied models is looked for.
        unread: Gets what could not be read, and why.
    """
    stages: dict[str, Stage] = {}
    for other, settings in dict(recipe.get("stages") or {}).items():
        try:
            stages[str(other)] = stage_adapter().validate_python({"seed": 0, **settings})
        except (ValidationError, TypeError):
            unread.append(f"stage {other} (written by another version)")
    if name not in stages:
        return
    asked = Made("", stages[name], Surroundings(run, runs, stages))
    for behind in ancestors(asked.behind(model, "policy.path")):
        if not isinstance(behind, Made):
            if not behind.is_known:
                unread.append(f"{behind.name} (no rlhf run recorded it)")
            continue
        for rows in behind.rows():
            paths = [source.path for source in behind.files(rows)]
            if any(path is None for path in paths):
                unread.append(f"stage {behind.name} (its {rows.key} can't be read here with the content that it had)")
                continue
            try:
                files = replace(rows, sources=tuple(map(str, paths)))
                for number, row in enumerate(open_rows(files, most=None), 1):
                    text = "\n".join(as_text(part) for part in row_texts(row).values())
                    yield f"{rows.key} of stage {behind.name}, row {number}", text
            except (RLHFError, OSError) as err:
                unread.append(f"stage {behind.name} ({err})")


def as_text(part: Text) -> str:
    """Of messages their contents, a line each."""
    return part if isinstance(part, str) else "\n".join(str(message.get("content")) for message in part)
