"""Calls of Mistral: behind ``[TOOL_CALLS]``, a JSON list of objects, or in newer models ``name[ARGS]{...}`` for each.

Source: the chat templates of mistralai/Mistral-7B-Instruct-v0.3 and mistralai/Mistral-Small-3.2-24B-Instruct-2506 (mistral-common,
tokenizer versions 3 and 11).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from rlhf.rollout.tool_formats.tool_call import MalformedCallError, ToolCall, ToolFormat, Tools, read_json

BEGIN, ARGUMENTS, ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
END = re.compile(r"</s>\s*$")


def calls_of(text: str, tools: Tools) -> Sequence[ToolCall]:
    """Calls of a turn, as ``ToolFormat.calls`` has them."""
    _, begun, said = END.sub("", text).partition(BEGIN)
    if not begun:
        return []
    if said.lstrip().startswith("["):
        value = read_json(said, f"what follows {BEGIN}")
        return [_listed(item) for item in value] or _nothing()
    return [_named(part) for part in said.split(BEGIN)]


def _listed(item: Any) -> ToolCall:
    wanted = isinstance(item, dict) and {"name", "arguments"} <= item.keys() <= {"name", "arguments", "id"}
    if not wanted or not isinstance(item["name"], str) or not isinstance(item["arguments"], dict):
        raise MalformedCallError(
            f"Each call behind {BEGIN} must be an object with 'name', a text, and 'arguments', an object."
        )
    return ToolCall(item["name"], item["arguments"])


def _named(part: str) -> ToolCall:
    name, marked, arguments = part.partition(ARGUMENTS)
    name = name.partition(ID)[0].strip()
    if not marked or not re.fullmatch(r"[\w-]+", name):
        raise MalformedCallError(f"{BEGIN} is followed by a list of calls, or by the name of a tool and {ARGUMENTS}.")
    value = read_json(arguments, f"what follows {ARGUMENTS}")
    if not isinstance(value, dict):
        raise MalformedCallError(f"What follows {ARGUMENTS} must be an object.")
    return ToolCall(name, value)


def _nothing() -> list[ToolCall]:
    raise MalformedCallError(f"The list behind {BEGIN} is empty.")


MISTRAL = ToolFormat(
    about='[TOOL_CALLS] [{"name": "add", "arguments": {"a": 1}}]',
    recognizes=lambda template: BEGIN in template,
    calls=calls_of,
    begins=BEGIN,
)
