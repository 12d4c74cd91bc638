"""What a chat template may leave out of a dialogue, by name."""

from __future__ import annotations

from typing import Literal, get_args

LostField = Literal["content", "reasoning", "tool_calls", "tools"]
"""``content``     what a message says
``reasoning``   what the assistant thought: ``reasoning``, ``reasoning_content``, ``thinking`` or ``reasoningContent`` of a message, and
                ``<think>...</think>`` in its content
``tool_calls``  what the assistant calls
``tools``       the column of that name: what there is to call"""

LOST_FIELDS: tuple[LostField, ...] = get_args(LostField)
