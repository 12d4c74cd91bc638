"""The application that a server's pages are added to, and how it refuses: in a page for a person, in JSON for a program."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import APIRouter, Depends, FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response

from rlhf.errors import RLHFError, StorageError
from rlhf.store import PreferenceStore
from rlhf.store.values import KeyTakenError
from rlhf.web import sign_in
from rlhf.web.auth import Gate, NotSignedIn, guard
from rlhf.web.security_middleware import ROOT, Shield, log
from rlhf.web.server_settings import WebSettings, signing_key
from rlhf.web.sign_in import error_page


def base_app(
    store: PreferenceStore,
    settings: WebSettings,
    routers: Sequence[APIRouter],
    *,
    key: bytes | None = None,
    static: str | None = None,
) -> FastAPI:
    """A server of a store, with sign-in and with what every request goes through.

    Args:
        store: Of people, at least.
        settings: Addresses, rates and how long things last.
        routers: The server's own pages and calls; ``rlhf.web.auth`` has the dependencies that say who is asking.
        key: That invitations are signed with; by default the file next to the store, made if it is not there.
        static: A package whose folder ``static`` is served, too, under ``/static``.

    Raises:
        StorageError: The key can't be made or read.
    """
    # no /docs: that page loads scripts from other hosts; no redirects that drop a slash: they would lose a POST
    app = FastAPI(
        title="rlhf",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
        dependencies=[Depends(guard)],
    )
    app.state.gate = Gate(store, settings, key or signing_key(store.engine))
    for router in (sign_in.router, *routers):
        app.include_router(router)
    folders: list[str | tuple[str, str]] = [("rlhf.web", "static")]
    if static is not None:
        folders.insert(0, (static, "static"))
    app.mount("/static", StaticFiles(packages=folders), name="static")
    app.add_exception_handler(HTTPException, _refused)
    app.add_exception_handler(RequestValidationError, _not_understood)
    app.add_exception_handler(RLHFError, _our_error)
    app.add_middleware(
        Shield, host_names=settings.host_names, max_body_bytes=settings.max_body_bytes, is_https=settings.is_https,
        error_page=answer_of,
    )  # fmt: skip
    return app


def wants_json(request: Request) -> bool:
    """Whether a program is asking, or our own page's script, and not a person's browser."""
    path = request.scope["path"].removeprefix(request.scope[ROOT])
    return path.startswith("/api/") or "text/html" not in request.headers.get("accept", "")


def answer_of(request: Request, status: int, sentence: str) -> Response:
    """An error, for anyone who asked: ``{"error": ...}`` for a program, a page for a person.

    A sentence may quote what was sent, half characters and all, which no answer could be made of.
    """
    sentence = sentence.encode("utf-8", "backslashreplace").decode()
    if wants_json(request):
        return JSONResponse({"error": sentence}, status)
    return error_page(request, status, sentence)


def _refused(request: Request, err: Exception) -> Response:
    assert isinstance(err, HTTPException)
    if isinstance(err, NotSignedIn) and not wants_json(request) and request.method == "GET":
        return RedirectResponse(f"{request.scope[ROOT]}/signin", 303)
    sentence = "There is nothing here." if err.detail == "Not Found" else err.detail
    answer = answer_of(request, err.status_code, sentence)
    answer.headers.update(err.headers or {})
    return answer


def _not_understood(request: Request, err: Exception) -> Response:
    assert isinstance(err, RequestValidationError)
    said = [f"{'.'.join(str(part) for part in each['loc'][1:]) or 'body'}: {each['msg']}" for each in err.errors()]
    return answer_of(request, 422, f"The request was not understood. {'; '.join(said)[:1000]}")


def _our_error(request: Request, err: Exception) -> Response:
    if not isinstance(err, StorageError):
        return answer_of(request, 409 if isinstance(err, KeyTakenError) else 400, str(err))
    log.error(
        "%s %s: %s", request.method, request.url.path, err
    )  # it names the store's place, which is the owner's to know
    answer = answer_of(
        request, 503, "The server can't keep anything just now. Nothing was lost; try again in a moment."
    )
    answer.headers["Retry-After"] = "2"
    return answer
