"""Calls in plain text, for models without a chat template: a turn that ends in ``name(arguments)=``.

    calc(37*45)=               of a tool with one text as its parameter: the text itself
    add(a=1, b=2)=             of every other tool: Python's keyword arguments, each a literal

The sampler's ``stop: [")="]`` ends a turn there. Results follow as they are, without a word around them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from typing import Any

from rlhf.rollout.tool_formats.tool_call import MalformedCallError, ToolCall, ToolFormat, Tools

END = ")="
NAME = re.compile(r"[A-Za-z_]\w*$")


def calls_of(text: str, tools: Tools) -> Sequence[ToolCall]:
    """See ``ToolFormat.calls``; a turn has one at most, at its end."""
    if not text.endswith(END):
        return []
    before, opened, inside = text[: -len(END)].rpartition("(")
    if not opened or ")" in inside:
        return []
    # "itcalc(" calls `calc`: a small model does not always leave a space
    name = max((known for known in tools if before.endswith(known)), key=len, default=None)
    if name is None:
        written = NAME.search(before)
        if written is None:
            return []
        return [ToolCall(written[0], {})]
    only = _only_text(tools[name])
    return [ToolCall(name, {only: inside} if only is not None else _keywords(name, inside))]


def _only_text(schema: Mapping[str, Any]) -> str | None:
    """The one parameter of a tool that has one, and that is a text."""
    properties = schema["function"].get("parameters", {}).get("properties", {})
    if len(properties) == 1:
        ((name, about),) = properties.items()
        if about.get("type") == "string":
            return str(name)
    return None


def _keywords(name: str, inside: str) -> dict[str, Any]:
    try:
        tree = ast.parse(f"f({inside})", mode="eval").body
        assert isinstance(tree, ast.Call)
        if tree.args or any(keyword.arg is None for keyword in tree.keywords):
            raise ValueError
        if len({keyword.arg for keyword in tree.keywords}) < len(
            tree.keywords
        ):  # Python's compiler refuses that, its parser does not
            raise ValueError
        return {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in tree.keywords}
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError, AssertionError):
        raise MalformedCallError(
            f"{name} is called with keywords, each once, and literals, as in {name}(a=1)=."
        ) from None


PLAIN = ToolFormat(about="add(a=1)=", recognizes=lambda template: False, calls=calls_of)
"""No template is recognized: it is for prompts in plain text, or asked for by name."""
