"""The owner's page of people: invite, shut out, let in again.

    GET  /people                     who is known, and how much they judged
    POST /people/invite              a new link; it is on the answer and nowhere else
    POST /people/revoke, /people/restore-access

All of it is the owner's alone. No script: forms with the session's CSRF token, and pages that a browser does not keep.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

import sqlalchemy as sa
from fastapi import APIRouter, Depends, Form, Request
from fastapi.responses import HTMLResponse
from starlette.responses import RedirectResponse, Response

from rlhf.errors import ConfigError, DataError
from rlhf.feedback.simulated import simulated_annotators
from rlhf.feedback.web.pages import page
from rlhf.store import PreferenceStore, access
from rlhf.store.database import reading
from rlhf.store.tables import DONE, AnnotatorRow, AssignmentRow
from rlhf.web.auth import Gate, Visitor, owner, the_gate, the_store, the_visitor
from rlhf.web.security_middleware import ROOT

router = APIRouter(dependencies=[Depends(owner)])
TheGate = Annotated[Gate, Depends(the_gate)]
Store = Annotated[PreferenceStore, Depends(the_store)]
Whoever = Annotated[Visitor, Depends(the_visitor)]
Name = Annotated[str, Form()]


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """Somebody, as a row of the page."""

    name: str
    role: str
    active: bool
    has_password: bool
    has_come: bool
    """Whether they came in at any time."""
    is_simulated: bool
    """No person, and nobody to invite."""
    num_judgments: int
    added_at: datetime


@router.get("/people", response_class=HTMLResponse)
def people(request: Request, visitor: Whoever, store: Store) -> HTMLResponse:
    """Who is known."""
    return _page(request, visitor, store)


@router.post("/people/invite", response_class=HTMLResponse)
def invite(
    request: Request, visitor: Whoever, gate: TheGate, name: Name, role: Annotated[str, Form()] = "annotator"
) -> HTMLResponse:
    """Make a link for somebody new, or another one for somebody known; it is shown on this answer and never again."""
    name = name.strip()
    try:
        token = gate.invite(name, role=role)
    except ConfigError as err:
        return _page(request, visitor, gate.store, problem=str(err), status=400)
    # the address that the owner came by works for them at least; where a proxy is in front of us, its name is known
    base = gate.settings.public_url or f"{request.url.scheme}://{request.url.netloc}"
    link = f"{base}{request.scope[ROOT]}/join?token={token}"
    return _page(request, visitor, gate.store, link=link, invited=name, days=gate.settings.invitation_days)


@router.post("/people/revoke")
def revoke(request: Request, visitor: Whoever, store: Store, name: Name) -> Response:
    """Shut somebody out at once; what they judged stays."""
    return _set_active(request, visitor, store, name, False)


@router.post("/people/restore-access")
def restore_access(request: Request, visitor: Whoever, store: Store, name: Name) -> Response:
    """Let somebody in again."""
    return _set_active(request, visitor, store, name, True)


def _set_active(request: Request, visitor: Visitor, store: PreferenceStore, name: str, active: bool) -> Response:
    if name == visitor.name:
        return _page(request, visitor, store, problem="You can't shut yourself out; another owner can.", status=400)
    try:
        access.set_active(store.engine, name, active)
    except DataError as err:
        return _page(request, visitor, store, problem=str(err), status=400)
    return RedirectResponse(f"{request.scope[ROOT]}/people", 303)


def _page(
    request: Request, visitor: Visitor, store: PreferenceStore, *, status: int = 200, **context: Any
) -> HTMLResponse:
    given: dict[str, Any] = {"link": "", "invited": "", "days": 0, "problem": "", **context}
    answer = page(request, visitor, "people.html", people=known_people(store), **given)
    answer.status_code = status
    return answer


def known_people(store: PreferenceStore) -> list[Known]:
    """Everybody, in the order they came."""
    done = (
        sa.select(AssignmentRow.annotator, sa.func.count().label("number"))
        .where(AssignmentRow.state == DONE)
        .group_by(AssignmentRow.annotator)
        .subquery()
    )
    query = (
        sa.select(AnnotatorRow, done.c.number)
        .outerjoin(done, done.c.annotator == AnnotatorRow.number)
        .order_by(AnnotatorRow.number)
    )
    came, simulated = access.who_came(store.engine), simulated_annotators(store)
    with reading(store.engine) as session:
        return [
            Known(
                name=row.name, role=row.role, active=row.active, has_password=row.secret_hash is not None,
                has_come=row.number in came, is_simulated=row.name in simulated, num_judgments=number or 0, added_at=row.added_at,
            )
            for row, number in session.execute(query)
        ]  # fmt: skip
