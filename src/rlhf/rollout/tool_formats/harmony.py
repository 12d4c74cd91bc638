"""Calls of gpt-oss: messages of the assistant that are addressed to ``functions.NAME`` and hold a JSON object.

Source: OpenAI 2025, "OpenAI Harmony Response Format", "Function calling", and the chat template of openai/gpt-oss-20b.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from rlhf.rollout.tool_formats.tool_call import MalformedCallError, ToolCall, ToolFormat, Tools, read_json

RECIPIENT = re.compile(r"\bto=(?P<name>[^\s<]+)")
ENDS = re.compile(r"<\|end\|>|<\|call\|>|<\|return\|>")
CALL = "<|call|>"
PREFIX = "functions."


def calls_of(text: str, tools: Tools) -> Sequence[ToolCall]:
    """See ``ToolFormat.calls``; other recipients than functions are tools that are not there."""
    calls = []
    for message in text.split("<|start|>"):
        header, begun, body = message.partition("<|message|>")
        recipient = RECIPIENT.search(header)
        if recipient is None:
            if CALL in message:
                raise MalformedCallError(
                    f"A message that ends with {CALL} must name its tool, as in to=functions.NAME."
                )
            continue
        name = recipient["name"]
        end = ENDS.search(body)
        if not begun or end is None or end[0] != CALL:
            raise MalformedCallError(
                f"The message to {name} must have <|message|> before its arguments and {CALL} behind them."
            )
        if body[end.end() :].strip():
            raise MalformedCallError(f"What follows {CALL} must begin with <|start|>.")
        value = read_json(body[: end.start()], f"the message to {name}")
        if not isinstance(value, dict):
            raise MalformedCallError(f"The message to {name} must be a JSON object.")
        calls.append(ToolCall(name.removeprefix(PREFIX), value))
    return calls


HARMONY = ToolFormat(
    about='<|channel|>commentary to=functions.add <|constrain|>json<|message|>{"a": 1}<|call|>',
    recognizes=lambda template: "<|channel|>" in template and "<|call|>" in template,
    calls=calls_of,
)
