"""The tables. Rows of `judgements` are only added (a correction is a row that names the one it replaces), until somebody is forgotten."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import JSON, DateTime, ForeignKey, Index, String, Text, TypeDecorator, UniqueConstraint, desc, text
from sqlalchemy.engine import Dialect
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

OPEN, DONE, SKIPPED, EXPIRED = "open", "done", "skipped", "expired"
LIVE = text("state IN ('open', 'done')")
"""Assignments that take one of a task's slots."""
IS_OPEN = text("state = 'open'")
"""Assignments that somebody works on. Texts, not parameters: a partial index is used only for the very words it was made with."""


class Moment(TypeDecorator[datetime]):
    """A time with its zone; SQLite has none of its own, so it keeps UTC."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """To the database."""
        return None if value is None else value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """From the database."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class Base(DeclarativeBase):
    """Of all tables."""


class SettingRow(Base):
    """What the owner decided for the whole store: guidelines, overlap, rates."""

    __tablename__ = "settings"
    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    value: Mapped[Any] = mapped_column(JSON)


class TaskRow(Base):
    """Something to judge."""

    __tablename__ = "tasks"
    number: Mapped[int] = mapped_column(primary_key=True)
    """In the order they were added."""
    id: Mapped[str] = mapped_column(String(255), unique=True)
    kind: Mapped[str] = mapped_column(String(16))
    prompt: Mapped[Any] = mapped_column(JSON)
    gold: Mapped[Any | None] = mapped_column(JSON(none_as_null=True))
    priority: Mapped[float] = mapped_column(default=0.0)
    batch: Mapped[str] = mapped_column(String(255), default="")
    columns: Mapped[Any] = mapped_column(JSON, default=dict)
    added_at: Mapped[datetime] = mapped_column(Moment)
    responses: Mapped[list[ResponseRow]] = relationship(order_by="ResponseRow.place", lazy="selectin")

    # in the order in which tasks are handed out, so that the first that fits is found without sorting all of them
    __table_args__ = (Index("tasks_by_priority", desc("priority"), "number"),)


class ResponseRow(Base):
    """A completion to be judged."""

    __tablename__ = "responses"
    number: Mapped[int] = mapped_column(primary_key=True)
    task: Mapped[int] = mapped_column(ForeignKey("tasks.number"), index=True)
    place: Mapped[int]
    text: Mapped[Any] = mapped_column(JSON)
    model: Mapped[str | None] = mapped_column(String(255))
    sampling: Mapped[Any] = mapped_column(JSON, default=dict)
    columns: Mapped[Any] = mapped_column(JSON, default=dict)

    __table_args__ = (UniqueConstraint("task", "place"),)


class AnnotatorRow(Base):
    """Somebody who judges, or the owner."""

    __tablename__ = "annotators"
    number: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(64), unique=True)
    role: Mapped[str] = mapped_column(String(16), default="annotator")
    secret_hash: Mapped[str | None] = mapped_column(String(255))
    """Of a password or token; None for somebody who comes by link or file only."""
    max_judgments: Mapped[int | None] = mapped_column("max_judgements")  # the column keeps the name that stores have
    active: Mapped[bool] = mapped_column(default=True)
    added_at: Mapped[datetime] = mapped_column(Moment)
    invitations: Mapped[int] = mapped_column(default=0, server_default="0")
    """Links made for them, and times they were shut out: only a link that carries this number still works."""


class AssignmentRow(Base):
    """A task in somebody's hands: it takes a slot until it is skipped or its time is over."""

    __tablename__ = "assignments"
    number: Mapped[int] = mapped_column(primary_key=True)
    task: Mapped[int] = mapped_column(ForeignKey("tasks.number"))
    annotator: Mapped[int] = mapped_column(ForeignKey("annotators.number"))
    slot: Mapped[int | None]
    """Which of the task's judgments this will be; None for gold items, which everybody may get."""
    order: Mapped[Any] = mapped_column(JSON)
    """Places of the completions from left to right (or top to bottom) on this annotator's screen; JSON's null for a judgment
    from a file that does not tell."""
    state: Mapped[str] = mapped_column(String(16), default=OPEN)
    assigned_at: Mapped[datetime] = mapped_column(Moment)
    expires_at: Mapped[datetime] = mapped_column(Moment)

    __table_args__ = (
        # the database itself refuses a second taker: no code path, however it races, can give a slot twice
        Index("one_live_assignment_a_slot", "task", "slot", unique=True, sqlite_where=LIVE, postgresql_where=LIVE),
        Index(
            "one_live_assignment_a_person", "task", "annotator", unique=True, sqlite_where=LIVE, postgresql_where=LIVE
        ),
        Index("assignments_of_annotator", "annotator", "state"),
        Index("open_assignments_by_time", "expires_at", sqlite_where=IS_OPEN, postgresql_where=IS_OPEN),
    )


class JudgmentRow(Base):
    """What somebody said. Never changed, and deleted only where its author is forgotten (``rlhf.store.deletion``)."""

    __tablename__ = "judgements"
    number: Mapped[int] = mapped_column(primary_key=True)
    assignment: Mapped[int] = mapped_column(ForeignKey("assignments.number"), index=True)
    task: Mapped[int] = mapped_column(ForeignKey("tasks.number"), index=True)
    annotator: Mapped[int] = mapped_column(ForeignKey("annotators.number"), index=True)
    key: Mapped[str] = mapped_column(String(64), unique=True)
    """Made by the page for each submission: one that is sent twice, over a poor connection, is kept once."""
    value: Mapped[Any | None] = mapped_column(JSON(none_as_null=True))
    """In the task's order of completions; None for a judgment that was taken back."""
    comment: Mapped[str] = mapped_column(Text, default="")
    flags: Mapped[Any] = mapped_column(JSON, default=list)
    spans: Mapped[Any] = mapped_column(JSON, default=list)
    label_probability: Mapped[float | None]
    seconds: Mapped[float | None]
    diff_viewed: Mapped[bool | None]
    """Whether the view with the differences marked was open before; None where that is not known."""
    replaces: Mapped[int | None] = mapped_column(ForeignKey("judgements.number"), unique=True)
    made_at: Mapped[datetime] = mapped_column(Moment)
    trace: Mapped[Any | None] = mapped_column(JSON(none_as_null=True))
    """The conversation of another tool that it was said of; None for what was said here."""


class EventRow(Base):
    """What users of a served model did: thumbs, edits, regenerations, votes."""

    __tablename__ = "events"
    number: Mapped[int] = mapped_column(primary_key=True)
    program: Mapped[str] = mapped_column(String(64), default="", server_default="")
    """Which one sent it: programs choose their keys without knowing of each other."""
    key: Mapped[str] = mapped_column(String(64))
    kind: Mapped[str] = mapped_column(String(16), index=True)
    completion_id: Mapped[str | None] = mapped_column(String(255), index=True)
    model: Mapped[str | None] = mapped_column(String(255))
    content: Mapped[Any] = mapped_column(JSON)
    made_at: Mapped[datetime] = mapped_column(Moment)

    __table_args__ = (UniqueConstraint("program", "key", name="one_event_a_key"),)


class ServedCompletionRow(Base):
    """What a server of ours answered; kept until it is too old (``rlhf.store.served_completions``) or its user is forgotten."""

    __tablename__ = "served_completions"
    number: Mapped[int] = mapped_column(primary_key=True)
    completion_id: Mapped[str] = mapped_column(String(255))
    """Of the request that it answers."""
    place: Mapped[int]
    """Which of the request's completions."""
    program: Mapped[str] = mapped_column(String(64))
    user: Mapped[str] = mapped_column(String(64), index=True)
    """A pseudonym."""
    model: Mapped[str] = mapped_column(String(255))
    weights: Mapped[str] = mapped_column(String(64))
    version: Mapped[int | None]
    prompt: Mapped[Any] = mapped_column(JSON)
    completion: Mapped[str] = mapped_column(Text)
    finish_reason: Mapped[str] = mapped_column(String(16))
    sampling: Mapped[Any] = mapped_column(JSON, default=dict)
    template_kwargs: Mapped[Any] = mapped_column(JSON, default=dict)
    answered_at: Mapped[datetime] = mapped_column(Moment, index=True)
    consent: Mapped[bool | None]
    """Whether its user agreed that it is kept and trained on; None where the request did not say."""

    __table_args__ = (UniqueConstraint("completion_id", "place", name="one_completion_a_place"),)


class SessionRow(Base):
    """Somebody signed in. The browser holds the secret, the table what the secret hashes to."""

    __tablename__ = "sessions"
    number: Mapped[int] = mapped_column(primary_key=True)
    secret_hash: Mapped[str] = mapped_column(String(64), unique=True)
    annotator: Mapped[int] = mapped_column(ForeignKey("annotators.number"), index=True)
    made_at: Mapped[datetime] = mapped_column(Moment)
    ends_at: Mapped[datetime] = mapped_column(Moment)
    """Moved to the moment of signing out, or of being shut out."""


class UsedLinkRow(Base):
    """An invitation that somebody came by: the primary key lets nobody come by it again."""

    __tablename__ = "used_links"
    nonce: Mapped[str] = mapped_column(String(64), primary_key=True)
    annotator: Mapped[int] = mapped_column(ForeignKey("annotators.number"))
    used_at: Mapped[datetime] = mapped_column(Moment)


class ExportRow(Base):
    """A file that left the store; one that is written again has a row for each content, so that runs are found by any of them."""

    __tablename__ = "exports"
    number: Mapped[int] = mapped_column(primary_key=True)
    path: Mapped[str] = mapped_column(Text)
    """Absolute."""
    sha256: Mapped[str] = mapped_column(String(64))
    """Empty for a folder."""
    layout: Mapped[str] = mapped_column(String(64))
    num_rows: Mapped[int]
    written_at: Mapped[datetime] = mapped_column(Moment)


class ForgottenRow(Base):
    """Somebody whose judgments and texts were deleted, under the name they had here, so that an old file does not bring them back."""

    __tablename__ = "forgotten"
    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    forgotten_at: Mapped[datetime] = mapped_column(Moment)


class ApiTokenRow(Base):
    """A program that may send events, or ask a server for completions and scores."""

    __tablename__ = "api_tokens"
    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    secret_hash: Mapped[str] = mapped_column(String(64), unique=True)
    active: Mapped[bool] = mapped_column(default=True)
    made_at: Mapped[datetime] = mapped_column(Moment)
    scopes: Mapped[Any | None] = mapped_column(JSON(none_as_null=True))
    """What it is let in for, a list; null for what all are."""
    requests: Mapped[str | None] = mapped_column(String(32))
    """How many it may send, such as 60/minute; null for as many as the server says."""
