"""The strict base of all settings, and reading them from YAML with overrides.

A misspelt key, a wrong type or an impossible range is an error that names the key, the value and the nearest valid key;
all complaints come together. Nothing here imports torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from rlhf.config.complaints import complaints
from rlhf.errors import ConfigError, did_you_mean


class Config(BaseModel):
    """Base of all config classes: immutable, and a misspelt key is an error."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
        protected_namespaces=(),
        allow_inf_nan=False,
    )

    def __init__(self, **settings: Any) -> None:
        """Validate settings given by keyword.

        Raises:
            ConfigError: With every complaint, one a line.
        """
        try:
            super().__init__(**settings)
        except ValidationError as err:
            raise _refusal(type(self), settings, err, source=type(self).__name__) from None

    # Tells pydantic to go on validating nested settings in place: through __init__ their errors would lose their place.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    @classmethod
    def of(cls, tree: Mapping[str, Any], *, source: str | None = None) -> Self:
        """Validate a plain mapping.

        Args:
            tree: Keys to values, sections to mappings.
            source: What errors call it, such as the file it was read from; by default the class.

        Raises:
            ConfigError: With every complaint, one a line.
        """
        try:
            return cls.model_validate(dict(tree))
        except ValidationError as err:
            raise _refusal(cls, tree, err, source=source or cls.__name__) from None

    def updated(self, **changes: Any) -> Self:
        """A validated copy with some fields changed (``model_copy`` would not validate).

        Raises:
            ConfigError: With every complaint, one a line.
        """
        given = {name: getattr(self, name) for name in self.model_fields_set}
        return type(self).of({**given, **changes}, source=f"The changed {type(self).__name__}")


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
        tree = yaml.load(text, Loader=_Loader)
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
            value = yaml.load(text, Loader=_Loader)
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
        raise ConfigError(
            f"Override {item!r}: {key!r} holds the value {child!r}, not a section of keys; replace it as a whole, "
            f"as in {key}={{...}}."
        )
    return child


def _index(node: list[Any], key: str, item: str) -> int:
    if not key.isdigit() or int(key) >= len(node):
        raise ConfigError(f"Override {item!r}: {key!r} is not a place in a list of {len(node)}; count from 0.")
    return int(key)


def _copy(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _copy(v) for k, v in value.items()}
    return [_copy(v) for v in value] if isinstance(value, list) else value


class _Loader(yaml.SafeLoader):
    """Safe YAML in which a repeated key is an error instead of a silent overwrite, and 1e-5 is a number."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key for key, _ in node.value if isinstance(key, yaml.ScalarNode) and key.tag != MERGE]
        seen: set[tuple[str, str]] = set()
        for key in keys:
            if (key.tag, key.value) in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key.value!r} stands twice", key.start_mark
                )
            seen.add((key.tag, key.value))
        return super().construct_mapping(node, deep=deep)


MERGE = "tag:yaml.org,2002:merge"
"""The key `<<`, which brings in the keys of another section; keys beside it may say otherwise."""

# PyYAML follows YAML 1.1, where a number needs a dot: without this 1e-5 would be text, also where any value is allowed.
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def _refusal(cls: type[BaseModel], tree: Mapping[str, Any], err: ValidationError, *, source: str) -> ConfigError:
    lines = "".join(f"\n  {line}" for line in complaints(cls, tree, err))
    return ConfigError(f"{source} is not valid:{lines}")
