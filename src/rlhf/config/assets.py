"""The folder that ``${RLHF_ASSETS}`` names: is it there, and what can be said where it is not?"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from rlhf.config.base import named_things
from rlhf.config.recipe import ASSETS, DEFAULT_ASSETS, RecipeConfig
from rlhf.errors import DataError

SHOWN = 4
"""Keys that the error names."""
READ_BY_A_PLAN = ("model", "data", "prompts")
"""Keys whose files tell a plan how large a model is and how long its rows are."""


def missing_assets() -> str | None:
    """The folder as it was written, where it is none; None where it is there, or where nothing is asked of it."""
    assets = os.environ.get(ASSETS, DEFAULT_ASSETS)
    return None if not assets or Path(assets).expanduser().is_dir() else assets.rstrip("/")


def no_assets(keys: Sequence[str]) -> str:
    """What to say of keys that need files below a folder that is not there."""
    given = os.environ.get(ASSETS)
    shown = ", ".join(keys[:SHOWN]) + (f" and {len(keys) - SHOWN} more" if len(keys) > SHOWN else "")
    what = (
        f"{ASSETS} is not set, and its default {DEFAULT_ASSETS} is not there (looked for from {Path.cwd()})"
        if given is None
        else f"{ASSETS} is {given}, which is not a folder"
    )
    return (
        f"{what}: {shown} {'need' if len(keys) > 1 else 'needs'} files below it. Set it to the folder of the shared assets, as in "
        f"`export {ASSETS}=/path/to/assets`, or write paths of your own into the recipe."
    )


def check_assets(recipe: RecipeConfig, *, only: str | None = None) -> None:
    """Look whether what a plan reads can be there, in milliseconds.

    Args:
        recipe: What is to be planned.
        only: Its one stage that is.

    Raises:
        DataError: A training stage's model or rows lie below ``${RLHF_ASSETS}``, which is not a folder.
    """
    if (assets := missing_assets()) is None:
        return
    keys = [
        f"stages.{name}.{place[0]}"
        for name, stage in recipe.stages.items()
        if stage.trains and only in (None, name)
        for place, text, _ in named_things(stage)
        if place[0] in READ_BY_A_PLAN and text.startswith(f"{assets}/")
    ]
    if keys:
        raise DataError(no_assets(list(dict.fromkeys(keys))))
