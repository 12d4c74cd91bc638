"""The ways in and out: invitations, passwords, signing out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Depends, Form, Request
from fastapi.templating import Jinja2Templates
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response

from rlhf.store import access
from rlhf.store.access import Invitation
from rlhf.web.auth import (
    MAX_PASSWORD,
    MIN_PASSWORD,
    Gate,
    Visitor,
    check_origin,
    checks_itself,
    client_address,
    hash_password,
    invited,
    is_for,
    password_is_right,
    start_session,
    the_gate,
    the_visitor,
)
from rlhf.web.security_middleware import ROOT

router = APIRouter()
templates = Jinja2Templates(directory=Path(__file__).with_name("templates"))
MANY = 10
"""Tries from one address for each for one name: a household or an office shares an address."""

TheGate = Annotated[Gate, Depends(the_gate)]


def error_page(request: Request, status: int, sentence: str) -> Response:
    """An error as a person reads it."""
    context = {"page": "error", "root": _root(request), "status": status, "sentence": sentence}
    return templates.TemplateResponse(request, "door.html", context, status_code=status)


@router.get("/healthz")
def healthz(gate: TheGate) -> dict[str, str]:
    """Whether the server and its store answer."""
    gate.store.setting("rules")
    return {"status": "ok"}


@router.get("/join")
def invitation(request: Request, gate: TheGate, token: str = "") -> Response:
    """The page an invitation leads to. Looking does not use it up: mail scanners and chat previews look, too."""
    visitor = gate.visitor(request)
    if visitor is not None and is_for(gate, token, visitor.name):
        return RedirectResponse(f"{_root(request)}/", 303)  # back through the link that they came by
    link = _link(request, gate, token)
    return _page(request, "join", name=link.name, role=link.role, token=token)


@router.post("/join")
@checks_itself
def join(
    request: Request,
    gate: TheGate,
    token: Annotated[str, Form()],
    password: Annotated[str, Form()] = "",
) -> Response:
    """Come in by an invitation, which uses it up, and choose a password if you like."""
    check_origin(request)
    link = _link(request, gate, token)
    secret_hash = hash_password(password) if password else None  # before the link is used: it may be refused
    secret = start_session(gate, link.name, link=link)
    if secret is None:
        raise HTTPException(403, "This invitation was used just now. Ask anyone who sent it for a new one.")
    if secret_hash is not None:
        access.set_password_hash(gate.store.engine, link.name, secret_hash, besides=secret)
    return _come_in(request, gate, secret)


@router.get("/signin")
def signin_page(request: Request, gate: TheGate) -> Response:
    """Name and password, for those who chose one."""
    if gate.visitor(request) is not None:
        return RedirectResponse(f"{_root(request)}/", 303)
    return _page(request, "signin")


@router.post("/signin")
@checks_itself
def signin(request: Request, gate: TheGate, name: Annotated[str, Form()], password: Annotated[str, Form()]) -> Response:
    """Come in by name and password."""
    check_origin(request)
    rate, address = gate.settings.signin_tries, client_address(request)
    tries = ("signin", name[:64], address)  # of this name from here: nobody's wrong guesses shut a door elsewhere
    gate.limit(rate, *tries)
    gate.limit(rate, "signin-from", address, times=MANY)
    known = access.person(gate.store.engine, name) if name.isprintable() else None
    secret = None
    if password_is_right(known.secret_hash if known else None, password) and known is not None:
        secret = start_session(gate, known.name)
    if secret is None:
        answer = _page(request, "signin", name=name[:64], wrong=True)
        answer.status_code = 403
        return answer
    gate.forget(rate, *tries)
    return _come_in(request, gate, secret)


@router.post("/signout")
def signout(request: Request, gate: TheGate, visitor: Annotated[Visitor, Depends(the_visitor)]) -> Response:
    """Leave: the session is over on the server, whatever the browser keeps."""
    access.end_session(gate.store.engine, visitor.secret)
    answer = RedirectResponse(f"{_root(request)}/signin", 303)
    answer.delete_cookie(gate.cookie, path="/", secure=gate.settings.is_https, httponly=True, samesite="lax")
    return answer


def _link(request: Request, gate: Gate, token: str) -> Invitation:
    """What an invitation says. Only those that are no good are counted: a class behind one address comes in at once.

    Raises:
        HTTPException: 403, as ``invited``; 429, once there were too many of these.
    """
    try:
        return invited(gate, token)
    except HTTPException:
        gate.limit(gate.settings.signin_tries, "join", client_address(request), times=MANY)
        raise


def _page(request: Request, page: str, **context: object) -> Response:
    given = {
        "page": page,
        "root": _root(request),
        "min_password": MIN_PASSWORD,
        "max_password": MAX_PASSWORD,
        **context,
    }
    return templates.TemplateResponse(request, "door.html", given)


def _root(request: Request) -> str:
    """Where the app is mounted; the empty text where it is not mounted."""
    return str(request.scope[ROOT])


def _come_in(request: Request, gate: Gate, secret: str) -> Response:
    answer = RedirectResponse(f"{_root(request)}/", 303)
    answer.set_cookie(
        gate.cookie, secret, max_age=round(gate.settings.session_days * 86400), path="/",
        secure=gate.settings.is_https, httponly=True, samesite="lax",
    )  # fmt: skip
    return answer
