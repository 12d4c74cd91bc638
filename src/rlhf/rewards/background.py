"""Coroutines from code that is not async.

They run on one event loop in a separate thread for the life of the process, even if the caller is inside a
loop already (a notebook), and so that what a coroutine keeps for its next call, such as an HTTP client, still has its
loop then. Standard library only.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")

_lock = threading.Lock()
_loops: dict[int, asyncio.AbstractEventLoop] = {}
"""Process id -> its loop: a fork has the loop's memory without its thread."""


def run_async(work: Awaitable[T]) -> T:
    """Wait for an awaitable; an exception that interrupts the wait (Ctrl-C) cancels it."""
    future = asyncio.run_coroutine_threadsafe(_awaited(work), _loop())
    try:
        return future.result()
    except BaseException:
        future.cancel()  # without effect where the exception is the awaitable's own
        raise


async def _awaited(work: Awaitable[T]) -> T:
    return await work


def _loop() -> asyncio.AbstractEventLoop:
    with _lock:
        loop = _loops.get(os.getpid())
        if loop is None:
            loop = _loops[os.getpid()] = asyncio.new_event_loop()
            thread = threading.Thread(target=loop.run_forever, name="rlhf-async", daemon=True)
            thread.start()
            atexit.register(_stop, loop, thread)
        return loop


def _stop(loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    if loop is _loops.get(os.getpid()):
        loop.call_soon_threadsafe(loop.stop)
        thread.join(timeout=1)
        if not thread.is_alive():
            loop.close()
