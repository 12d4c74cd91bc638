"""The strict base of all settings, and overrides of what was read from YAML.

A misspelled key, a wrong type or an impossible range is an error that names the key, the value and the nearest valid key;
all complaints come together. Nothing here imports torch.
"""

from __future__ import annotations

import functools
import importlib
import re
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationError
from pydantic_core import CoreSchema

from rlhf.config.descriptions import described_fields
from rlhf.config.error_messages import complaints, shortened
from rlhf.config.numbers import with_meant_numbers
from rlhf.config.yaml_text import parse_yaml
from rlhf.errors import ConfigError


class Names(StrEnum):
    """What the text of a setting stands for, in addition to itself. The content of what it names decides the result too, but for evidence."""

    INPUT = "input"
    """A file, a folder, a hub name, or ``stage:NAME``."""
    TEXT_OR_FILE = "text or file"
    """A file where there is one of that name, else just text."""
    FUNCTION = "function"
    """``package.module:function`` or ``path/to/file.py:function``."""
    EVIDENCE = "evidence"
    """A file that says how far something can be relied on, such as a judge's certificate: what a stage results in is the same without."""


ROWS_NAME = r"^(?!stage:)(?:[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*|[^:\n]+\.py):[A-Za-z_]\w*\Z"
"""Rows that Python gives instead of a file: ``package.module:Rows`` or ``path/to/file.py:Rows``."""
FUNCTION = re.compile(r"^(?P<module>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*|.+\.py):(?P<name>[A-Za-z_]\w*)$")
"""``package.module:function`` or ``path/to/file.py:function``."""
LONGEST_FILE_NAME = 255
"""Bytes of a part of a path, on every file system in use."""


def _possible_path(text: str) -> str:
    """Refuse a path that no file can have, by its setting; the system would say so of wherever it is first looked for."""
    longest = max(len(part.encode("utf-8", "surrogatepass")) for part in text.split("/"))
    if longest > LONGEST_FILE_NAME:
        raise ValueError(f"a file's name has at most {LONGEST_FILE_NAME} bytes; this one has {longest}")
    return text


FilePath = Annotated[str, AfterValidator(_possible_path)]
InputPath = Annotated[FilePath, Names.INPUT]
TextOrFile = Annotated[str, Names.TEXT_OR_FILE]
FunctionName = Annotated[FilePath, Names.FUNCTION]
EvidencePath = Annotated[FilePath, Names.EVIDENCE]


class BaseConfig(BaseModel):
    """Base of all config classes: immutable, and a misspelled key is an error."""

    model_config = ConfigDict(
        defer_build=True,  # of a hundred classes a command needs a few
        frozen=True,
        extra="forbid",
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

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler, /) -> CoreSchema:
        """How pydantic validates this class."""
        schema: CoreSchema = with_meant_numbers(handler(source))
        return schema

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler, /) -> dict[str, Any]:
        """How pydantic describes this class in a JSON schema."""
        schema = handler(core_schema)
        properties = handler.resolve_ref_schema(schema).get("properties", {})
        for name, field in described_fields(cls).items():
            if field.description is not None and name in properties:
                properties[name]["description"] = field.description
        return schema

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

    @classmethod
    def left_unchecked(cls, tree: Mapping[str, Any]) -> list[str]:
        """Complaints about the whole of settings whose parts are wrong already, as far as the plain tree shows them."""
        return []

    def differs(self, name: str) -> bool:
        """Whether a setting is not its class's default: one that only a written-out recipe gives was chosen by nobody."""
        default: Any = type(self).model_fields[name].get_default(call_default_factory=True)
        return bool(getattr(self, name) != default)

    def updated(self, **changes: Any) -> Self:
        """A validated copy with some fields changed (``model_copy`` would not validate).

        Raises:
            ConfigError: With every complaint, one a line.
        """
        given = {name: getattr(self, name) for name in self.model_fields_set}
        return type(self).of({**given, **changes}, source=f"The changed {type(self).__name__}")


class Kind(BaseConfig):
    """Settings of one of several kinds, which ``kind`` tells apart in a recipe."""

    if TYPE_CHECKING:  # every kind says which it is; here the field would come before a kind's own
        kind: str

    @classmethod
    def kind_name(cls) -> str:
        """What ``kind`` says in a recipe."""
        name: str = typing.get_args(cls.model_fields["kind"].annotation)[0]
        return name


def named_things(config: BaseConfig) -> Iterator[tuple[tuple[str, ...], str, Names]]:
    """(place, text, what it names) of every text in ``config``, however deep, that names a file, a stage or a function."""
    for name, kind in _markers(type(config)).items():
        yield from _named(getattr(config, name), (name,), kind)


@functools.cache
def _markers(settings: type[BaseConfig]) -> dict[str, Names | None]:
    """What texts in each field of a class name."""
    return {
        name: next((item for item in field.metadata if isinstance(item, Names)), None) or _marker(field.annotation)
        for name, field in settings.model_fields.items()
    }


def _named(value: Any, place: tuple[str, ...], kind: Names | None) -> Iterator[tuple[tuple[str, ...], str, Names]]:
    if isinstance(value, BaseConfig):
        for inner, text, names in named_things(value):
            yield (*place, *inner), text, names
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _named(item, (*place, str(key)), kind)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _named(item, (*place, str(index)), kind)
    elif isinstance(value, str) and kind is not None:
        is_code = kind is Names.INPUT and re.match(ROWS_NAME, value) is not None
        yield place, value, Names.FUNCTION if is_code else kind


def _marker(annotation: Any) -> Names | None:
    """The marker inside a type such as ``InputPath | list[InputPath] | None``; a field has one at most."""
    if isinstance(annotation, Names):
        return annotation
    if typing.get_origin(annotation) is typing.Literal:
        return None
    return next((marker for inner in typing.get_args(annotation) if (marker := _marker(inner)) is not None), None)


SHORT_FORMS = {
    **dict.fromkeys(("model", "policy", "baseline", "reference", "teacher", "candidate"), "path"),
    "engine": "kind",
    "launch": "launcher",
    "environment": "source",
    **dict.fromkeys(("data", "prompts"), "path"),
}
"""Sections that may be written as one text, and the key that the text is the value of: ``model: PATH`` is ``model: {path: PATH}``."""
WRITTEN_AS_TEXTS = {"reward": "rlhf.config.rewards:settings_of_text"}
"""Sections that may be written as one text that decides itself which key it is the value of, and the function that knows, by text."""
SWITCHES = ("lora",)
"""Sections that ``true`` stands for with their defaults."""


def apply_overrides(tree: dict[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """A copy of ``tree`` with ``key.sub=value`` items applied in order; values are YAML.

    A section in its short form keeps what other items say of the inside: ``model.lora.rank=8`` and ``model=PATH`` may come in any
    order.

    Raises:
        ConfigError: An item without ``=``, or one that goes through a value as if it were a section.
    """
    tree = _copy(tree)
    _apply_all(tree, list(overrides))
    return tree


def _apply_all(tree: dict[str, Any], items: Sequence[str]) -> None:
    for place, item in enumerate(items):
        stands_for = _apply(tree, item)
        if stands_for is not None:
            section = item.partition("=")[0]
            same = tuple(f"{section}.{key}=" for key in stands_for)
            inside = [
                other for other in items[:place] if other.startswith(f"{section}.") and not other.startswith(same)
            ]
            _apply_all(tree, inside)


def _apply(tree: dict[str, Any], item: str) -> dict[str, Any] | None:
    """Apply one override in place; gives the section that its value stands for, where that is a short form."""
    dotted, equals, text = item.partition("=")
    *parents, leaf = dotted.split(".")
    if not equals or not all(key and key == key.strip() for key in (*parents, leaf)):
        raise ConfigError(
            f"Override {shortened(item)!r} is not of the form key.subkey=value. Keys are joined by single dots, without spaces."
        )
    node: Any = tree
    for key in parents:
        node = _step(node, key, item)
    value = parse_yaml(text, f"The value of override {shortened(item)!r}")
    if isinstance(node, list):
        node[_index(node, leaf, item)] = value
    else:
        node[leaf] = value
    return _long_form(leaf, value)


def _step(node: Any, key: str, item: str) -> Any:
    if isinstance(node, list):
        return node[_index(node, key, item)]
    if node.get(key) is None:
        node[key] = {}
    child = node[key]
    if (section := _long_form(key, child)) is not None:
        names_kind = key in WRITTEN_AS_TEXTS and item.partition("=")[0].endswith(f"{key}.kind")
        child = node[key] = (
            {} if names_kind else section
        )  # the text may be the value of a key that another kind does not have
    if not isinstance(child, dict | list):
        is_file = isinstance(child, str) and child.endswith((".yaml", ".yml"))
        raise ConfigError(
            f"Override {shortened(item)!r}: {key!r} holds the value {child!r}, not a section of keys; "
            f"{'change that file, or ' if is_file else ''}replace it as a whole, as in {key}={{...}}."
        )
    return child


def _long_form(key: str, value: Any) -> dict[str, Any] | None:
    """The section that a value stands for; None where it is not a short form."""
    if isinstance(value, str) and key in SHORT_FORMS:
        return {SHORT_FORMS[key]: value}
    if isinstance(value, str) and key in WRITTEN_AS_TEXTS:
        module, _, function = WRITTEN_AS_TEXTS[key].partition(":")
        section: dict[str, Any] = getattr(importlib.import_module(module), function)(value)
        return section
    return {} if value is True and key in SWITCHES else None


def _index(node: list[Any], key: str, item: str) -> int:
    if not (key.isascii() and key.isdigit()) or int(key) >= len(node):
        raise ConfigError(
            f"Override {shortened(item)!r}: {key!r} is not a place in a list of {len(node)}; count from 0."
        )
    return int(key)


def _copy(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _copy(v) for k, v in value.items()}
    return [_copy(v) for v in value] if isinstance(value, list) else value


def _refusal(cls: type[BaseModel], tree: Mapping[str, Any], err: ValidationError, *, source: str) -> ConfigError:
    lines = complaints(cls, tree, err)
    if issubclass(cls, BaseConfig) and all(
        error["loc"] for error in err.errors(include_url=False, include_input=False)
    ):
        # No complaint about the whole: what looks at the whole did not run. Users should not have to fix a file in two rounds.
        unknown = tuple(line.partition(UNKNOWN_KEY)[0] for line in lines if UNKNOWN_KEY in line)
        lines += [line for line in cls.left_unchecked(tree) if not is_inside(line, unknown)]
    return refusal(source, lines)


UNKNOWN_KEY = ": unknown key"
"""What follows the place in a complaint about a key that does not exist, as ``rlhf.config.error_messages`` words it."""


def is_inside(line: str, places: Iterable[str]) -> bool:
    """Whether a complaint is about one of these places, or about something inside it."""
    own = re.split(r"[:\s]", line, maxsplit=1)[0]
    return any(f"{own}.".startswith(f"{place}.") for place in places)


def refusal(source: str, lines: Iterable[str]) -> ConfigError:
    """The error that holds every complaint, one a line."""
    return ConfigError(f"{source} is not valid:" + "".join(f"\n  {line}" for line in lines))
