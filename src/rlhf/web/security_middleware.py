"""Before and behind every request: whom it may be addressed to, how large it may be, and what a browser may do with the answer."""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Awaitable, Callable

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

log = logging.getLogger("rlhf.web")

CONTENT_SECURITY_POLICY = (
    "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'"
)
SECURITY_HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # not no-referrer: with that a browser sends our own forms with `Origin: null`
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Robots-Tag": "noindex",
}
ROOT = "rlhf.root"
"""Where in a request's scope it stands what our paths begin with, if the app is mounted in another one."""
ErrorPage = Callable[[Request, int, str], Response]


class Shield:
    """The outermost layer.

    Args:
        app: What is inside.
        host_names: Names that the server answers to. A page of another site can make its own name point to this machine
            (DNS rebinding) and would then be of our origin for the browser; the name it was asked under gives it away.
        max_body_bytes: Of one request.
        is_https: Whether browsers are to come by https only from now on.
        error_page: Makes an answer of a status and a sentence.
        inline_styles: Whether pages may style their own elements, as plots in SVG do.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        host_names: frozenset[str],
        max_body_bytes: int,
        is_https: bool,
        error_page: ErrorPage,
        inline_styles: bool = False,
    ) -> None:
        self.app = app
        self.host_names, self.max_body_bytes, self.error_page = host_names, max_body_bytes, error_page
        self.headers = dict(SECURITY_HEADERS)
        if inline_styles:
            self.headers["Content-Security-Policy"] += "; style-src 'self' 'unsafe-inline'"
        if is_https:
            self.headers["Strict-Transport-Security"] = "max-age=31536000"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = False
        scope[ROOT] = scope.get("root_path", "")  # before mounts of ours add to it
        is_static = scope["path"].removeprefix(scope[ROOT]).startswith("/static/")

        async def send_with_headers(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                headers = MutableHeaders(scope=message)
                for name, value in self.headers.items():
                    headers[name] = value
                if not is_static:
                    headers["Cache-Control"] = "no-store"
            await send(message)

        request = Request(scope)
        refusal = self._refusal(Headers(scope=scope))
        if refusal is not None:
            await self.error_page(request, *refusal)(scope, receive, send_with_headers)
            return
        try:
            await self.app(scope, self._counted(receive), send_with_headers)
        except ClientDisconnect:
            return  # half a request, whose sender is gone or was too slow
        except Exception:
            log.exception("%s %s failed", scope["method"], scope["path"])
            if started:
                raise  # half an answer is out; the connection breaks, which says enough
            answer = self.error_page(request, 500, "Something went wrong on our side; the owner's terminal says what.")
            await answer(scope, receive, send_with_headers)

    def _refusal(self, headers: Headers) -> tuple[int, str] | None:
        host = headers.get("host", "")
        if not self._is_ours(host):
            return (
                400,
                f"This server does not answer to the name {host[:100]!r}; its owner can give it one (--public-url).",
            )
        length = headers.get("content-length", "0")
        if not length.isdecimal():
            return 400, "The request's length is not a number."
        if int(length) > self.max_body_bytes:
            return 413, self._too_large()
        return None

    def _is_ours(self, host: str) -> bool:
        name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
        name = name.strip("[]").lower()
        if name in self.host_names:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True  # digits: no name that somebody could have pointed here

    def _counted(self, receive: Receive) -> Callable[[], Awaitable[Message]]:
        """Count what comes without a length, or longer than it said."""
        got = 0

        async def counted() -> Message:
            nonlocal got
            message = await receive()
            got += len(message.get("body", b""))
            if got > self.max_body_bytes:
                raise HTTPException(413, self._too_large())
            return message

        return counted

    def _too_large(self) -> str:
        return f"That is too much for one request; at most {self.max_body_bytes:,} bytes are taken."
