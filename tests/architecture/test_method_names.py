"""A method or a kind of stage is declared in one place: few other files name it or a class of its own.

Counted are strings that are equal to the name, and uses of classes that are called after it (``SAPOConfig``, ``SAPOStage``,
``SAPOTrainer``). Files of its own are the tables and where it is declared, where its formula is, what trains it, and the declarations of
methods that are variants of it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import get_args

import pytest

from rlhf.config.methods import METHODS, MODULES
from rlhf.config.offline_losses import KTO_LOSSES, REWARD_LOSSES, SFT_LOSSES
from rlhf.config.pair_losses import PAIR_FORMULAS
from rlhf.config.policy_losses import POLICY_LOSSES
from rlhf.config.schema import stage_classes
from rlhf.config.stage_inputs import RowsFor
from tests.fixtures.settings import config_classes
from tests.fixtures.source import FILES, SOURCE, module_of, name_of, tree_of

MOST_FILES = 3
OF_OTHER_PROJECTS = SOURCE / "config" / "foreign"
"""Tables of keys of other projects, which name methods as these call them; ``docs/coming-from.md`` is made from them."""
KINDS = stage_classes()
NAMES = sorted({*METHODS, *KINDS})
METHODS_PACKAGE = "rlhf.config.methods"
TABLES = {f"{METHODS_PACKAGE}.table", "rlhf.config.stages"}
"""Of methods, and of kinds of stages."""
LOSSES = (PAIR_FORMULAS, POLICY_LOSSES, SFT_LOSSES, KTO_LOSSES, REWARD_LOSSES)
NAMED_BY = ("kind", "loss", "policy_loss")
"""Settings whose values are such names."""


@cache
def words_of_recipes() -> frozenset[str]:
    """Names of settings, and values of settings that name neither a method nor a loss: such a word may mean something else."""
    words = set(get_args(RowsFor))
    for cls in config_classes():
        for name, field in cls.model_fields.items():
            words.add(name)
            if name not in NAMED_BY:
                words |= set(re.findall(r"'(\w+)'", repr(field.annotation)))
    return frozenset(words)


def files_of(name: str) -> set[Path]:
    """Where the name is declared, computed and trained."""
    modules = {*TABLES, module_of_method(name)}
    functions = [table[name].function for table in LOSSES if name in table]
    functions += [METHODS[name].computed_by] if name in METHODS else []
    modules |= {f"rlhf.{function.partition(':')[0]}" for function in functions}
    kind = METHODS[name].kind if name in METHODS else name
    if kind in KINDS:
        cls = KINDS[kind]
        modules |= {f"rlhf.pipeline.stages.{cls.runs.partition(':')[0]}", cls.trainer.partition(":")[0]}
        modules |= {base.__module__ for base in cls.__mro__ if folded(name) in folded(base.__name__)} | {cls.__module__}
    for other, method in METHODS.items():
        bases = method.stage.__mro__ if method.stage is not None else ()
        if method.kind == name or any(folded(base.__name__) == f"{folded(name)}config" for base in bases):
            modules |= {module_of_method(other)} | {
                base.__module__ for base in bases if base.__module__.startswith(METHODS_PACKAGE)
            }
    return {file for file in FILES if module_of(file) in modules}


def module_of_method(name: str) -> str:
    return f"{METHODS_PACKAGE}.{MODULES.get(name, name)}"


def folded(name: str) -> str:
    return name.replace("_", "").lower()


def strings_in(tree: ast.AST) -> Iterator[tuple[str, bool]]:
    """(text, whether it is compared with, matched to or written as a kind) of each string; labels of seeds are none of a method's."""
    as_kind: set[int] = set()
    labels: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            if getattr(node.func, "id", getattr(node.func, "attr", "")) == "derive_seed":
                labels |= {id(argument) for argument in node.args}
            as_kind |= {id(keyword.value) for keyword in node.keywords if keyword.arg in NAMED_BY}
        elif isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            if any(word_of(side) in NAMED_BY for side in sides):
                as_kind |= {id(part) for side in sides for part in ast.walk(side)}
        elif isinstance(node, ast.Dict):
            pairs = zip(node.keys, node.values, strict=True)
            as_kind |= {id(value) for key, value in pairs if isinstance(key, ast.Constant) and key.value in NAMED_BY}
        elif isinstance(node, ast.Match) and word_of(node.subject) in NAMED_BY:
            as_kind |= {id(part) for case in node.cases for part in ast.walk(case.pattern)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in labels:
            yield node.value, id(node) in as_kind


def word_of(node: ast.AST) -> str:
    """``kind`` of ``stage.kind``, ``kind``, ``record["kind"]`` and ``record.get("kind")``."""
    if isinstance(node, ast.Call):
        return next((str(each.value) for each in node.args if isinstance(each, ast.Constant)), "")
    if isinstance(node, ast.Subscript):
        return str(getattr(node.slice, "value", ""))
    return getattr(node, "attr", getattr(node, "id", ""))


@cache
def quoted() -> dict[tuple[str, bool], set[Path]]:
    files_by_name: dict[tuple[str, bool], set[Path]] = {}
    for file in FILES:
        for text, as_kind in strings_in(tree_of(file)):
            files_by_name.setdefault((text, False), set()).add(file)
            if as_kind:
                files_by_name.setdefault((text, True), set()).add(file)
    return files_by_name


@cache
def used_classes() -> dict[str, set[Path]]:
    """Classes that are called after something that a recipe names -> files that use them."""
    files_by_class: dict[str, set[Path]] = {}
    for file in FILES:
        for node in ast.walk(tree_of(file)):
            name = (
                getattr(node, "id", getattr(node, "attr", None)) if isinstance(node, ast.Name | ast.Attribute) else None
            )
            name = node.name if isinstance(node, ast.alias | ast.ClassDef) else name
            if name is not None and (match := re.fullmatch(r"(\w+?)(?:Stage|Config|Trainer)", name)):
                files_by_class.setdefault(folded(match[1]), set()).add(file)
    return files_by_class


@pytest.mark.parametrize("name", NAMES)
def test_a_method_s_name_is_quoted_in_few_files_that_are_not_its_own(name):
    may_mean_else = name in words_of_recipes()  # then only where it is surely the method
    others = quoted().get((name, may_mean_else), set()) - files_of(name)
    others = {file for file in others if OF_OTHER_PROJECTS not in file.parents}
    assert len(others) <= MOST_FILES, (
        f"{name!r} is quoted in {sorted(map(name_of, others))}: declare what they ask of it"
    )


@pytest.mark.parametrize("name", NAMES)
def test_classes_called_after_a_method_are_used_in_few_files_that_are_not_its_own(name):
    others = used_classes().get(folded(name), set()) - files_of(name) - {SOURCE / "__init__.py"}
    assert len(others) <= MOST_FILES, (
        f"classes of {name!r} are used in {sorted(map(name_of, others))}: ask the stage for what it declares"
    )


def test_the_rule_finds_what_it_looks_for():
    tree = ast.parse('x = {"kind": "reward"}\nif stage.kind == "sft": derive_seed(1, "kto")\ny = "dpo"')
    assert sorted(strings_in(tree)) == [("dpo", False), ("kind", False), ("reward", True), ("sft", True)]
    assert "reward" in words_of_recipes(), "a setting is called so"
    assert "ipo" not in words_of_recipes()
