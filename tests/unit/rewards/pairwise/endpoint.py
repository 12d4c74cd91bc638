"""A chat endpoint in a thread: what it says is decided by what it is asked."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from tests.unit.rewards.servers import Act, Handler

USAGE = {"prompt_tokens": 100, "completion_tokens": 10}


def chat(said: Any, *, finish: str = "stop", usage: Any = USAGE) -> bytes:
    choice = {"message": {"role": "assistant", "content": said}, "finish_reason": finish}
    return json.dumps({"choices": [choice], "usage": usage}).encode()


def completions_in(body: dict[str, Any]) -> tuple[str, str]:
    """The two that a request shows, in its order."""
    text = body["messages"][0]["content"]
    matched = [re.search(rf"<answer_{mark}>\n(.*?)\n</answer_{mark}>", text, re.DOTALL) for mark in "AB"]
    return tuple(match[1] for match in matched)


def judging(decide: Callable[[str, str], str | None], **options: Any) -> Act:
    def act(handler: Handler, body: dict[str, Any]) -> None:
        handler.send(chat(decide(*completions_in(body)), **options))

    return act


def longer(first: str, second: str) -> str:
    return f"I compared them.\n[[{'A' if len(first) > len(second) else 'B' if len(second) > len(first) else 'C'}]]"
