"""Who is asking: with keys, the program that a key belongs to; without, an address.

A key is a token of the preference store (`rlhf feedback token NAME`), of which only the hash is kept. It may be for some routes only, and
have a limit of its own.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Literal

import limits
from fastapi import Depends
from starlette.requests import Request

from rlhf.serving.api_errors import APIError

if TYPE_CHECKING:
    from rlhf.store import PreferenceStore

Scope = Literal["completions", "scores", "feedback", "metrics", "shares"]
_rate = lru_cache(limits.parse)


def _client_with(scope: Scope | None) -> Callable[[Request], str]:
    """Lets in whose key has the scope; None for any key."""

    def the_client(request: Request) -> str:
        """A name for the queue and for limits.

        Raises:
            APIError: 401, where keys are asked for and none, or a wrong one, came along; 403, where it is for other routes; 429, where
                too many requests come.
        """
        state = request.app.state
        address = request.client.host if request.client else ""
        store: PreferenceStore | None = state.key_store
        if store is None:
            return address
        from rlhf.store import access

        kind, _, secret = request.headers.get("authorization", "").partition(" ")
        program = (
            access.program_of(store.engine, secret.strip()) if kind.lower() == "bearer" and secret.strip() else None
        )
        if program is None:
            if not state.limiter.hit(state.wrong_key_rate, "wrong-key", address):
                message = "Too many requests without a valid key."
                raise APIError(429, message, code="rate_limit_exceeded", retry_after=60)
            raise APIError(
                401,
                "This server asks for a key: send it as `Authorization: Bearer KEY`. Its owner makes keys with `rlhf feedback token NAME`.",
                code="invalid_api_key",
            )
        rate = _rate(program.requests) if program.requests is not None else state.request_rate
        if not state.limiter.hit(rate, "requests", program.name):
            again = state.limiter.get_window_stats(rate, "requests", program.name).reset_time - time.time()
            message = f"The key of {program.name!r} has used up its requests for now ({rate})."
            raise APIError(429, message, code="rate_limit_exceeded", retry_after=max(1, math.ceil(again)))
        if scope is not None and scope not in program.scopes:
            allowed = ", ".join(sorted(program.scopes))
            message = f"The key of {program.name!r} is for {allowed}, and not for {scope}; its owner can make one with --scope {scope}."
            raise APIError(403, message, code="insufficient_permissions")
        return program.name

    return the_client


AnyClient = Annotated[str, Depends(_client_with(None))]
CompletionsClient = Annotated[str, Depends(_client_with("completions"))]
ScoresClient = Annotated[str, Depends(_client_with("scores"))]
FeedbackClient = Annotated[str, Depends(_client_with("feedback"))]
MetricsClient = Annotated[str, Depends(_client_with("metrics"))]
SharesClient = Annotated[str, Depends(_client_with("shares"))]
