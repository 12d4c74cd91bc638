"""How a policy writes calls of tools; one file for each family of models, and a line of the table."""

from __future__ import annotations

from rlhf.rollout.tool_formats.tool_call import MalformedCallError, ToolCall, ToolFormat
from rlhf.rollout.tool_formats.tool_format_table import TOOL_FORMATS, choose_tool_format

__all__ = ["TOOL_FORMATS", "MalformedCallError", "ToolCall", "ToolFormat", "choose_tool_format"]
