"""Prompts are read (templates, tokens) beside the loop that answers; long ones one after another, at low priority.

A prompt of megabytes takes a tokenizer seconds. What begins with more tokens than the model takes is refused by its beginning, whatever
its length. What is left over takes turns in a thread of its own, so that short prompts and streams go on beside it.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from rlhf.serving.served_policy import ServedPolicy

LONG_CHARACTERS = 50_000
"""From here on a prompt is a long one: a tenth of a second and more."""
CHARACTERS_A_TOKEN = 8
"""Of the first look at a text that may be too long; the next ones take four times as much each."""
NICENESS = 10
Result = TypeVar("Result")


def lower_priority() -> None:
    """Of the calling thread, where the system gives threads one of their own."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)


@functools.cache
def _long_prompts() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix="rlhf-long-prompts", initializer=lower_priority)


async def beside_streams(size: int, read: Callable[[], Result]) -> Result:
    """Do in a thread what would hold the loop up.

    Args:
        size: Characters or tokens of the prompts.
        read: What is done.
    """
    if size < LONG_CHARACTERS:
        return await asyncio.to_thread(read)
    return await asyncio.get_running_loop().run_in_executor(_long_prompts(), read)


def size_of(prompts: Sequence[Any]) -> int:
    """Characters of texts and messages, tokens of ids; about."""
    return sum(_size(prompt) for prompt in prompts)


def _size(value: Any) -> int:
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(map(_size, value.values()))
    if isinstance(value, list):
        return len(value) if value and isinstance(value[0], int) else sum(map(_size, value))
    return 1


def is_surely_too_long(model: ServedPolicy, text: str) -> bool:
    """Whether the beginning of a text has twice the tokens that the model takes: the rest need not be read to know.

    Twice, as the token in which a beginning ends may be another one in the whole text.
    """
    size = CHARACTERS_A_TOKEN * model.context
    while size < len(text):
        ids = model.tokenizer(text[:size], add_special_tokens=False, verbose=False)["input_ids"]
        if len(ids) > 2 * model.context:
            return True
        size *= 4
    return False
