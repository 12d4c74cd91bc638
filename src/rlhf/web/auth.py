"""Who is asking: invitations, sessions, roles, CSRF tokens and rate limits, as dependencies that every route can name.

    @router.get("/")
    def page(name: Annotated[str, Depends(signed_in)], store: Annotated[PreferenceStore, Depends(the_store)]): ...

Every POST is checked before its route runs (``guard``, a dependency of the whole app): it must come from our own page, from
somebody signed in, and carry their CSRF token in the header ``X-CSRF-Token`` or the form field ``csrf_token``. A route that
nobody is signed in for yet, or that programs call, says so with ``@checks_itself``.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import math
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import timedelta
from typing import Annotated, Any, TypeVar
from urllib.parse import urlsplit

import argon2
import limits
from fastapi import Depends, Request
from itsdangerous import BadData, URLSafeTimedSerializer
from limits.storage import MemoryStorage
from limits.strategies import MovingWindowRateLimiter
from starlette.exceptions import HTTPException

from rlhf.data.message_text import counted
from rlhf.errors import ConfigError
from rlhf.store import PreferenceStore, access
from rlhf.web.server_settings import WebSettings, signing_key

CSRF_HEADER = "X-CSRF-Token"
CSRF_FIELD = "csrf_token"
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
MAX_HASHING = 2
"""Passwords hashed at once: each takes 64 MiB and a tenth of a second, which is what makes guessing dear."""
HASHING_SECONDS = 5.0
"""How long somebody waits for their turn."""
LEEWAY_SECONDS = 300.0
"""So far a clock may go back, or another server's be behind, before a fresh invitation is none."""
MIN_PASSWORD, MAX_PASSWORD = 10, 200
_SALT = "rlhf.feedback.invitation"
_HASHER = argon2.PasswordHasher()
_HASHING = threading.BoundedSemaphore(MAX_HASHING)

F = TypeVar("F", bound=Callable[..., Any])


class NotSignedIn(HTTPException):
    """Nobody is signed in: a page leads to the door, a call is answered 401."""

    def __init__(self) -> None:
        super().__init__(401, "You are not signed in, or not any more. Open your invitation link, or sign in again.")


class Visitor:
    """The sender of a request: their name, their role and the session they came in."""

    def __init__(self, name: str, role: str, secret: str, csrf_token: str) -> None:
        self.name, self.role, self.secret, self.csrf_token = name, role, secret, csrf_token


class Gate:
    """What the server needs to tell people apart.

    Args:
        store: Of people and judgments.
        settings: Of the server.
        key: That invitations are signed with.
    """

    def __init__(self, store: PreferenceStore, settings: WebSettings, key: bytes) -> None:
        self.store, self.settings, self._key = store, settings, key
        # cookies know hosts and not ports: two servers on one machine must not sign each other's people out
        name = f"rlhf_{hashlib.sha256(b'cookie' + key + store.own_id.encode()).hexdigest()[:8]}"
        self.cookie = f"__Host-{name}" if settings.is_https else name
        self._limiter = MovingWindowRateLimiter(MemoryStorage())

    def csrf_token(self, secret: str) -> str:
        """Of a session: nobody who does not hold the session's secret and our key can make it."""
        return hmac.new(self._key, b"csrf:" + secret.encode(), hashlib.sha256).hexdigest()

    def invite(self, name: str, *, role: str) -> str:
        """What the link of ``invitation_link`` carries; raises as that does."""
        return _invitation(self.store, name, role=role, key=self._key)

    def visitor(self, request: Request) -> Visitor | None:
        """The sender of the request, looked up once."""
        state = request.state
        if not hasattr(state, "visitor"):
            secret = request.cookies.get(self.cookie)
            person = access.holder(self.store.engine, secret) if secret else None
            state.visitor = (
                Visitor(person.name, person.role, secret, self.csrf_token(secret)) if person and secret else None
            )
        return state.visitor

    def forget(self, rate: str, *who: str) -> None:
        """Take back all tries that were counted."""
        self._limiter.clear(limits.parse(rate), *who)

    def limit(self, rate: str, *who: str, times: int = 1) -> None:
        """Count one try.

        Args:
            rate: How many in what time.
            who: Whose tries are counted together.
            times: So many times the rate is allowed.

        Raises:
            HTTPException: 429 with Retry-After, once there were too many.
        """
        item = limits.parse(rate)
        item = type(item)(item.amount * times, item.multiples)
        if not self._limiter.hit(item, *who):
            wait = max(1, math.ceil(self._limiter.get_window_stats(item, *who).reset_time - time.time()))
            allowed = f"at most {item.amount} in {counted(item.multiples, item.GRANULARITY.name)}"
            raise HTTPException(
                429, f"That was too often ({allowed}). Wait {wait} s and try again.", headers={"Retry-After": str(wait)}
            )


# ------------------------------------------------------------------------------------------------------- dependencies


def the_gate(request: Request) -> Gate:
    """Of this app."""
    return request.app.state.gate


def the_store(request: Request) -> PreferenceStore:
    """Of this app."""
    return request.app.state.gate.store


def the_visitor(request: Request) -> Visitor:
    """Anyone who is signed in.

    Raises:
        NotSignedIn: Nobody is.
    """
    visitor = the_gate(request).visitor(request)
    if visitor is None:
        raise NotSignedIn
    return visitor


def signed_in(visitor: Annotated[Visitor, Depends(the_visitor)]) -> str:
    """The name of anyone who is signed in, annotator or owner."""
    return visitor.name


def owner(visitor: Annotated[Visitor, Depends(the_visitor)]) -> str:
    """The name of the owner who is signed in.

    Raises:
        HTTPException: 403, for an annotator.
    """
    if visitor.role != "owner":
        raise HTTPException(403, "This page is the owner's.")
    return visitor.name


def csrf_token(visitor: Annotated[Visitor, Depends(the_visitor)]) -> str:
    """For a page's meta tag and forms."""
    return visitor.csrf_token


def checks_itself(route: F) -> F:
    """Say of a route that takes POSTs that nobody need be signed in for it, because it checks who is asking itself."""
    route.checks_itself = True  # type: ignore[attr-defined]
    return route


def counted_apart(route: F) -> F:
    """Say of a route that what it is sent does not use up the rate of what people send, and has that rate for itself."""
    route.counted_apart = True  # type: ignore[attr-defined]
    return route


async def _sent_token(request: Request) -> str | None:
    """The CSRF token that came with a POST."""
    if request.method in SAFE_METHODS:
        return None
    if CSRF_HEADER in request.headers:
        return request.headers[CSRF_HEADER]
    if request.headers.get("content-type", "").startswith(("application/x-www-form-urlencoded", "multipart/form-data")):
        sent = (await request.form()).get(CSRF_FIELD)
        return sent if isinstance(sent, str) else None
    return None


def guard(
    request: Request, sent: Annotated[str | None, Depends(_sent_token)], gate: Annotated[Gate, Depends(the_gate)]
) -> None:
    """Every request that changes something comes from our page and from anyone who it says; of others there are not too many.

    Raises:
        HTTPException: 403, where it does not; 429, where there are too many.
        NotSignedIn: Nobody is.
    """
    if request.method in SAFE_METHODS:
        looker = gate.visitor(request)
        if looker is None:  # many people may sit behind one address
            gate.limit(gate.settings.looks, "looks-from", client_address(request), times=10)
        else:
            gate.limit(gate.settings.looks, "looks", looker.name)
        return
    endpoint = request.scope["route"].endpoint
    if getattr(endpoint, "checks_itself", False):
        return
    check_origin(request)
    visitor = gate.visitor(request)
    if visitor is None:
        raise NotSignedIn
    if sent is None or not hmac.compare_digest(sent.encode("utf-8", "replace"), visitor.csrf_token.encode()):
        raise HTTPException(403, "The page is older than your session. Reload it and send again; nothing was changed.")
    counted_with = endpoint.__name__ if getattr(endpoint, "counted_apart", False) else "calls"
    gate.limit(gate.settings.calls, counted_with, visitor.name)


def check_origin(request: Request) -> None:
    """Refuse a form that another site made a browser send.

    Raises:
        HTTPException: 403.
    """
    gate = the_gate(request)
    own = frozenset({request.headers.get("host", ""), urlsplit(gate.settings.base_url).netloc})
    if is_of_another_site(request, own):
        raise HTTPException(403, "This was sent from a page of another site, so it was not done.")


def is_of_another_site(request: Request, own: frozenset[str]) -> bool:
    """Whether a browser says that a page of another site sent this; ``own`` are our hosts with their ports."""
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    return site not in (None, "same-origin", "none") or (origin is not None and urlsplit(origin).netloc not in own)


def client_address(request: Request) -> str:
    """Of anyone who sent a request; behind a proxy named in the settings, what the proxy says (uvicorn puts it there)."""
    return request.client.host if request.client else "?"


# --------------------------------------------------------------------------------------------- invitations, passwords


def invitation_link(
    store: PreferenceStore,
    name: str,
    *,
    role: str = "annotator",
    settings: WebSettings | None = None,
    key: bytes | None = None,
) -> str:
    """A link by which somebody comes in, once; earlier ones of theirs are void. Anyone who is not known yet is made known.

    Raises:
        ConfigError: The name or the role is none, somebody of this name has another role, or was shut out.
        StorageError: The signing key can't be made or read.
    """
    settings = settings or WebSettings()
    token = _invitation(store, name, role=role, key=key or signing_key(store.engine))
    return f"{settings.base_url}/join?token={token}"


def _invitation(store: PreferenceStore, name: str, *, role: str, key: bytes) -> str:
    known = access.person(store.engine, name)
    if known is None:
        store.add_annotator(name, role=role)
    elif known.role != role:
        raise ConfigError(f"{name!r} is known as {known.role}, not as {role}; choose another name.")
    elif not known.active:
        raise ConfigError(f"{name!r} was shut out; let them in again first.")
    made = access.make_invitation(store.engine, name)
    token = _serializer(key).dumps({**asdict(made), "store": store.own_id})
    return token if isinstance(token, str) else token.decode()


def invited(gate: Gate, token: str) -> access.Invitation:
    """What an invitation says.

    Raises:
        HTTPException: 403: it is not of this store, too old, used or void.
    """
    again = "Ask anyone who sent it for a new one."
    invitation, made_at = _signed(gate, token)
    if invitation is None:
        raise HTTPException(403, f"This invitation is not complete, or not of this server. {again}")
    age = time.time() - made_at
    if not -LEEWAY_SECONDS <= age <= gate.settings.invitation_days * 86400:
        raise HTTPException(403, f"This invitation is too old. {again}")
    known = access.person(gate.store.engine, invitation.name)
    if known is None or not known.active:
        raise HTTPException(403, "The person this invitation is for is shut out here.")
    if access.link_was_used(gate.store.engine, invitation.nonce):
        raise HTTPException(403, f"This invitation was used, and works once. {again}")
    if not access.is_newest(gate.store.engine, invitation):
        raise HTTPException(403, f"This invitation does not count any more; a newer one may have been sent. {again}")
    return invitation


def is_for(gate: Gate, token: str, name: str) -> bool:
    """Whether an invitation, used or not, was made here for somebody of this name."""
    invitation, _ = _signed(gate, token)
    return invitation is not None and invitation.name == name


def _signed(gate: Gate, token: str) -> tuple[access.Invitation | None, float]:
    """What a token says and when it was made; None where we did not make it, or made it for another store.

    Stores that are not files and are served from one folder sign with one key.
    """
    try:
        payload, made_at = _serializer(gate._key).loads(token, return_timestamp=True)
    except BadData:
        return None, 0.0
    if not isinstance(payload, dict) or payload.pop("store", None) != gate.store.own_id:
        return None, 0.0
    try:
        return access.Invitation(**payload), made_at.timestamp()
    except TypeError:  # of an older version, which said less
        return None, 0.0


def start_session(gate: Gate, name: str, *, link: access.Invitation | None = None) -> str | None:
    """Sign somebody in; the session's secret, or None where the link was used or voided meanwhile or they are shut out."""
    return access.open_session(gate.store.engine, name, lasts=timedelta(days=gate.settings.session_days), link=link)


def hash_password(password: str) -> str:
    """By argon2id, a few at a time.

    Raises:
        ConfigError: It is too short or too long.
        HTTPException: 503, where too many wait.
    """
    if not MIN_PASSWORD <= len(password) <= MAX_PASSWORD:
        raise ConfigError(f"A password has {MIN_PASSWORD} to {MAX_PASSWORD} characters; this one has {len(password)}.")
    with _Turn():
        return _HASHER.hash(_bytes(password))


def password_is_right(secret_hash: str | None, password: str) -> bool:
    """Whether it is; for a name that there is nobody of this takes as long."""
    with _Turn():
        try:
            return _HASHER.verify(secret_hash or _nobodys_hash(), _bytes(password)) and secret_hash is not None
        except (argon2.exceptions.VerificationError, argon2.exceptions.InvalidHashError):
            return False


class _Turn:
    """Hashing in turn: many sign-ins at once must not take all memory."""

    def __enter__(self) -> None:
        if not _HASHING.acquire(timeout=HASHING_SECONDS):
            raise HTTPException(503, "Many people sign in just now. Try again.", headers={"Retry-After": "5"})

    def __exit__(self, *_: object) -> None:
        _HASHING.release()


def _bytes(password: str) -> bytes:
    return password[: MAX_PASSWORD + 1].encode("utf-8", "surrogatepass")


def _serializer(key: bytes) -> URLSafeTimedSerializer:
    return URLSafeTimedSerializer(key, salt=_SALT)


@functools.cache
def _nobodys_hash() -> str:
    """Of a password that nobody has; made when it is first needed, for it takes a tenth of a second."""
    return _HASHER.hash(secrets.token_bytes(16))
