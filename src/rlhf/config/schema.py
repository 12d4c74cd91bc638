"""Settings as people read them: name, type, default, meaning, straight from where they are declared."""

from __future__ import annotations

import textwrap
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from rlhf.config import recipe, stages
from rlhf.config.base import BaseConfig
from rlhf.config.descriptions import described_fields
from rlhf.config.engines import ENGINE_KINDS
from rlhf.config.environments import ENVIRONMENT_KINDS
from rlhf.config.lazy_union import lazy_union
from rlhf.config.methods import as_settings, method_behind
from rlhf.config.rewards import REWARD_KINDS
from rlhf.config.stage_inputs import StageConfig
from rlhf.errors import UnknownNameError, look_up

INDENT = "    "
BOUNDS = (("ge", ">="), ("gt", ">"), ("le", "<="), ("lt", "<"))


def stage_classes() -> Mapping[str, type[StageConfig]]:
    """Stage kind to its class, which is imported when it is looked up."""
    return stages.BY_KIND


def settings_class(kind: str | None) -> type[BaseConfig]:
    """The class of a stage kind; the whole recipe's for None.

    Raises:
        UnknownNameError: There is no such kind of stage.
    """
    if kind is None:
        return recipe.RecipeConfig
    classes = stage_classes()
    if kind not in classes and (behind := method_behind(kind, classes)) is not None:
        name, method = behind
        raise UnknownNameError(
            f"No stage kind is called {kind!r}: the method {name!r} is `{as_settings(method)}`. `rlhf config schema {method.kind}` lists "
            f"the settings of the stage, `rlhf methods {name}` those that belong to the method."
        )
    return look_up(classes, kind, kind="stage kind")


def class_to_describe(name: str | None) -> type[BaseConfig]:
    """The settings class of a stage kind, of a kind of reward or of an engine; the whole recipe's for None.

    Raises:
        UnknownNameError: There is no kind of that name.
    """
    if name is None or name in stage_classes() or method_behind(name, stage_classes()) is not None:
        return settings_class(name)
    parts = {kind.kind_name(): kind for kind in (*REWARD_KINDS, *ENGINE_KINDS, *ENVIRONMENT_KINDS)}
    return look_up({**stage_classes(), **parts}, name, kind="stage kind, kind of reward, engine or environment")


def describe_settings(owner: type[BaseModel]) -> str:
    """A plain text table; settings of nested classes stand indented below theirs, and of each class only once."""
    return "\n".join(line for line in _lines(owner, "", "", {}) if line)


def _lines(
    owner: type[BaseModel],
    indent: str,
    place: str,
    printed: dict[type[BaseModel], str],
    first: type[BaseModel] | None = None,
) -> Iterator[str]:
    """The table line by line.

    Args:
        owner: The class.
        indent: Before each line.
        place: Where its settings stand, such as ``engine.``.
        printed: Every class that stands above, and where; takes what is added.
        first: The first of the kinds that the class is one of, whose settings are not repeated.
    """
    fields = described_fields(owner)
    same = [name for name, field in fields.items() if first and _is_the_same(first, name, field)]
    if first and same:
        yield _paragraph(f"{', '.join(same)}: as of {first.__name__}, above", indent)
    for name, field in fields.items():
        if name in same:
            continue
        default = "required" if field.is_required() else f"default {_default(field)}"
        yield f"{indent}{name}: {_type(field.annotation)}{_range(field)}  ({default})"
        yield _paragraph(field.description or "", indent + INDENT)
        nested = [t for t in _leaves(field.annotation) if isinstance(t, type) and issubclass(t, BaseModel)]
        if owner is recipe.RecipeConfig and nested:
            known = ", ".join(stage_classes())
            yield f"{indent}{INDENT}kinds: {known}; `rlhf config schema KIND` lists a kind's settings."
            continue
        here = f"{place}{name}"
        for kind in nested:
            inside = indent + INDENT * (1 if len(nested) == 1 else 2)
            if kind in printed:
                yield f"{indent}{INDENT}{kind.__name__}: as under {printed[kind]}, above"
                continue
            printed[kind] = here
            if len(nested) > 1:
                yield _paragraph(f"{kind.__name__}: {kind.__doc__ or ''}", indent + INDENT)
            yield from _lines(kind, inside, f"{here}.", printed, first=nested[0] if kind is not nested[0] else None)


def _is_the_same(other: type[BaseModel], name: str, field: FieldInfo) -> bool:
    fields = described_fields(other)
    return name in fields and repr(fields[name]) == repr(field)


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting as a table shows it."""

    name: str
    type: str
    default: str
    meaning: str
    choices: tuple[str, ...] = ()
    """Words to type, where it is a choice between words."""

    @property
    def told(self) -> str:
        """The meaning, then the words to choose from."""
        if not self.choices:
            return self.meaning
        return f"{self.meaning} One of {', '.join(f'`{word}`' for word in self.choices)}."


def describe_setting(owner: type[BaseModel], dotted: str, *, default: Any = None) -> Setting:
    """One setting of a class.

    Args:
        owner: The class, such as that of a stage kind.
        dotted: The setting's name; ``section.name`` for one in a section.
        default: Shown instead of the class's own default; None for that.

    Raises:
        UnknownNameError: The class has no setting of that name.
    """
    *sections, leaf = dotted.split(".")
    holder: BaseModel | None = (
        None  # the section as it is by default: a kind may have other numbers there than its class
    )
    for section in sections:
        field = look_up(owner.model_fields, section, kind="setting")
        holder = field.get_default(call_default_factory=True) if holder is None else getattr(holder, section)
        assert isinstance(holder, BaseModel), f"{section} of {owner.__name__} is not a section with defaults"
        owner = type(holder)
    field = look_up(described_fields(owner), leaf, kind="setting")
    if default is not None:
        shown = repr(default)
    elif holder is not None:
        shown = repr(getattr(holder, leaf))
    else:
        shown = "required" if field.is_required() else _default(field)
    kind = f"{_type(field.annotation)}{_range(field)}"
    meaning = " ".join((field.description or "").split())
    return Setting(dotted, kind, _plain(shown), meaning, _choices(field.annotation))


def _choices(annotation: Any) -> tuple[str, ...]:
    """The words of an annotation that allows words, and null where it allows nothing too."""
    words = [
        word
        for leaf in _leaves(annotation)
        if typing.get_origin(leaf) is typing.Literal
        for word in typing.get_args(leaf)
    ]
    return tuple(map(str, words)) + (("null",) if words and type(None) in _leaves(annotation) else ())


def _plain(shown: str) -> str:
    """As YAML has it, where that differs from Python."""
    return {"True": "true", "False": "false", "None": "null"}.get(shown, shown.strip("'"))


def _paragraph(text: str, indent: str) -> str:
    return textwrap.fill(" ".join(text.split()), 110, initial_indent=indent, subsequent_indent=indent)


def _default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True)
    if value is PydanticUndefined or value is None:
        return "null"
    return "as below" if isinstance(value, BaseModel) else repr(value)


def _range(field: FieldInfo) -> str:
    """The bounds of a number, such as `` >= 0, < 1``."""
    bounds = [(sign, getattr(item, name)) for item in field.metadata for name, sign in BOUNDS if hasattr(item, name)]
    return "".join(f"{comma} {sign} {bound}" for comma, (sign, bound) in zip(["", ","], bounds, strict=False))


def _leaves(annotation: Any) -> list[Any]:
    if (lazy := lazy_union(annotation)) is not None:
        return list(lazy.classes.values())
    args = typing.get_args(annotation)
    if typing.get_origin(annotation) is typing.Literal or not args:
        return [annotation]
    return [leaf for arg in args for leaf in _leaves(arg)]


def _type(annotation: Any) -> str:
    if typing.get_origin(annotation) is typing.Literal:
        return " | ".join(map(str, typing.get_args(annotation)))
    if (lazy := lazy_union(annotation)) is not None:
        return " | ".join(owner.__name__ for owner in lazy.classes.values())
    args = [a for a in typing.get_args(annotation) if isinstance(a, type) or typing.get_args(a)]
    origin = typing.get_origin(annotation)
    if origin in (list, tuple, dict):
        return f"{origin.__name__} of {', '.join(_type(a) for a in args)}"
    if args:
        return " | ".join("null" if a is type(None) else _type(a) for a in args)
    return getattr(annotation, "__name__", str(annotation))
