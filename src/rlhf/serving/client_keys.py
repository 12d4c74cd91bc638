"""Who is asking: with keys, the program that a key belongs to; without, an address.

A key is a token of the preference store (`rlhf feedback token NAME`), of which only the hash is kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.requests import Request

from rlhf.serving.api_errors import APIError

if TYPE_CHECKING:
    from rlhf.store import PreferenceStore


def the_client(request: Request) -> str:
    """A name for the queue and for limits.

    Raises:
        APIError: 401, where keys are asked for and none, or a wrong one, came along; 429, where too many requests come.
    """
    state = request.app.state
    address = request.client.host if request.client else ""
    store: PreferenceStore | None = state.key_store
    if store is None:
        return address
    from rlhf.store import access

    scheme, _, secret = request.headers.get("authorization", "").partition(" ")
    name = (
        access.api_token_name(store.engine, secret.strip()) if scheme.lower() == "bearer" and secret.strip() else None
    )
    if name is None:
        if not state.limiter.hit(state.wrong_key_rate, "wrong-key", address):
            raise APIError(429, "Too many requests without a valid key.", code="rate_limit_exceeded", retry_after=60)
        raise APIError(
            401,
            "This server asks for a key: send it as `Authorization: Bearer KEY`. Its owner makes keys with `rlhf feedback token NAME`.",
            code="invalid_api_key",
        )
    if not state.limiter.hit(state.request_rate, "requests", name):
        raise APIError(
            429, f"The key of {name!r} has used up its requests for now.", code="rate_limit_exceeded", retry_after=10
        )
    return name
