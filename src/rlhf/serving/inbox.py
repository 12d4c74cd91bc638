"""From the engine's thread to the coroutine that answers a request."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from rlhf.serving.generation import Event, Failed


class Inbox:
    """The events of all requests, each kept for the coroutine that waits for them."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._queues: dict[str, asyncio.Queue[Event]] = {}

    def open(self) -> None:
        """Called in the loop that answers."""
        self._loop = asyncio.get_running_loop()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop that answers."""
        assert self._loop is not None, "the server has not begun"
        return self._loop

    def deliver(self, events: list[tuple[str, Event]]) -> None:
        """Called in the engine's thread."""
        if events and self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                self._loop.call_soon_threadsafe(self._put, events)

    def expect(self, request_id: str) -> None:
        """Events of this request are kept from now on."""
        self._queues[request_id] = asyncio.Queue()

    def fail(self, request_id: str, failed: Failed) -> None:
        """Put an end to a request from this side."""
        self._put([(request_id, failed)])

    async def events(self, request_id: str) -> AsyncIterator[Event]:
        """What comes of a request; ends never by itself."""
        queue = self._queues[request_id]
        while True:
            yield await queue.get()

    def forget(self, request_id: str) -> None:
        """Nobody waits for it any more."""
        self._queues.pop(request_id, None)

    def _put(self, events: list[tuple[str, Event]]) -> None:
        for request_id, event in events:
            if (queue := self._queues.get(request_id)) is not None:
                queue.put_nowait(event)
