"""What pydantic found wrong, in the words of anyone who wrote the settings.

Pydantic's place of an error runs through its own constructions: the tag of a union, the label of an alternative, the
list that a single value was made into. Walking the input along with it leaves the keys that the user wrote.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

from pydantic import BaseModel, ValidationError

from rlhf.config.lazy_union import LazyUnion, lazy_union
from rlhf.errors import did_you_mean

TAG = "kind"
"""The key that tells the members of a union apart, in every config class but judges."""
TAGS = (TAG, "type", "launcher")
"""And in those: a judge may be of a kind of reward, and a recipe's `launch` says its launcher."""

Place = tuple[str | int, ...]
MOST_SHOWN = 80
"""Characters of a wrong value that are shown."""
MOST_BITS = 256
"""Of a whole number that is shown; Python refuses to write out a much longer one."""
MOST_SUGGESTED = 3
"""Places that a key may have been meant for."""
A_REWARD = (
    "a Python function (path/to/file.py:function or package.module:function), a reward model (stage:NAME, its folder, or OWNER/NAME "
    "on the hub), a service (http://HOST/PATH), rules, or settings with a kind"
)
"""What a reward or a judge may be."""
EXAMPLES: Mapping[str | int, str] = {"reward": f"; give {A_REWARD}", "judge": f"; give {A_REWARD}"}
"""What a required key may be, where its name does not say it."""
NO_SECTION = ("model_type", "model_attributes_type", "dict_type")


@runtime_checkable
class GivesHints(Protocol):
    """A class of settings that knows more of a wrong word than that it is wrong."""

    @classmethod
    def hint_on(cls, key: str, word: str) -> str:
        """What follows the refusal of ``word`` for the setting ``key``; empty where there is nothing to add."""
        ...


@runtime_checkable
class AnswersKeys(Protocol):
    """A class of settings that knows where some of the keys belong that it does not have."""

    @classmethod
    def hint_on_key(cls, key: str) -> str:
        """What follows "unknown key." for ``key``; empty where there is nothing to add."""
        ...


def complaints(root: type[BaseModel], tree: Mapping[str, Any], err: ValidationError) -> list[str]:
    """One line for each place that is wrong: the dotted key, what is wrong, what was got.

    Args:
        root: The class that was asked for.
        tree: The settings as the user gave them.
        err: What validating them raised.
    """
    by_place: dict[Place, list[str]] = {}
    got: dict[Place, str] = {}
    for error in err.errors(include_url=False):
        place, message, value = _complaint(root, tree, error)
        messages = by_place.setdefault(place, [])
        messages += [message] if message not in messages else []
        got[place] = value
    lines = []
    for place, messages in by_place.items():
        if any(other[: len(place)] == place for other in by_place if other != place):
            continue  # another alternative of a union; the complaint inside the one that fits says more
        where = ".".join(_printable(str(part)) for part in place)
        lines += [f"{where}: {' or '.join(messages)}{got[place]}"] if where else messages[0].splitlines()
    return lines


def _examples(root: type[BaseModel], place: Place) -> str:
    """What a required key may be: the examples of its own field, else those of all keys of its name."""
    key = place[-1] if place else ""
    own = root.model_fields[str(key)].examples if len(place) == 1 and key in root.model_fields else None
    return f"; for example {', '.join(map(str, own))}" if own else EXAMPLES.get(key, "")


def _complaint(root: type[BaseModel], tree: Mapping[str, Any], error: Any) -> tuple[Place, str, str]:
    """Place, message, and what was got, if that is worth showing."""
    place, context = _place(tree, error), error.get("ctx", {})
    match error["type"]:
        case "extra_forbidden":
            return place, f"unknown key.{_hint(root, tree, place)}", ""
        case "missing":
            return place, f"this key is required{_examples(root, place)}.", ""
        case "invalid_key":
            key = error["input"]
            hint = _quote_it("string_type", key).replace("write text", "write it")
            return tuple(error["loc"][:-1]), f"the key {key!r} is not text{hint}", ""
        case "union_tag_not_found":
            # A misspelled section, most often one that an override made.
            near = did_you_mean(str(place[-1]), _siblings(tree, place)) if place else ""
            return (*place, _tag(context)), f"missing `{_tag(context)}`, which says what the section is.{near}", ""
        case "union_tag_invalid":
            known = sorted(tag.strip("' ") for tag in context["expected_tags"].split(","))
            tag = _tag(context)
            meant = _word_hint(root, tree, (*place, tag), context["tag"])
            near = f" {meant[0].upper()}{meant[1:]}." if meant else did_you_mean(context["tag"], known)
            return (*place, tag), f"unknown {tag} {context['tag']!r}.{near} Known: {', '.join(known)}.", ""
        case "too_short" | "too_long" as kind:
            least = kind == "too_short"
            wanted = context["min_length" if least else "max_length"]
            items = "item" if wanted == 1 else "items"
            return (
                place,
                f"should have at {'least' if least else 'most'} {wanted} {items}, and has {context['actual_length']}",
                "",
            )
        case kind:
            message = "should hold keys and values" if kind in NO_SECTION else error["msg"]
            message = message.removeprefix("Value error, ").removeprefix("Input ")
            return (
                place,
                message,
                _got(error["input"]) + _quote_it(kind, error["input"]) + _value(root, tree, place, error),
            )


def _value(root: type[BaseModel], tree: Mapping[str, Any], place: Place, error: Any) -> str:
    """What stands for a word of another library, or for one that belongs to another setting."""
    word = error["input"]
    if error["type"] != "literal_error" or not isinstance(word, str):
        return ""
    from rlhf.config.foreign_keys import VALUES  # here: tables that only a mistake needs

    meant = f"that is `{VALUES[word]}` here" if word in VALUES else _word_hint(root, tree, place, word)
    return f"; {meant}" if meant else ""


def _word_hint(root: type[BaseModel], tree: Mapping[str, Any], place: Place, word: str) -> str:
    """What the classes that may have the key at ``place`` say of a word that it does not take."""
    hints = (
        model.hint_on(str(place[-1]), word)
        for model in _models_at(root, tree, place[:-1])
        if issubclass(model, GivesHints)
    )
    return next(filter(None, hints), "")


def _hint(root: type[BaseModel], tree: Mapping[str, Any], place: Place) -> str:
    """What may have been meant by a key that is not there, and what is here instead of another library's."""
    from rlhf.config.foreign_keys import answer, elsewhere  # here: tables that only a mistake needs

    name, known = str(place[-1]), _known_keys(root, tree, place[:-1])
    if theirs := answer(name, known):
        return theirs
    if deeper := _deeper(root, tree, place):
        return f" Did you mean {' or '.join(map(repr, deeper))}?"
    hints = (m.hint_on_key(name) for m in _models_at(root, tree, place[:-1]) if issubclass(m, AnswersKeys))
    if hint := next(filter(None, hints), ""):
        return f" {hint}"
    return elsewhere(name) or did_you_mean(name, known)


def _deeper(root: type[BaseModel], tree: Mapping[str, Any], place: Place) -> list[str]:
    """Keys of this name two sections down, where a key stands at the top: `ppo.kl.coef` for `stages.ppo.kl.coef`."""
    if len(place) != 1 or not isinstance(place[0], str):
        return []
    paths = []
    for outer, section in tree.items():
        if outer == place[0] or not isinstance(section, Mapping):
            continue
        if place[0] in section:
            paths.append((outer, *_only_path(tree, place)))
            continue
        for inner, node in section.items():
            if isinstance(node, Mapping) and place[0] in _known_keys(root, tree, (outer, inner)):
                paths.append((outer, inner, *_only_path(tree, place)))
    return [".".join(map(str, path)) for path in paths[:MOST_SUGGESTED]]


def _only_path(tree: Mapping[str, Any], place: Place) -> Iterator[str]:
    """The key at the top and those below it, as long as each is the only one."""
    node: Any = tree
    key = place[0]
    while True:
        yield str(key)
        node = node[key]
        if not isinstance(node, Mapping) or len(node) != 1:
            return
        (key,) = node


def _got(value: Any) -> str:
    if isinstance(value, int) and value.bit_length() > MOST_BITS:
        return f" (got a number of {value.bit_length():,} bits)"
    if isinstance(value, str | int | float | bool | None):
        return f" (got {shortened(repr(value))})"
    if isinstance(value, list | tuple):
        return " (got a list)"
    return ""


def shortened(text: str) -> str:
    """The beginning of a long text."""
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."


def _quote_it(kind: str, value: Any) -> str:
    """A hint for what YAML takes for something else than text."""
    if kind != "string_type" or not isinstance(value, bool | int | float):
        return ""
    what = "takes on, off, yes and no for true and false" if isinstance(value, bool) else "takes it for a number"
    return f"; YAML {what}: write text in quotes"


def _siblings(tree: Mapping[str, Any], place: Place) -> list[str]:
    """The other keys in the section of a place."""
    node: Any = tree
    for part in place[:-1]:
        node = node[part]
    return [str(key) for key in node if key != place[-1]] if isinstance(node, Mapping) else []


def _place(tree: Mapping[str, Any], error: Any) -> Place:
    """The keys and list positions of an error that are there in the user's settings."""
    place: list[str | int] = []
    node: Any = tree
    is_there = False
    tag_seen = _has(node, next(iter(error["loc"]), ""))  # a key of the root, also where its own tag is the same word
    for part in error["loc"]:
        is_tag = isinstance(node, Mapping) and part in (node.get(tag) for tag in TAGS) and not tag_seen
        is_there = not is_tag and _has(node, part)
        if not is_there:
            tag_seen = is_tag
            continue
        place.append(part)
        node, tag_seen = node[part], False
    if error["type"] == "missing" and not is_there:  # it may be there as null
        place.append(error["loc"][-1])
    return tuple(place)


def _has(node: Any, part: str | int) -> bool:
    if isinstance(node, Mapping):
        return part in node
    return isinstance(node, list | tuple) and isinstance(part, int) and part < len(node)


def _known_keys(root: type[BaseModel], tree: Mapping[str, Any], place: Place) -> list[str]:
    """Keys that the section at ``place`` may have."""
    return list(dict.fromkeys(name for model in _models_at(root, tree, place) for name in model.model_fields))


def _models_at(root: type[BaseModel], tree: Mapping[str, Any], place: Place) -> list[type[BaseModel]]:
    """Classes that the section at ``place`` may be of."""
    kinds: list[Any] = [root]
    node: Any = tree
    for part in place:
        node = node[part]
        kinds = _that_fit(node, [inner for kind in kinds for inner in _inside(kind, part)])
    return _that_fit(node, [model for kind in kinds for model in _models(kind)])


def _that_fit(node: Any, kinds: list[Any]) -> list[Any]:
    """Of the members of a union, the one that the section's tag names; all where it names none."""
    tags = [node[tag] for tag in TAGS if node.get(tag) is not None] if isinstance(node, Mapping) else []
    named = [cls for kind in kinds for cls in _named_classes(kind, tags)]
    return [kind for kind in named if any(tag in _tags(kind) for tag in tags)] or named


def _named_classes(kind: Any, tags: list[Any]) -> list[Any]:
    """Of a lazy union the class that a tag names, or all where none does; any other type by itself."""
    if not isinstance(kind, LazyUnion):
        return [kind]
    return [kind.classes[tag] for tag in tags if tag in kind.classes] or list(kind.classes.values())


def _tag(context: Mapping[str, Any]) -> str:
    """The key that tells the members of a union apart."""
    return str(context["discriminator"]).strip("'")


def _tags(kind: Any) -> tuple[Any, ...]:
    fields = kind.model_fields if isinstance(kind, type) and issubclass(kind, BaseModel) else {}
    return tuple(value for tag in TAGS if tag in fields for value in typing.get_args(fields[tag].annotation))


def _inside(kind: Any, part: str | int) -> list[Any]:
    """Types that the value under a key may have."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return _alternatives(kind.model_fields[part].annotation) if part in kind.model_fields else []
    return _alternatives(typing.get_args(kind)[-1]) if typing.get_args(kind) else []


def _alternatives(annotation: Any) -> list[Any]:
    """The members of a union; any other type by itself, and a lazy union too."""
    if (lazy := lazy_union(annotation)) is not None:
        return [lazy]
    if typing.get_origin(annotation) is typing.Annotated:
        return _alternatives(typing.get_args(annotation)[0])
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return [inner for member in typing.get_args(annotation) for inner in _alternatives(member)]
    return [annotation]


def _models(kind: Any) -> list[type[BaseModel]]:
    """BaseConfig classes in a type; those of its items, where a single value may stand for a list."""
    if isinstance(kind, LazyUnion):
        return list(kind.classes.values())
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return [kind]
    return [
        model
        for inner in typing.get_args(kind)
        for alternative in _alternatives(inner)
        for model in _models(alternative)
    ]


def _printable(key: str) -> str:
    """A key as it stands, unless it holds what a terminal would act on instead of showing it."""
    return key if key.isprintable() else repr(key)[1:-1]
