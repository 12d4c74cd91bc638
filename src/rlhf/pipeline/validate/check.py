"""Runs all checks in order, on a recipe or a recipe file."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rlhf.config.base import apply_overrides
from rlhf.config.error_messages import TAG
from rlhf.config.overrides import complaint_lines, complaints_of, mark_overrides, name_missing_stages
from rlhf.config.recipe import RecipeConfig, expand_variables, read_recipe
from rlhf.errors import ConfigError
from rlhf.pipeline.validate.assets import tell_missing_assets
from rlhf.pipeline.validate.draft import draft_of
from rlhf.pipeline.validate.first_rows import check_first_rows
from rlhf.pipeline.validate.functions import check_functions
from rlhf.pipeline.validate.input_paths import check_places
from rlhf.pipeline.validate.judge_review import check_judges
from rlhf.pipeline.validate.judge_rewards import check_judge_rewards
from rlhf.pipeline.validate.launch_review import check_launch
from rlhf.pipeline.validate.own_code import check_own_code
from rlhf.pipeline.validate.references import check_references
from rlhf.pipeline.validate.resources import check_resources
from rlhf.pipeline.validate.review import Problem, Review, Validation
from rlhf.pipeline.validate.row_cache import QUICK_ROWS
from rlhf.pipeline.validate.settings import check_settings

IN_STAGE = re.compile(r"stages\.(?P<stage>[\w-]+)(?:\.(?P<key>[^\s:]+))?:? (?P<message>.+)")
IN_RECIPE = re.compile(r"(?P<key>[\w.]+): (?P<message>.+)")
"""How ``rlhf.config`` reports the position of an error."""
FIX = "fix the settings first, then validate again"


def find_problems(recipe: RecipeConfig, *, deep: bool = True) -> list[Problem]:
    """Everything that can be known to be wrong before training starts.

    Args:
        recipe: A valid one. Its run folder must not be locked by this process.
        deep: Read more rows and tokenize them, which takes seconds. Without it only the first rows of each file are read,
            and this process imports nothing heavy.

    Returns:
        Problems in the order of stages, errors before warnings.
    """
    return validate_recipe(recipe, deep=deep).problems


def check_quickly(recipe: RecipeConfig, *, until: str | None = None) -> list[Problem]:
    """What every run begins with: what its last stage would fail with is reported before its first one trains.

    Args:
        recipe: A valid one. Its run folder must not be locked by this process.
        until: Later stages than this one are not looked at.

    Returns:
        Warnings: what may be meant so, and probably is not.

    Raises:
        RLHFError: The class that the run would have raised first; with all complaints.
    """
    names = list(recipe.stages)
    wanted = {None, *(names[: names.index(until) + 1] if until in names else names)}
    problems = [p for p in find_problems(recipe, deep=False) if p.stage in wanted]
    errors = [p for p in problems if p.level == "error"]
    if errors:
        lines = [p.line for p in errors]
        head = f"{recipe.name} can't run to its end:\n  " if len(lines) > 1 else ""
        raise errors[0].kind(head + "\n  ".join(lines))
    return problems


def validate_recipe(recipe: RecipeConfig, *, deep: bool = True, source: str | None = None) -> Validation:
    """``find_problems`` with additional information: numbers, and what was not checked."""
    review = Review(recipe, deep=deep)
    _look(review)
    return _validation(review, source or recipe.name)


def validate_file(
    path: Path | str, overrides: Sequence[str] = (), *, launch: Path | str | None = None, deep: bool = True
) -> Validation:
    """Validate a recipe's file; where some of its settings are not valid, what can be known of the rest is found too.

    Raises:
        ConfigError: It is not there, is not YAML, or an override can't be applied: there is nothing to look at.
    """
    written, source = read_recipe(path, launch), str(path)

    def read(settings: Mapping[str, Any]) -> RecipeConfig:
        return RecipeConfig.of(expand_variables(settings, source), source=source)

    tree = expand_variables(apply_overrides(written, overrides), source)
    try:
        recipe = RecipeConfig.of(tree, source=source)
    except ConfigError as err:
        lines = name_missing_stages(complaint_lines(err), written)
        complaints = _complaints(mark_overrides(lines, complaints_of(read, written), overrides) if overrides else lines)
    else:
        return validate_recipe(recipe, deep=deep, source=source)
    order = _stage_names(tree, written)
    draft = draft_of(tree)
    if draft is None:
        return Validation(source, len(order), complaints, [], [f"all but the settings themselves ({FIX})"])
    num_stages, unseen = len(order), [name for name in order if name not in draft.stages]
    order += [problem.stage for problem in complaints if problem.stage is not None and problem.stage not in order]
    review = Review(draft, deep=deep, problems=complaints, order=order)
    if unseen:
        review.leave(f"files, models and rewards of {', '.join(unseen)} ({FIX})")
    _look(review)
    validation = _validation(review, source)
    return replace(validation, num_stages=num_stages)


def _stage_names(tree: Mapping[str, Any], written: Mapping[str, Any]) -> list[str]:
    """The stages of a recipe; a section that only an override made, without a kind, is not a stage."""
    stages, in_file = tree.get("stages"), written.get("stages")
    if not isinstance(stages, Mapping):
        return []
    names = in_file if isinstance(in_file, Mapping) else {}
    return [
        str(name) for name, stage in stages.items() if name in names or (isinstance(stage, Mapping) and TAG in stage)
    ]


def _look(review: Review) -> None:
    check_references(review)
    check_places(review)
    check_settings(review)
    check_judges(review)
    check_resources(review)
    check_launch(review)
    check_first_rows(review)
    check_judge_rewards(review)
    if review.deep:
        # Here, because they import torch and transformers.
        from rlhf.pipeline.validate.row_checks import check_rows
        from rlhf.pipeline.validate.splits import check_splits

        check_rows(review)
        check_splits(review)
    else:
        review.leave(f"tokenizers and rows after the first {QUICK_ROWS}")
    check_own_code(review)
    check_functions(review)
    tell_missing_assets(review)


def _validation(review: Review, source: str) -> Validation:
    return Validation(
        source, len(review.recipe.stages), review.sorted_problems(), list(review.notes), list(review.unchecked)
    )


def _complaints(lines: Sequence[str]) -> list[Problem]:
    """The lines of a refusal, each with its stage and key."""
    problems = []
    for line in lines:
        match = IN_STAGE.match(line) or IN_RECIPE.match(line)
        place = match.groupdict() if match is not None else {"message": line}
        problems.append(Problem(place.get("stage"), place.get("key") or "", "error", place["message"]))
    return problems
