"""What a store holds of somebody, and deleting it: judgments, the texts of their own conversations, events, what a server
answered them, and whatever refers to them.

A text is somebody's own if it came from a conversation of theirs (its judgment has a ``trace``). What people judged who
sat at the labeling page is not theirs: their judgments go, and the tasks stay.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from unicodedata import normalize

import sqlalchemy as sa
from sqlalchemy.engine import Engine
from sqlalchemy.orm import Session

from rlhf.errors import ConfigError, StorageError
from rlhf.store.database import place_of, reading, write
from rlhf.store.table_rows import task_of
from rlhf.store.tables import (
    AnnotatorRow,
    AssignmentRow,
    EventRow,
    ForgottenRow,
    JudgmentRow,
    ResponseRow,
    ServedCompletionRow,
    SessionRow,
    SettingRow,
    TaskRow,
    UsedLinkRow,
)
from rlhf.store.values import Task

PENDING = "forget pending"
"""The setting that is there while deleted bytes may still be in the database's files."""
DELETIONS = "deletions"
"""The setting that counts them: an export compares it before and after, to see whether something was deleted meanwhile."""
MAX_NUMBERS = 5_000
"""In one query: databases bound how many values one may have."""
TRACE_USER, TEXT_OF = "user", "text_of"
"""In a trace: whose conversation it is where nobody judged it, and where who judged it is somebody else than who wrote it."""
EVENT_TEXT_IDS = ("completion_id_b", "next_completion_id")


@dataclass(slots=True)
class OfSomebody:
    """What a store holds of somebody."""

    names: Collection[str]
    """They have here."""
    annotators: list[int] = field(default_factory=list)
    assignments: list[int] = field(default_factory=list)
    """Theirs, and others' of the tasks that go."""
    tasks: list[int] = field(default_factory=list)
    """Whose texts are theirs."""
    shared_tasks: list[int] = field(default_factory=list)
    """Tasks that stay, of which they said something."""
    events: list[int] = field(default_factory=list)
    completions: list[int] = field(default_factory=list)
    """That a server of ours sent them."""
    num_judgments: int = 0
    """Theirs, replaced ones among them."""
    num_of_others: int = 0
    """Judgments of others of texts that go."""
    traces: list[dict[str, Any]] = field(default_factory=list)
    """Where their conversations came from."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing is there."""
        return not (self.annotators or self.assignments or self.tasks or self.events or self.completions)


def forgotten_people(engine: Engine) -> dict[str, datetime]:
    """Names of those who were forgotten, and when."""
    with reading(engine) as session:
        return {row.name: row.forgotten_at for row in session.scalars(sa.select(ForgottenRow))}


def remember_forgotten(engine: Engine, names: Collection[str]) -> None:
    """From now on nothing that is older is imported under these names."""

    def remember(session: Session) -> None:
        for name in sorted(names):
            session.merge(ForgottenRow(name=name, forgotten_at=datetime.now(UTC)))

    write(engine, remember)


def num_deletions(engine: Engine) -> int:
    """How often something was deleted from a store."""
    with reading(engine) as session:
        return _num_deletions(session)


def _num_deletions(session: Session) -> int:
    row = session.get(SettingRow, DELETIONS)
    return int(row.value) if row is not None else 0


def held_of(
    engine: Engine,
    *,
    names: Collection[str] = (),
    users: Collection[str] = (),
    program: str | None = None,
    trace_id: str = "",
) -> OfSomebody:
    """What a store holds of somebody, or of one conversation.

    Args:
        engine: Of the store.
        names: Annotators, as they are called here.
        users: As programs call them that send events and ask for completions, and the hashes of these names.
        program: Only events and completions of this one.
        trace_id: Of a conversation, or of a message of one; empty for none.

    Raises:
        ConfigError: One of the names is an owner's.
    """
    with reading(engine) as session:
        return _held_of(session, names, users, program, trace_id)


def _held_of(
    session: Session, names: Collection[str], users: Collection[str], program: str | None, trace_id: str
) -> OfSomebody:
    people = {row.number: row for row in session.scalars(sa.select(AnnotatorRow))}
    mine = {number for number, row in people.items() if row.name in names}
    if owner := next((people[number].name for number in mine if people[number].role == "owner"), None):
        raise ConfigError(
            f"{owner!r} owns this store; make somebody else the owner first (rlhf feedback invite NAME --owner)."
        )
    held = OfSomebody(names=sorted({people[number].name for number in mine}), annotators=sorted(mine))
    columns = (JudgmentRow.assignment, JudgmentRow.task, JudgmentRow.annotator, JudgmentRow.trace)
    judgments = list(session.execute(sa.select(*columns)))
    own_ids = {
        trace["trace_id"]
        for _, _, who, trace in judgments
        if trace and _whose(trace, people[who].name) in names and trace.get("trace_id")
    }

    def is_own_text(trace: dict[str, Any], who: str) -> bool:
        if trace_id:
            return trace_id in (trace.get("trace_id"), trace.get("message_id"))
        return _whose(trace, who) in names or trace.get("trace_id") in own_ids

    own: set[int] = set()
    others: set[int] = set()
    for _, task, who, trace in judgments:
        if trace:
            (own if is_own_text(trace, people[who].name) else others).add(task)
            if is_own_text(trace, people[who].name):
                held.traces.append(dict(trace))
    for number, given in session.execute(sa.select(TaskRow.number, TaskRow.columns)):
        trace = given.get("trace") if isinstance(given, dict) else None
        if isinstance(trace, dict) and is_own_text({**trace, TEXT_OF: trace.get(TRACE_USER)}, ""):
            own.add(number)
            held.traces.append(dict(trace))
    held.tasks = sorted(own - others)
    gone = set(held.tasks)
    is_mine = [
        who in mine or (bool(trace_id) and bool(trace) and is_own_text(trace, people[who].name))
        for _, _, who, trace in judgments
    ]
    assignments = {a for (a, task, _, _), his in zip(judgments, is_mine, strict=True) if his or task in gone}
    held.shared_tasks = sorted(
        {task for (_, task, _, _), his in zip(judgments, is_mine, strict=True) if his and task not in gone}
    )
    for number, task, who in session.execute(
        sa.select(AssignmentRow.number, AssignmentRow.task, AssignmentRow.annotator)
    ):
        if who in mine or task in gone:
            assignments.add(number)
    held.assignments = sorted(assignments)
    held.num_judgments = sum(is_mine)
    held.num_of_others = sum(task in gone and not his for (_, task, _, _), his in zip(judgments, is_mine, strict=True))
    if users:
        served = _served_to(session, users, program)
        held.completions = [row.number for row in served]
        held.events = _events_of(session, users, program, {(row.program, row.completion_id) for row in served})
    return held


def _whose(trace: dict[str, Any], who: str) -> str:
    return str(trace.get(TEXT_OF) or who)


def _served_to(session: Session, users: Collection[str], program: str | None) -> list[Any]:
    columns = (ServedCompletionRow.number, ServedCompletionRow.program, ServedCompletionRow.completion_id)
    query = sa.select(*columns).where(ServedCompletionRow.user.in_(users)).order_by(ServedCompletionRow.number)
    return list(
        session.execute(query if program is None else query.where(ServedCompletionRow.program == program)).all()
    )


def _events_of(
    session: Session, users: Collection[str], program: str | None, served: Collection[tuple[str, str]]
) -> list[int]:
    """Events that name the user or are about what a server sent them, and those about the same completions that name nobody else."""
    query = sa.select(EventRow)
    if program is not None:
        query = query.where(EventRow.program == program)
    events = list(session.scalars(query))
    wanted = {normalize("NFC", user) for user in users}
    mine = {
        event.number
        for event in events
        if normalize("NFC", str(event.content.get("user") or "")) in wanted
        or any((event.program, name) in served for name in _completions(event))
    }
    about = {(event.program, name) for event in events if event.number in mine for name in _completions(event)}
    return sorted(
        event.number
        for event in events
        if event.number in mine
        or (not event.content.get("user") and any((event.program, n) in about for n in _completions(event)))
    )


def _completions(event: EventRow) -> list[str]:
    ids = [event.completion_id, *(event.content.get(name) for name in EVENT_TEXT_IDS)]
    return [str(name) for name in ids if name]


def delete_held(engine: Engine, held: OfSomebody, *, remember: Iterable[str] = ()) -> None:
    """Delete it, all or nothing; ``scrub`` then takes it out of the database's files.

    Args:
        engine: Of the store.
        held: What goes.
        remember: Names under which an old file must not bring them back.
    """
    names = sorted(set(remember))

    def delete(session: Session) -> None:
        session.merge(SettingRow(name=PENDING, value=True))
        session.merge(SettingRow(name=DELETIONS, value=_num_deletions(session) + 1))
        # all judgments of an assignment at once: each row refers to the one that it replaces
        for numbers in _chunks(held.assignments):
            session.execute(sa.delete(JudgmentRow).where(JudgmentRow.assignment.in_(numbers)))
            session.execute(sa.delete(AssignmentRow).where(AssignmentRow.number.in_(numbers)))
        for numbers in _chunks(held.tasks):
            session.execute(sa.delete(ResponseRow).where(ResponseRow.task.in_(numbers)))
            session.execute(sa.delete(TaskRow).where(TaskRow.number.in_(numbers)))
        for numbers in _chunks(held.events):
            session.execute(sa.delete(EventRow).where(EventRow.number.in_(numbers)))
        for numbers in _chunks(held.completions):
            session.execute(sa.delete(ServedCompletionRow).where(ServedCompletionRow.number.in_(numbers)))
        for numbers in _chunks(held.annotators):
            for table in (SessionRow, UsedLinkRow):
                session.execute(sa.delete(table).where(table.annotator.in_(numbers)))
            session.execute(sa.delete(AnnotatorRow).where(AnnotatorRow.number.in_(numbers)))
        for name in names:
            session.merge(ForgottenRow(name=name, forgotten_at=datetime.now(UTC)))

    write(engine, delete)


def is_pending(engine: Engine) -> bool:
    """Whether deleted bytes may still be in the database's files."""
    with reading(engine) as session:
        return session.get(SettingRow, PENDING) is not None


def scrub(engine: Engine) -> None:
    """Rewrite the database's files without what was deleted.

    Raises:
        StorageError: Somebody else uses the database; what was deleted is deleted, and its bytes may still be on the disk.
    """
    try:
        if engine.dialect.name == "sqlite":
            connection = engine.raw_connection()
            try:
                cursor = connection.cursor()
                for step in ("PRAGMA wal_checkpoint(TRUNCATE)", "VACUUM", "PRAGMA wal_checkpoint(TRUNCATE)"):
                    answer = cursor.execute(step).fetchone()
                    if answer is not None and answer[0]:
                        raise StorageError(_busy(engine, "somebody reads it at the moment"))
                cursor.close()
            finally:
                connection.close()
        else:
            tables = (
                JudgmentRow, AssignmentRow, ResponseRow, TaskRow, EventRow, ServedCompletionRow, SessionRow, UsedLinkRow, AnnotatorRow,
            )  # fmt: skip
            with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as opened:
                for table in tables:
                    opened.execute(sa.text(f"VACUUM FULL {table.__tablename__}"))
    except Exception as err:
        if isinstance(err, StorageError):
            raise
        raise StorageError(_busy(engine, str(getattr(err, "orig", None) or err).strip().splitlines()[0])) from err

    def done(session: Session) -> None:
        session.execute(sa.delete(SettingRow).where(SettingRow.name == PENDING))

    write(engine, done)


def _busy(engine: Engine, reason: str) -> str:
    return (
        f"What was to be forgotten is deleted, but its bytes may still be in the files of {place_of(engine)}, which can't be rewritten "
        f"({reason}). Stop `rlhf annotate` and repeat the command."
    )


def _chunks(numbers: Sequence[int]) -> Iterator[Sequence[int]]:
    for start in range(0, len(numbers), MAX_NUMBERS):
        yield numbers[start : start + MAX_NUMBERS]


def tasks_numbered(engine: Engine, numbers: Sequence[int]) -> list[Task]:
    """Tasks by their numbers."""
    with reading(engine) as session:
        return [
            task_of(row)
            for chunk in _chunks(numbers)
            for row in session.scalars(sa.select(TaskRow).where(TaskRow.number.in_(chunk)).order_by(TaskRow.number))
        ]
