"""Settings as people read them: name, type, default, meaning, straight from where they are declared."""

from __future__ import annotations

import textwrap
import typing
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from rlhf.config import recipe
from rlhf.config.base import Config
from rlhf.errors import look_up


def stage_classes() -> dict[str, type[Config]]:
    """Stage kind to its class."""
    union = typing.get_args(typing.get_args(recipe.Stage)[0])
    return {typing.get_args(cls.model_fields["kind"].annotation)[0]: cls for cls in union}


def settings_class(kind: str | None) -> type[Config]:
    """The class of a stage kind; the whole recipe's for None.

    Raises:
        UnknownNameError: No stage kind is called so.
    """
    return recipe.RecipeConfig if kind is None else look_up(stage_classes(), kind, kind="stage kind")


def describe_settings(owner: type[BaseModel], *, indent: str = "") -> str:
    """A plain text table; settings of nested classes stand indented below theirs."""
    lines = []
    for name, field in owner.model_fields.items():
        default = "required" if field.is_required() else f"default {_default(field)}"
        lines.append(f"{indent}{name}: {_type(field.annotation)}  ({default})")
        if field.description:
            lines.append(
                textwrap.fill(
                    " ".join(field.description.split()),
                    110,
                    initial_indent=indent + "    ",
                    subsequent_indent=indent + "    ",
                )
            )
        nested = [t for t in _leaves(field.annotation) if isinstance(t, type) and issubclass(t, BaseModel)]
        if len(nested) == 1 and owner is not recipe.RecipeConfig:
            lines.append(describe_settings(nested[0], indent=indent + "    "))
        elif nested and owner is recipe.RecipeConfig:
            lines.append(
                f"{indent}    kinds: {', '.join(stage_classes())}; `rlhf config schema KIND` lists a kind's settings."
            )
    return "\n".join(lines)


def _default(field: Any) -> str:
    value = field.get_default(call_default_factory=True)
    if value is PydanticUndefined or value is None:
        return "null"
    return "as below" if isinstance(value, BaseModel) else repr(value)


def _leaves(annotation: Any) -> list[Any]:
    args = typing.get_args(annotation)
    if typing.get_origin(annotation) is typing.Literal or not args:
        return [annotation]
    return [leaf for arg in args for leaf in _leaves(arg)]


def _type(annotation: Any) -> str:
    if typing.get_origin(annotation) is typing.Literal:
        return " | ".join(map(str, typing.get_args(annotation)))
    args = [a for a in typing.get_args(annotation) if isinstance(a, type) or typing.get_args(a)]
    origin = typing.get_origin(annotation)
    if origin in (list, tuple, dict):
        return f"{origin.__name__} of {', '.join(_type(a) for a in args)}"
    if args:
        return " | ".join("null" if a is type(None) else _type(a) for a in args)
    return getattr(annotation, "__name__", str(annotation))
