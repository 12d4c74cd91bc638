"""The strict base of all settings, and reading them from YAML with overrides.

A misspelt key, a wrong type or an impossible range is an error that names the key, the value and the nearest valid key; all
complaints come together. Nothing here imports torch.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from rlhf.errors import ConfigError, did_you_mean

C = TypeVar("C", bound="Config")


class Config(BaseModel):
    """Base of all config classes: immutable, and a misspelt key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, protected_namespaces=())

    @classmethod
    def of(cls, tree: Mapping[str, Any], *, source: str = "The settings") -> Self:
        """Validate a plain mapping.

        Raises:
            ConfigError: With every complaint, one a line.
        """
        try:
            return cls.model_validate(dict(tree))
        except ValidationError as err:
            lines = [f"  {_complaint(cls, e)}" for e in err.errors()]
            raise ConfigError(f"{source} is not a valid {_noun(cls)}:\n" + "\n".join(lines)) from None

    def updated(self, **changes: Any) -> Self:
        """A validated copy with some fields changed (``model_copy`` would not validate)."""
        return type(self).of({**self.model_dump(exclude_unset=True), **changes}, source="The changed settings")


def read_yaml(path: Path | str) -> dict[str, Any]:
    """The mapping in a YAML file.

    Raises:
        ConfigError: The file is absent, not text, not YAML (with line and column), holds a key twice, or is no mapping.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        near = did_you_mean(path.name, [p.name for p in path.parent.glob("*.y*ml")] if path.parent.is_dir() else [])
        raise ConfigError(f"There is no file {path}.{near}") from None
    except (OSError, UnicodeDecodeError) as err:
        raise ConfigError(f"{path} can't be read as text: {err}.") from None
    try:
        tree = yaml.load(text, Loader=_UniqueKeyLoader)
    except yaml.MarkedYAMLError as err:
        mark = err.problem_mark
        where = f" line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        hint = " YAML wants spaces, not tabs." if "\\t" in str(err.problem) else ""
        raise ConfigError(f"{path}{where} is not valid YAML: {err.problem or err.context}.{hint}") from None
    except yaml.YAMLError as err:
        raise ConfigError(f"{path} is not valid YAML: {err}.") from None
    if tree is None:
        raise ConfigError(f"{path} is empty; a recipe needs at least `name:` and `stages:`.")
    if not isinstance(tree, dict):
        raise ConfigError(f"{path} holds a {type(tree).__name__}; it should hold keys and values.")
    return tree


def apply_overrides(tree: dict[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """A copy of ``tree`` with ``key.sub=value`` items applied in order; values are YAML.

    Raises:
        ConfigError: An item without ``=``, or one that goes through a value as if it were a section.
    """
    tree = _copy(tree)
    for item in overrides:
        dotted, equals, text = item.partition("=")
        if not equals or not dotted:
            raise ConfigError(f"Override {item!r} is not of the form key.subkey=value.")
        *parents, leaf = dotted.split(".")
        node: Any = tree
        for key in parents:
            node = _step(node, key, item)
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError as err:
            raise ConfigError(f"Override {item!r}: the value is not valid YAML: {err}.") from None
        if isinstance(node, list):
            node[_index(node, leaf, item)] = value
        else:
            node[leaf] = value
    return tree


def _step(node: Any, key: str, item: str) -> Any:
    if isinstance(node, list):
        return node[_index(node, key, item)]
    if node.get(key) is None:
        node[key] = {}
    child = node[key]
    if not isinstance(child, dict | list):
        raise ConfigError(f"Override {item!r}: {key!r} holds the value {child!r}, not a section.")
    return child


def _index(node: list[Any], key: str, item: str) -> int:
    if not key.isdigit() or int(key) >= len(node):
        raise ConfigError(f"Override {item!r}: {key!r} is not a place in a list of {len(node)}; count from 0.")
    return int(key)


def _copy(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _copy(v) for k, v in value.items()}
    return [_copy(v) for v in value] if isinstance(value, list) else value


class _UniqueKeyLoader(yaml.SafeLoader):
    """Safe YAML in which a repeated key is an error instead of a silent overwrite."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)  # type: ignore[no-untyped-call]
            if isinstance(key, str | int | float | bool) and key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"the key {key!r} stands twice", key_node.start_mark)
            if isinstance(key, str | int | float | bool):
                seen.add(key)
        return super().construct_mapping(node, deep=deep)


def _complaint(root: type[BaseModel], error: Any) -> str:
    place = ".".join(str(part) for part in error["loc"] if not _is_tag(root, error["loc"], part))
    if error["type"] == "extra_forbidden":
        owner = _owner(root, error["loc"][:-1])
        known = list(owner.model_fields) if owner else []
        return f"{place}: there is no such key.{did_you_mean(str(error['loc'][-1]), known)}"
    if error["type"] == "missing":
        return f"{place}: this key is required."
    if error["type"] == "union_tag_not_found":
        return f"{place}: needs the key {error['ctx']['discriminator']} to say what it is."
    if error["type"] == "union_tag_invalid":
        context = error["ctx"]
        known = [tag.strip("' ") for tag in context["expected_tags"].split(",")]
        near = did_you_mean(context["tag"], known)
        return f"{place}: no {context['discriminator']} is called {context['tag']!r}.{near} Known: {', '.join(sorted(known))}."
    message = error["msg"].removeprefix("Value error, ")
    got = error["input"]
    return f"{place or '(whole)'}: {message}" + (f" (got {got!r})" if isinstance(got, str | int | float | bool | None) else "")


def _owner(root: type[BaseModel], loc: tuple[Any, ...]) -> type[BaseModel] | None:
    """The config class that holds the key at ``loc``, found by walking annotations."""
    choices: list[Any] = [root]
    for part in loc:
        inner: list[Any] = []
        for choice in choices:
            if isinstance(choice, type) and issubclass(choice, BaseModel):
                if part in choice.model_fields:
                    inner += _unfold(choice.model_fields[part].annotation)
                elif any(part in typing.get_args(f.annotation) for f in choice.model_fields.values()):
                    inner.append(choice)  # the tag of a union: same class
            else:
                args = typing.get_args(choice)
                inner += _unfold(args[-1]) if args else []
        choices = inner
    return next((c for c in choices if isinstance(c, type) and issubclass(c, BaseModel)), None)


def _unfold(annotation: Any) -> list[Any]:
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        return _unfold(typing.get_args(annotation)[0])
    if origin in (typing.Union, types.UnionType):
        return [leaf for arg in typing.get_args(annotation) for leaf in _unfold(arg)]
    return [annotation]


def _is_tag(root: type[BaseModel], loc: tuple[Any, ...], part: Any) -> bool:
    """Pydantic puts the tag of a union into the place; a user's file has no such level."""
    place = loc.index(part)
    if not isinstance(part, str) or place == 0:
        return False
    owner = _owner(root, loc[: place + 1])
    return owner is not None and any(part in typing.get_args(f.annotation) for f in owner.model_fields.values()) and not (
        (parent := _owner(root, loc[:place])) and part in parent.model_fields and parent is not owner
    )


def _noun(cls: type[BaseModel]) -> str:
    return cls.__name__.removesuffix("Config").lower() or "config"
