"""Functions of this package that settings name by text: losses, builders of rewards and engines, what runs and trains a stage.

Their source is read and nothing is imported, so that a name with a misspelling is found before torch is loaded.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

from rlhf.config.base import BaseConfig
from rlhf.config.engines import engines_of
from rlhf.config.environments import environments_of
from rlhf.config.formulas import Formula
from rlhf.config.rewards import rewards_of
from rlhf.errors import did_you_mean
from rlhf.pipeline.code_hash import PACKAGE, ROOT, file_of_module, source_of_name
from rlhf.pipeline.validate.review import Review

INSIDE = f"{PACKAGE}."
Definition = ast.FunctionDef | ast.ClassDef | ast.Assign


def check_own_code(review: Review) -> None:
    """Every name leads to a definition, and every argument of a formula is one of its keywords."""
    for _, stage in review.each_stage():
        for key, formula in stage.formulas.items():
            if problem := formula_problem(formula):
                review.error(key, f"The loss {getattr(stage, key)!r} can't be computed: {problem}")
        named: list[tuple[str, BaseConfig, str, str]] = [
            ("kind", stage, "runs", f"{INSIDE}pipeline.stages.{stage.runs}"),
            ("kind", stage, "trainer", stage.trainer),
            *((place, spec, "builds", spec.builds) for place, spec in rewards_of(stage)),
            *((key, engine, "builds", engine.builds) for key, engine in engines_of(stage).items()),
            *((key, settings, "builds", settings.builds) for key, settings in environments_of(stage).items()),
        ]
        for key, owner, attribute, text in named:
            if text.startswith(INSIDE) and (problem := name_problem(text.removeprefix(INSIDE))):
                review.error(key, f"{attribute} of {type(owner).__name__} can't be loaded: {problem}")


def formula_problem(formula: Formula) -> str | None:
    """Why a loss can't be computed; None where nothing is wrong."""
    if problem := name_problem(formula.function):
        return problem
    function = _definition(formula.function)
    if not isinstance(function, ast.FunctionDef) or function.args.kwarg is not None:
        return None
    keywords = [each.arg for each in (*function.args.args, *function.args.kwonlyargs)]
    unknown = next((keyword for keyword in formula.arguments if keyword not in keywords), None)
    if unknown is None:
        return None
    return f"{formula.function} has no keyword {unknown!r}, which its arguments name.{did_you_mean(unknown, keywords)}"


def name_problem(text: str) -> str | None:
    """Why ``module:name`` below this package leads nowhere; None where it does not."""
    module, _, name = text.partition(":")
    if not module or not name:
        return f"{text!r} is not of the form module:name, such as 'losses.preference:dpo_loss'."
    file = file_of_module(f"{PACKAGE}.{module}")
    if file is None:
        return f"{text!r} names rlhf/{module.replace('.', '/')}.py, which does not exist."
    if _definition(text) is None:
        return f"{text!r} is not defined in rlhf/{file.relative_to(ROOT).as_posix()}.{did_you_mean(name, _definitions(file))}"
    return None


@cache
def _definition(text: str) -> Definition | None:
    module, _, name = text.partition(":")
    file = source_of_name(f"{PACKAGE}.{module}", name)
    return None if file is None else _definitions(file).get(name)


@cache
def _definitions(file: Path) -> dict[str, Definition]:
    """Functions, classes and assigned names at the top level of a file."""
    tree = ast.parse(file.read_text(encoding="utf-8"), filename=str(file))
    definitions: dict[str, Definition] = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            definitions[node.name] = node
        elif isinstance(node, ast.Assign):
            definitions |= {target.id: node for target in node.targets if isinstance(target, ast.Name)}
    return definitions
