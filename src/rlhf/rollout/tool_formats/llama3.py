"""Calls of Llama 3.1 to 3.3: the whole turn is one JSON object with ``name`` and ``parameters``.

Source: the chat templates of meta-llama/Llama-3.1-8B-Instruct and meta-llama/Llama-3.2-1B-Instruct.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from rlhf.rollout.tool_formats.tool_call import MalformedCallError, ToolCall, ToolFormat, Tools, read_object

TAG = "<|python_tag|>"
ENDS = re.compile(r"(<\|eot_id\|>|<\|eom_id\|>|<\|end_of_text\|>)\s*$")
OPENS = re.compile(r'\{\s*("(name|parameters)"|"type"\s*:\s*"function")')
"""The prompt lists its tools with ``"type": "function"``, which models copy."""


def calls_of(text: str, tools: Tools) -> Sequence[ToolCall]:
    """See ``ToolFormat.calls``; a turn has one at most, as in the template."""
    said = ENDS.sub("", text).strip()
    tagged = said.startswith(TAG)
    said = said.removeprefix(TAG).strip()
    if not tagged and not OPENS.match(said):
        if TAG in said:
            raise MalformedCallError(f"{TAG} is the start of a call, with nothing before it.")
        return []
    value = read_object(said, "a call", {"name": str, "parameters": dict})
    return [ToolCall(value["name"], value["parameters"])]


LLAMA3 = ToolFormat(
    about='{"name": "add", "parameters": {"a": 1}}',
    recognizes=lambda template: '"parameters": ' in template and "ipython" in template,
    calls=calls_of,
)
