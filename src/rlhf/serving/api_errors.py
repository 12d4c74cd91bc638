"""Refusals in the form that OpenAI's clients read: ``{"error": {"message", "type", "param", "code"}}``.

Source: https://platform.openai.com/docs/guides/error-codes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

TYPES: Mapping[int, str] = {
    401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error",
    503: "service_unavailable_error",
}  # fmt: skip
"""The others are ``invalid_request_error`` below 500, and ``server_error``."""

STATUS_CODES: Mapping[int, str] = {
    400: "invalid_request", 404: "unknown_url", 405: "method_not_allowed", 413: "request_too_large", 500: "internal_error",
}  # fmt: skip
"""The code of a refusal that comes from outside the routes."""


class APIError(Exception):
    """A request that is not answered.

    Args:
        status: Of HTTP.
        message: What is wrong and what to do.
        code: One word for programs, such as ``model_not_found``.
        param: The key of the request that is wrong.
        retry_after: Seconds after which it may be sent again.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.code, self.param, self.retry_after = status, message, code, param, retry_after

    def body(self) -> dict[str, Any]:
        """What is sent."""
        error = {
            "message": self.message,
            "type": TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error"),
            "param": self.param,
            "code": self.code,
        }
        return {"error": error}


def error_response(err: APIError) -> Response:
    """The answer."""
    headers = {"Retry-After": str(err.retry_after)} if err.retry_after is not None else {}
    if err.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse(err.body(), err.status, headers)


def plain_error(_: Request, status: int, sentence: str) -> Response:
    """Of a refusal that comes from outside the API, such as the shield's."""
    return error_response(
        APIError(status, sentence.encode("utf-8", "backslashreplace").decode(), code=STATUS_CODES.get(status))
    )
