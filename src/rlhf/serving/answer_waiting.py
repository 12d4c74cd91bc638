"""Waiting in a coroutine for what a thread computes, as long as the client stays."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import Any, TypeVar

from starlette.requests import Request

from rlhf.errors import RLHFError
from rlhf.serving.api_errors import APIError
from rlhf.serving.scheduler import ClosedError, QueueFullError

Answer = TypeVar("Answer")


async def answered(request: Request, future: Future[Answer], seconds: float) -> Answer:
    """The future's result; it is canceled when the client leaves, or after so many seconds.

    Raises:
        APIError: It failed, and not by a fault of the request.
        RLHFError: It failed.
    """
    waiting = asyncio.wrap_future(future)
    leaving = asyncio.create_task(_gone(request))
    try:
        either: set[asyncio.Future[Any]] = {waiting, leaving}
        await asyncio.wait(either, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if waiting.done():
            return waiting.result()
        if leaving.done():
            raise APIError(503, "The request was canceled.", code="canceled")
        raise APIError(504, f"The request took longer than {seconds:g} seconds.", code="timeout")
    except (QueueFullError, ClosedError) as err:
        raise refused(err) from None
    except RLHFError:
        raise
    except (RuntimeError, MemoryError) as err:
        raise APIError(500, str(err) or type(err).__name__, code="crashed") from None
    finally:
        leaving.cancel()
        waiting.cancel()


def refused(err: QueueFullError | ClosedError) -> APIError:
    """What a client is told where there is no room, or no time left."""
    if isinstance(err, QueueFullError):
        return APIError(429, f"{err} Send it again in a moment.", code="queue_full", retry_after=1)
    return APIError(503, str(err), code="shutting_down", retry_after=5)


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
