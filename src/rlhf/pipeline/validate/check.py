"""All checks in order, on a recipe or on the file of one."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError, model_validator

from rlhf.config.base import apply_overrides, read_yaml
from rlhf.config.recipe import RecipeConfig, Stage, expand_variables
from rlhf.errors import ConfigError
from rlhf.pipeline.validate.places import check_places
from rlhf.pipeline.validate.problems import Problem, Review, Validation
from rlhf.pipeline.validate.references import check_references
from rlhf.pipeline.validate.resources import check_resources
from rlhf.pipeline.validate.settings import check_settings

STAGE_ADAPTER: TypeAdapter[Any] = TypeAdapter(Stage)
IN_STAGE = re.compile(r"stages\.(?P<stage>[\w-]+)(?:\.(?P<key>[^\s:]+))?:? (?P<message>.+)")
IN_RECIPE = re.compile(r"(?P<key>[\w.]+): (?P<message>.+)")
"""How ``rlhf.config`` says where something is wrong."""


class Draft(RecipeConfig):
    """What is left of a recipe when the stages that are not valid are taken out: others may name those."""

    @model_validator(mode="after")
    def _inputs_exist(self) -> Draft:
        return self


def find_problems(recipe: RecipeConfig, *, deep: bool = True) -> list[Problem]:
    """Everything that can be known to be wrong before training starts.

    Args:
        recipe: A valid one. Its run folder must not be locked by this process.
        deep: Also read rows, load tokenizers and import functions, which takes seconds. Without it nothing heavy is imported.

    Returns:
        Problems in the order of stages, errors before warnings.
    """
    return validate_recipe(recipe, deep=deep).problems


def check_quickly(recipe: RecipeConfig, *, until: str | None = None) -> None:
    """What every run begins with: what its last stage would fail with is told before its first one trains.

    Args:
        recipe: A valid one. Its run folder must not be locked by this process.
        until: Later stages than this one are not looked at.

    Raises:
        RLHFError: The class that the run would have raised first; with all complaints.
    """
    names = list(recipe.stages)
    wanted = {None, *(names[: names.index(until) + 1] if until in names else names)}
    errors = [p for p in find_problems(recipe, deep=False) if p.level == "error" and p.stage in wanted]
    if errors:
        lines = [f"{'.'.join(filter(None, (p.stage and f'stages.{p.stage}', p.key)))}: {p.message}" for p in errors]
        lines = [line.removeprefix(": ") for line in lines]
        head = f"{recipe.name} can't run to its end:\n  " if len(lines) > 1 else ""
        raise errors[0].kind(head + "\n  ".join(lines))


def validate_recipe(recipe: RecipeConfig, *, deep: bool = True, source: str | None = None) -> Validation:
    """``find_problems`` with what else there is to say: numbers, and what was not checked."""
    review = Review(recipe, deep=deep)
    _look(review)
    return _validation(review, source or recipe.name)


def validate_file(path: Path | str, overrides: Sequence[str] = (), *, deep: bool = True) -> Validation:
    """Validate a recipe's file; where some of its settings are not valid, what can be known of the rest is found too.

    Raises:
        ConfigError: It is not there, is no YAML, or an override can't be applied: there is nothing to look at.
    """
    tree = expand_variables(apply_overrides(read_yaml(path), overrides), str(path))
    try:
        recipe = RecipeConfig.of(tree, source=str(path))
    except ConfigError as err:
        complaints = _complaints(err)
    else:
        return validate_recipe(recipe, deep=deep, source=str(path))
    order = list(map(str, stages)) if isinstance(stages := tree.get("stages"), Mapping) else []
    try:
        draft = Draft.of(_without_what_is_wrong(tree))
    except ConfigError:
        return Validation(str(path), len(order), complaints, [], ["all but the settings themselves"])
    num_stages = len(order)
    order += [problem.stage for problem in complaints if problem.stage is not None and problem.stage not in order]
    review = Review(draft, deep=deep, problems=complaints, order=order)
    _look(review)
    found = _validation(review, str(path))
    return replace(found, num_stages=num_stages)


def _look(review: Review) -> None:
    check_references(review)
    check_places(review)
    check_settings(review)
    check_resources(review)
    if review.deep:
        # Here, because they import torch and transformers.
        from rlhf.pipeline.validate.functions import check_functions
        from rlhf.pipeline.validate.rows import check_rows

        check_rows(review)
        check_functions(review)
    else:
        review.leave("rows, tokenizers and functions")


def _validation(review: Review, source: str) -> Validation:
    return Validation(
        source, len(review.recipe.stages), review.sorted_problems(), list(review.notes), list(review.unchecked)
    )


def _complaints(err: ConfigError) -> list[Problem]:
    """The lines of a refusal, each with its stage and key."""
    problems = []
    for line in str(err).splitlines()[1:]:
        match = IN_STAGE.match(line.strip()) or IN_RECIPE.match(line.strip())
        place = match.groupdict() if match is not None else {"message": line.strip()}
        problems.append(Problem(place.get("stage"), place.get("key") or "", "error", place["message"]))
    return problems


def _without_what_is_wrong(tree: Mapping[str, Any]) -> dict[str, Any]:
    """The stages that are valid by themselves, and the settings of the recipe that are."""
    seed = tree.get("seed", 0)
    stages = tree.get("stages")
    kept = {
        name: stage
        for name, stage in (stages.items() if isinstance(stages, Mapping) else ())
        if isinstance(name, str) and isinstance(stage, Mapping) and _is_valid({"seed": seed, **stage})
    }
    rest = {"name": "recipe", "stages": kept}
    for key in RecipeConfig.model_fields:
        if key in tree and key != "stages":
            try:
                Draft.of({**rest, key: tree[key]})
            except ConfigError:
                continue
            rest[key] = tree[key]
    return rest


def _is_valid(stage: Mapping[str, Any]) -> bool:
    try:
        STAGE_ADAPTER.validate_python(stage)
    except ValidationError:
        return False
    return True
