"""A call of a tool as a policy writes it, and what every family's format has."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlhf.data.strict_json import RefusedJsonError, decode

Tools = Mapping[str, Mapping[str, Any]]
"""Name of a tool -> its JSON schema, ``{"type": "function", "function": {...}}``."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """What the policy asks of a tool."""

    name: str
    arguments: Mapping[str, Any]


class MalformedCallError(Exception):
    """A turn begins a call and does not write it well; the text is for the policy. Not raised to callers."""


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """How a family of models writes calls."""

    about: str
    """An example, for messages and pages."""
    recognizes: Callable[[str], bool]
    """Whether a chat template is of this family."""
    calls: Callable[[str, Tools], Sequence[ToolCall]]
    """The calls of a turn; none where the policy calls nothing. Raises ``MalformedCallError``."""
    reads_special_tokens: bool = True
    """Whether the turn's text is read with its special tokens."""
    begins: str = ""
    """What the first call of a turn begins with, where a turn may hold a text before it."""


def read_object(text: str, what: str, wanted: Mapping[str, type]) -> dict[str, Any]:
    """A JSON object with exactly these keys.

    Args:
        text: JSON.
        what: Of what, for the message.
        wanted: Key -> type of its value.

    Raises:
        MalformedCallError: It is something else.
    """
    value = read_json(text, what)
    keys = " and ".join(f"{key!r}" for key in wanted)
    if not isinstance(value, dict) or value.keys() != wanted.keys():
        raise MalformedCallError(f"{what} must be a JSON object with {keys}, and nothing else.")
    for key, kind in wanted.items():
        if not isinstance(value[key], kind):
            name = "a text" if kind is str else "an object"
            raise MalformedCallError(f"{key!r} of {what} must be {name}.")
    return value


def read_json(text: str, what: str) -> Any:
    """The value of a whole text.

    Raises:
        MalformedCallError: It is not JSON.
    """
    try:
        return decode(text)
    except json.JSONDecodeError as err:
        raise MalformedCallError(f"{what} is not valid JSON: {err.msg} at character {err.pos}.") from None
    except RefusedJsonError as err:
        raise MalformedCallError(f"{what} is not valid JSON: {err}.") from None
