"""What a stage of a recipe would be made from now: its settings, the files they name, and the code that runs it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlhf.config.base import BaseConfig, Names, named_things
from rlhf.config.recipe import STAGE, RecipeConfig, stage_references
from rlhf.config.training import FREE_TO_CHANGE
from rlhf.errors import DataError, ModelError
from rlhf.models.adapter_base import base_folder, base_name
from rlhf.models.checks import ADAPTER_FILE
from rlhf.models.sources import EMBEDDED, embedded_folder
from rlhf.pipeline.artifacts import STAGE_INPUT, MadeFrom, content_hash
from rlhf.pipeline.code_hash import code_of_stage, files_of_function, is_own_function, source_of_function
from rlhf.rewards.in_memory import is_in_memory


def made_from(name: str, recipe: RecipeConfig, keys: Mapping[str, str]) -> MadeFrom:
    """What a stage would be made from now.

    Args:
        name: Of the stage.
        recipe: The whole recipe.
        keys: Keys of the stages before it.

    Raises:
        DataError: A file that it names can't be read.
    """
    stage = recipe.stages[name]
    settings = stage.model_dump(mode="json", exclude=FREE_TO_CHANGE)
    for place, _, names in named_things(stage):
        if names is Names.EVIDENCE:
            _leave_out(settings, place)
    return MadeFrom(settings, inputs_of(name, recipe, keys), code_of_stage(stage.kind, stage))


def _leave_out(settings: Any, place: Sequence[str]) -> None:
    """Set a key to null, as if nothing had been named there; one that was left out already stays so."""
    *holders, key = place
    for holder in holders:
        settings = settings[int(holder)] if isinstance(settings, list) else settings.get(holder, {})
    if key in settings:
        settings[key] = None


def inputs_of(name: str, recipe: RecipeConfig, keys: Mapping[str, str]) -> dict[str, str]:
    """What a stage reads now: the place of a setting -> ``stage:NAME@key``, or a path and the hash of what is there.

    Arguments and errors are those of ``made_from``.
    """
    stage = recipe.stages[name]
    parents = {}
    for place, parent, file in stage_references(stage):
        parents[place] = f"{STAGE_INPUT}{parent}{'/' + file if file else ''}@{keys[parent]}"
    for place, path in local_inputs(stage):
        try:
            parents[place] = f"{path.absolute()}@{content_hash(path)}"
        except OSError as err:
            raise DataError(
                f"stages.{name}.{place} names {path}, and {err.filename or path} can't be read: {err.strerror or err}. Give "
                "this user the right to read it, or name another."
            ) from None
    return parents


def local_inputs(stage: BaseConfig) -> list[tuple[str, Path]]:
    """Files and folders on this machine that a stage names, with the place of the key."""
    inputs: list[tuple[str, Path]] = []
    for place, text, names in named_things(stage):
        if names is Names.EVIDENCE:
            continue
        path = _local_file(text, names)
        if names is Names.FUNCTION and path is not None:
            helpers = [file for file in files_of_function(text) if file != path.resolve()]
            inputs += [(f"{'.'.join(place)}.imports.{number}", file) for number, file in enumerate(helpers)]
        if path is not None:
            inputs.append((".".join(place), path))
            inputs += [(f"{'.'.join(place)}.base", base) for base in _bases(path)]
    return inputs


def inputs_by_name(stage: BaseConfig, parents: Mapping[str, str]) -> dict[str, str]:
    """Inputs that are not files of this machine, such as models on a hub and functions in memory: dotted place to name.

    Args:
        stage: Its settings.
        parents: As in ``MadeFrom``.
    """
    return {
        ".".join(place): text
        for place, text, names in named_things(stage)
        if (names is Names.INPUT and not STAGE.match(text) and ".".join(place) not in parents)
        or (names is Names.FUNCTION and is_in_memory(text))
    }


def _local_file(text: str, names: Names) -> Path | None:
    """What a setting names on this machine, if it names anything; code of this library is not an input, but code."""
    if STAGE.match(text) or is_own_function(text, names):
        return None
    if names is Names.FUNCTION:
        return source_of_function(text)
    if names is Names.TEXT_OR_FILE:
        return Path(text) if os.path.isfile(text) else None
    path = embedded_folder() if text == EMBEDDED else Path(text).expanduser()
    return path if os.path.exists(path) else None


def _bases(folder: Path) -> Iterator[Path]:
    """The local model that an adapter in ``folder`` belongs to: its weights decide as much as the adapter's."""
    try:
        name = base_name(folder) if (folder / ADAPTER_FILE).is_file() else None
    except ModelError:
        return  # anyone who loads it will say so
    if name is not None and (base := base_folder(folder, name)) is not None and base.is_dir():
        yield base
