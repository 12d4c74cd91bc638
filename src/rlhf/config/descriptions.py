"""What settings mean: the text below each field in the source of its class.

Pydantic reads these texts too (``use_attribute_docstrings``), but of every class at once when it is made, which takes as long as
everything else about the class. Here they are read when somebody asks for them.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import pairwise

from pydantic import BaseModel
from pydantic.fields import FieldInfo


def described_fields(owner: type[BaseModel]) -> dict[str, FieldInfo]:
    """``owner.model_fields``, with descriptions; a class without source has none."""
    fields: dict[str, FieldInfo] = owner.model_fields
    for name, field in fields.items():
        if field.description is None:
            declared_in = next(cls for cls in owner.__mro__ if name in vars(cls).get("__annotations__", ()))
            field.description = _texts_below_fields(declared_in).get(name)
    return fields


@cache
def _texts_below_fields(cls: type) -> Mapping[str, str]:
    body: list[ast.stmt] = _module_body(cls.__module__)
    for part in cls.__qualname__.split("."):
        if part != "<locals>":
            body = next((node.body for node in _definitions(body) if node.name == part), [])
    return {
        field.target.id: inspect.cleandoc(below.value.value)
        for field, below in pairwise(body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) and isinstance(below.value.value, str)
    }


@cache
def _module_body(name: str) -> list[ast.stmt]:
    try:
        return ast.parse(inspect.getsource(sys.modules[name])).body
    except (KeyError, OSError, TypeError):
        return []


def _definitions(body: list[ast.stmt]) -> Iterator[ast.ClassDef | ast.FunctionDef]:
    """Classes and functions of a body, those inside `if`, `with` and the like included."""
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            yield node
        else:
            yield from _definitions([inner for inner in ast.iter_child_nodes(node) if isinstance(inner, ast.stmt)])
