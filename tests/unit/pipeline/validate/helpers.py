"""A recipe without a mistake to change, and what `rlhf validate` says about the changed one."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

from rlhf.config.recipe import RecipeConfig
from rlhf.pipeline.validate import Problem, find_problems

WORDS = "The cow eats grass . The fox lives in a den as far as I know".split()
FUNCTIONS = """\
def polite(prompts, completions, **columns):
    raise AssertionError("validating calls nothing")


def wants_answer(prompts, completions, answer, hint=None):
    raise AssertionError("validating calls nothing")


def annotate(prompts, completions, *, ended, noise, seed):
    raise AssertionError("validating calls nothing")
"""
Tree = dict[str, Any]
RECIPES = Path(__file__).parents[4] / "recipes"
WORLD = {"kind": "world"}
DPO = {"kind": "dpo", "model": "stage:sft", "data": "pairs.jsonl", "learning_rate": 2e-4}


def write(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def changed(tree: Tree, stage: str, **settings: Any) -> Tree:
    """The recipe with some settings of a stage changed."""
    made = copy.deepcopy(tree)
    made["stages"].setdefault(stage, {}).update(settings)
    return made


def problems_of(tree: Tree, *, deep: bool = True) -> list[Problem]:
    return find_problems(RecipeConfig.of(tree), deep=deep)


def only_problem(tree: Tree, *, deep: bool = False) -> Problem:
    """The one complaint about a recipe."""
    problems = problems_of(tree, deep=deep)
    assert len(problems) == 1, [problem.message for problem in problems]
    return problems[0]
