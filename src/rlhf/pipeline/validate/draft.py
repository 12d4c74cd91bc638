"""The valid part of an invalid recipe: enough to find further problems."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError, model_validator

from rlhf.config.recipe import RecipeConfig, seed_of_stages
from rlhf.config.stage_union import stage_adapter
from rlhf.errors import ConfigError


class Draft(RecipeConfig):
    """What is left of a recipe when the stages that are not valid are taken out: others may name those."""

    @model_validator(mode="after")
    def _inputs_exist(self) -> Draft:
        return self


def draft_of(tree: Mapping[str, Any]) -> Draft | None:
    """The stages that are valid except for unknown keys, and the valid settings.

    Args:
        tree: A recipe as it was written, with its variables filled in.

    Returns:
        None where nothing can be made of the rest.
    """
    seed = seed_of_stages(tree) or 0
    stages = tree.get("stages")
    kept = {
        name: known
        for name, stage in (stages.items() if isinstance(stages, Mapping) else ())
        if isinstance(name, str) and isinstance(stage, Mapping) and (known := _known_part({"seed": seed, **stage}))
    }
    rest: dict[str, Any] = {"name": "recipe", "stages": kept}
    for key in RecipeConfig.model_fields:
        if key in tree and key != "stages":
            try:
                Draft.of({**rest, key: tree[key]})
            except ConfigError:
                continue
            rest[key] = tree[key]
    try:
        return Draft.of(rest)
    except ConfigError:
        return None


def _known_part(stage: Mapping[str, Any]) -> dict[str, Any] | None:
    """A stage without the keys that it can't have; None where more than those is wrong with it."""
    known = copy.deepcopy(dict(stage))
    try:
        stage_adapter().validate_python(known)
    except ValidationError as err:
        errors = err.errors(include_url=False, include_input=False)
        if any(error["type"] != "extra_forbidden" for error in errors):
            return None
        for error in errors:
            _drop(known, error["loc"])
        try:
            stage_adapter().validate_python(known)
        except ValidationError:
            return None
    return known


def _drop(node: Any, place: tuple[str | int, ...]) -> None:
    """Take out a key; pydantic's place of it names members of unions too, which are no keys."""
    for part in place[:-1]:
        if (part in node) if isinstance(node, Mapping) else (isinstance(node, list) and isinstance(part, int)):
            node = node[part]
    if isinstance(node, dict):
        node.pop(place[-1], None)
