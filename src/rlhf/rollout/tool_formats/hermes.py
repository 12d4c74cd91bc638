"""Calls of Hermes and Qwen: each a JSON object between ``<tool_call>`` and ``</tool_call>``.

Source: the chat templates of NousResearch/Hermes-3-Llama-3.1-8B, Qwen/Qwen2.5-7B-Instruct and Qwen/Qwen3-8B.
"""

from __future__ import annotations

from collections.abc import Sequence

from rlhf.rollout.tool_formats.tool_call import MalformedCallError, ToolCall, ToolFormat, Tools, read_object

BEGIN, END = "<tool_call>", "</tool_call>"
THINKS, THOUGHT = "<think>", "</think>"


def calls_of(text: str, tools: Tools) -> Sequence[ToolCall]:
    """See ``ToolFormat.calls``; what a turn thinks calls nothing."""
    calls = []
    rest = text.rpartition(THOUGHT)[2].partition(THINKS)[0]
    while BEGIN in rest:
        _, _, rest = rest.partition(BEGIN)
        inside, closed, rest = rest.partition(END)
        if not closed or BEGIN in inside:
            raise MalformedCallError(f"A call that begins with {BEGIN} must end with {END}.")
        value = read_object(inside, f"the text between {BEGIN} and {END}", {"name": str, "arguments": dict})
        calls.append(ToolCall(value["name"], value["arguments"]))
    if END in rest:
        raise MalformedCallError(f"{END} ends a call that does not begin with {BEGIN}.")
    return calls


HERMES = ToolFormat(
    about='<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>',
    recognizes=lambda template: BEGIN in template and "<function=" not in template,
    calls=calls_of,
    begins=BEGIN,
)
"""The template of Qwen3-Coder has the same marks around another text, ``<function=``, and is not taken for this one."""
