"""Who may come in: sessions, used links and programs' tokens. Of every secret only what it hashes to is kept.

The secrets made here are 256 random bits, which nobody can guess, so SHA-256 is enough for them; what people choose
(passwords) is hashed by argon2 in ``rlhf.web.auth``.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Collection
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta

import sqlalchemy as sa
from sqlalchemy.engine import Engine
from sqlalchemy.orm import Session

from rlhf.errors import ConfigError, DataError, did_you_mean
from rlhf.store.database import reading, write, writing
from rlhf.store.tables import (
    EXPIRED,
    OPEN,
    AnnotatorRow,
    ApiTokenRow,
    AssignmentRow,
    SessionRow,
    SettingRow,
    UsedLinkRow,
)
from rlhf.store.values import is_name, shortened

API_TOKEN_PREFIX = "rlhf_"
"""So that a token that was published by mistake is known for one."""
DEFAULT_SCOPES = ("completions", "scores", "feedback", "metrics")
"""What a program is let in for where nothing is said."""
TOKEN_SCOPES = (*DEFAULT_SCOPES, "shares")
"""What a program may be let in for; who changes shares decides for all users, so that is said."""
SIGNING_KEY = "signing_key"
"""The setting that tells which key signs links."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    """Somebody the store knows."""

    name: str
    role: str
    active: bool
    secret_hash: str | None
    """Of a password, by argon2."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A program whose token came along."""

    name: str
    scopes: frozenset[str]
    """What it is let in for, of ``TOKEN_SCOPES``."""
    requests: str | None
    """How many it may send, such as ``60/minute``; None for as many as the server says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Invitation:
    """What a link says, once its signature was checked."""

    name: str
    role: str
    """That it was made for; anyone who has another one by now is not let in by it."""
    turn: int
    """Which of the person's links it is; see ``AnnotatorRow.invitations``."""
    nonce: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownKey:
    """What a store knows of the key that signs its links; the key itself it must not."""

    fingerprint: str
    place: str
    """Machine and file where it lay when it was first used."""


def key_of_store(engine: Engine) -> KnownKey | None:
    """The key that signs this store's links; None before the first one."""
    with reading(engine) as session:
        return _known_key(session)


def keep_key(engine: Engine, key: bytes, place: str) -> KnownKey:
    """The key that signs this store's links, which is the given one where there was none yet."""

    def keep(session: Session) -> KnownKey:
        known = _known_key(session)  # of two servers that start at once the first one's counts
        if known is None:
            known = KnownKey(fingerprint=fingerprint_of(key), place=place)
            session.add(SettingRow(name=SIGNING_KEY, value=asdict(known)))
        return known

    return write(engine, keep)


def fingerprint_of(key: bytes) -> str:
    """What tells a key from others, and does not tell the key."""
    return hashlib.sha256(b"rlhf signing key" + key).hexdigest()


def make_invitation(engine: Engine, name: str) -> Invitation:
    """A new link for somebody known; the earlier ones, used or not, are void from now on.

    Raises:
        DataError: There is nobody of this name.
    """

    def make(session: Session) -> Invitation:
        row = _row(session, name)
        row.invitations += 1
        return Invitation(name=row.name, role=row.role, turn=row.invitations, nonce=secrets.token_urlsafe(16))

    return write(engine, make)


def is_newest(engine: Engine, invitation: Invitation) -> bool:
    """Whether no later link was made for the same person, who was not shut out since and has the same role."""
    with reading(engine) as session:
        row = session.scalar(sa.select(AnnotatorRow).where(AnnotatorRow.name == invitation.name))
        return row is not None and (row.invitations, row.role) == (invitation.turn, invitation.role)


def person(engine: Engine, name: str) -> Person | None:
    """Somebody by name, or None."""
    with reading(engine) as session:
        row = session.scalar(sa.select(AnnotatorRow).where(AnnotatorRow.name == name))
    return None if row is None else _person_of(row)


def open_session(engine: Engine, name: str, *, lasts: timedelta, link: Invitation | None = None) -> str | None:
    """Sign somebody in, and use up the link they came by, in one transaction.

    Args:
        engine: Of the store.
        name: Who.
        lasts: Until they have to sign in again.
        link: An invitation, which works once; None for somebody who gave a password.

    Returns:
        The session's secret, for the browser alone; None where they are shut out or the link was used before or is void.
    """
    secret = secrets.token_urlsafe(32)
    now = datetime.now(UTC)
    try:
        with writing(engine) as session:
            row = session.scalar(sa.select(AnnotatorRow).where(AnnotatorRow.name == name).with_for_update())
            if row is None or not row.active:
                return None
            if link is not None:
                if (row.name, row.role, row.invitations) != (link.name, link.role, link.turn):
                    return None
                session.add(UsedLinkRow(nonce=link.nonce, annotator=row.number, used_at=now))
                session.flush()
            session.add(SessionRow(secret_hash=_digest(secret), annotator=row.number, made_at=now, ends_at=now + lasts))
    except sa.exc.IntegrityError:
        return None  # the link: anyone who came first has it
    return secret


def who_came(engine: Engine) -> set[int]:
    """Numbers of those who signed in at any time."""
    with reading(engine) as session:
        return set(session.scalars(sa.select(SessionRow.annotator).distinct()))


def link_was_used(engine: Engine, nonce: str) -> bool:
    """Whether somebody came by this invitation."""
    with reading(engine) as session:
        return session.get(UsedLinkRow, nonce) is not None


def holder(engine: Engine, secret: str, *, now: datetime | None = None) -> Person | None:
    """Whose session a secret is; None where it is nobody's, over, or its holder is shut out."""
    with reading(engine) as session:
        row = session.scalar(
            sa.select(AnnotatorRow)
            .join(SessionRow, SessionRow.annotator == AnnotatorRow.number)
            .where(
                SessionRow.secret_hash == _digest(secret),
                SessionRow.ends_at > (now or datetime.now(UTC)),
                AnnotatorRow.active,
            )
        )
    return None if row is None else _person_of(row)


def end_session(engine: Engine, secret: str) -> None:
    """Sign somebody out in this browser."""
    with writing(engine) as session:
        session.execute(
            sa.update(SessionRow).where(SessionRow.secret_hash == _digest(secret)).values(ends_at=datetime.now(UTC))
        )


def set_active(engine: Engine, name: str, active: bool) -> None:
    """Shut somebody out, or let them in again; their judgments stay, and what they had open goes back to the queue.

    Raises:
        DataError: There is nobody of that name, or they are the last owner.
    """

    def change(session: Session) -> None:
        # all owners are held, in one order: of two who shut each other out at once, the later one finds itself the last
        owners = sa.select(AnnotatorRow.number).where(AnnotatorRow.role == "owner").order_by(AnnotatorRow.number)
        session.execute(owners.with_for_update(key_share=True)).all()
        row = _row(session, name)
        if not active and row.role == "owner" and row.active and _num_owners(session) == 1:
            raise DataError(f"{name!r} is the only owner; make somebody else one first.")
        row.active = active
        if not active:
            row.invitations += 1  # a link that nobody used yet must not work once they are let in again
            _end_all(session, row.number)
            session.execute(
                sa.update(AssignmentRow)
                .where(AssignmentRow.annotator == row.number, AssignmentRow.state == OPEN)
                .values(state=EXPIRED)
            )

    write(engine, change)


def set_password_hash(engine: Engine, name: str, secret_hash: str | None, *, besides: str = "") -> None:
    """Let somebody sign in by another password from now on; all their sessions end but the one of the secret ``besides``."""
    with writing(engine) as session:
        row = _row(session, name)
        row.secret_hash = secret_hash
        _end_all(session, row.number, besides=besides)


def add_api_token(engine: Engine, name: str, *, scopes: Collection[str] = (), requests: str | None = None) -> str:
    """A program's token, shown once; one that was given under this name before stops working.

    Args:
        engine: Of the store.
        name: Of the program.
        scopes: What it is let in for, of ``TOKEN_SCOPES``; none for ``DEFAULT_SCOPES``.
        requests: How many it may send, such as ``60/minute``; None for as many as the server says.

    Raises:
        ConfigError: The name or a scope is none, or the number of requests is written in another way.
    """
    if not is_name(name):
        raise ConfigError(f"A token's name has 1 to 64 characters and is printable; got {shortened(name)}.")
    for scope in scopes:
        if scope not in TOKEN_SCOPES:
            raise ConfigError(
                f"{shortened(scope)} is no scope of a token.{did_you_mean(scope, TOKEN_SCOPES)} Wanted {', '.join(TOKEN_SCOPES)}."
            )
    if requests is not None and not re.fullmatch(r"[1-9][0-9]{0,8}/(second|minute|hour|day)", requests):
        raise ConfigError(
            f"A token's requests are written as 60/minute (second, hour, day); got {shortened(requests)}."
        )
    secret = API_TOKEN_PREFIX + secrets.token_urlsafe(32)
    row = ApiTokenRow(
        name=name, secret_hash=_digest(secret), active=True, made_at=datetime.now(UTC), scopes=sorted(scopes) or None,
        requests=requests,
    )  # fmt: skip
    with writing(engine) as session:
        session.merge(row)
    return secret


def revoke_api_token(engine: Engine, name: str) -> None:
    """Let a program in no more.

    Raises:
        DataError: There is no token of that name.
    """
    with writing(engine) as session:
        row = session.get(ApiTokenRow, name)
        if row is None:
            raise DataError(f"There is no token called {name!r}.")
        row.active = False


def program_of(engine: Engine, secret: str) -> Program | None:
    """Which program a token is of; None where it is nobody's or was revoked."""
    with reading(engine) as session:
        row = session.scalar(
            sa.select(ApiTokenRow).where(ApiTokenRow.secret_hash == _digest(secret), ApiTokenRow.active)
        )
    if row is None:
        return None
    return Program(name=row.name, scopes=frozenset(row.scopes or DEFAULT_SCOPES), requests=row.requests)


def api_tokens(engine: Engine) -> list[tuple[str, bool, datetime]]:
    """Name, whether it works, and since when; the tokens themselves nobody can tell any more."""
    with reading(engine) as session:
        rows = session.scalars(sa.select(ApiTokenRow).order_by(ApiTokenRow.name))
        return [(row.name, row.active, row.made_at) for row in rows]


def _known_key(session: Session) -> KnownKey | None:
    row = session.get(SettingRow, SIGNING_KEY)
    return None if row is None else KnownKey(**row.value)


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def _person_of(row: AnnotatorRow) -> Person:
    return Person(name=row.name, role=row.role, active=row.active, secret_hash=row.secret_hash)


def _row(session: Session, name: str) -> AnnotatorRow:
    # as `hold_annotator` does: who judges at this moment may name them
    row = session.scalar(sa.select(AnnotatorRow).where(AnnotatorRow.name == name).with_for_update(key_share=True))
    if row is None:
        raise DataError(f"There is nobody called {name!r}.")
    return row


def _num_owners(session: Session) -> int:
    query = sa.select(sa.func.count()).where(AnnotatorRow.role == "owner", AnnotatorRow.active)
    return session.scalar(query) or 0


def _end_all(session: Session, annotator: int, *, besides: str = "") -> None:
    now = datetime.now(UTC)
    session.execute(
        sa.update(SessionRow)
        .where(SessionRow.annotator == annotator, SessionRow.ends_at > now, SessionRow.secret_hash != _digest(besides))
        .values(ends_at=now)
    )
