"""Judgements that were made elsewhere, put into a store: as if their authors had made them here, and only once."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from rlhf.errors import DataError
from rlhf.feedback.store.engine import wait_for_turn, write
from rlhf.feedback.store.rows import extras_of
from rlhf.feedback.store.tables import DONE, LIVE, OPEN, AnnotatorRow, AssignmentRow, JudgementRow, TaskRow
from rlhf.feedback.store.values import Submission, check_value, is_name, shortened

if TYPE_CHECKING:
    from rlhf.feedback.items import Said
    from rlhf.feedback.store.store import PreferenceStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What became of judgements that were brought."""

    num_added: int
    num_known: int
    """Their author has judged that task here already, by an earlier import or by hand; what is here stays."""


def record_judgements(store: PreferenceStore, made: Iterable[tuple[str, Said]]) -> Recorded:
    """Keep judgements, all or none; bringing the same ones again changes nothing.

    A task may get more judgements this way than its overlap asks for. People who are not known yet become known, without
    a way to sign in. Where no order of completions is told, none is kept, and no position bias is measured on them; what
    somebody has on their screen at the moment keeps the order of the screen.

    Args:
        store: Where their tasks are.
        made: Task ids and what was said, in the order it was made.

    Raises:
        DataError: A task is not there, a value is none of its kind, or an annotator's name is none.
    """
    brought = list(made)
    return write(store.engine, lambda session: _record(session, brought))


def _record(session: Session, brought: Iterable[tuple[str, Said]]) -> Recorded:
    num_known = 0
    new: list[tuple[AssignmentRow, Said, dict[str, Any], dict[str, Any]]] = []
    wait_for_turn(session, "slots")  # from here nobody is given a task until all of these are kept
    shelf = _Shelf.of(session)
    for task_id, said in brought:
        task = shelf.tasks.get(task_id)
        if task is None:
            raise DataError(
                f"{shortened(said.annotator)} judged the task {task_id!r}, which is not in the store; import the tasks first."
            )
        where = f"The judgement of task {task_id!r} by {shortened(said.annotator)}"
        value = check_value(task.kind, said.value, num_responses=len(task.responses), where=where)
        extras = _extras(said, where)
        held = shelf.held(session, task, said, where)
        if held.state == DONE:
            num_known += 1
            continue
        held.state = DONE
        new.append((held, said, value, extras))
    session.flush()  # numbers the assignments
    for held, said, value, extras in new:
        session.add(_row_of(held, said, value, extras, shelf.last.get(held.number)))
    return Recorded(num_added=len(new), num_known=num_known)


@dataclass(slots=True)
class _Shelf:
    """What is in the store already, read once: asking for each judgement anew takes most of an import's time."""

    tasks: dict[str, TaskRow]
    live: dict[tuple[int, int], AssignmentRow]
    """By task and annotator."""
    slots: dict[int, set[int | None]]
    """Of each task, those that are taken."""
    last: dict[int, int]
    """Assignment to its newest judgement."""
    people: dict[str, int]

    @classmethod
    def of(cls, session: Session) -> _Shelf:
        live = session.scalars(sa.select(AssignmentRow).where(LIVE)).all()
        slots: dict[int, set[int | None]] = {}
        for row in live:
            slots.setdefault(row.task, set()).add(row.slot)
        newest = sa.select(JudgementRow.assignment, sa.func.max(JudgementRow.number)).group_by(JudgementRow.assignment)
        return cls(
            tasks={row.id: row for row in session.scalars(sa.select(TaskRow))},
            live={(row.task, row.annotator): row for row in live},
            slots=slots,
            last={row[0]: row[1] for row in session.execute(newest)},
            people={},
        )

    def held(self, session: Session, task: TaskRow, said: Said, where: str) -> AssignmentRow:
        """The assignment of a judgement: its author's own, or a new one in the first free slot."""
        if said.annotator not in self.people:
            self.people[said.annotator] = _number_of(session, said.annotator, where)
        annotator = self.people[said.annotator]
        if (mine := self.live.get((task.number, annotator))) is not None:
            if mine.state == OPEN and mine.number is not None:
                # its author may answer it at this moment; once the row is ours, what they wrote is seen and stays
                session.refresh(mine, with_for_update=True)
                newest = sa.select(sa.func.max(JudgementRow.number)).where(JudgementRow.assignment == mine.number)
                if (last := session.scalar(newest)) is not None:
                    self.last[mine.number] = last
            return mine
        taken = self.slots.setdefault(task.number, set())
        slot = None if task.gold is not None else next(n for n in range(len(taken) + 1) if n not in taken)
        taken.add(slot)
        at = said.made_at or datetime.now(UTC)
        order = list(said.order) if said.order is not None else None
        row = AssignmentRow(
            task=task.number, annotator=annotator, slot=slot, order=order, state=OPEN, assigned_at=at, expires_at=at
        )
        session.add(row)
        self.live[task.number, annotator] = row
        return row


def _extras(said: Said, where: str) -> dict[str, Any]:
    """Comment, flags and the like, by the rules of what a page sends."""
    try:
        return extras_of(
            Submission(
                assignment=0, key="", value=said.value, comment=said.comment, flags=list(said.flags), spans=list(said.spans),
                confidence=said.confidence, seconds=said.seconds,
            )
        )  # fmt: skip
    except DataError as err:
        raise DataError(f"{where}: {err}") from None


def _row_of(
    held: AssignmentRow, said: Said, value: dict[str, Any], extras: dict[str, Any], earlier: int | None
) -> JudgementRow:
    return JudgementRow(
        assignment=held.number, task=held.task, annotator=held.annotator, key=_key(held.number, earlier, said, value),
        value=value, replaces=earlier, made_at=said.made_at or datetime.now(UTC), **extras,
    )  # fmt: skip


def _number_of(session: Session, name: str, where: str) -> int:
    if not is_name(name):
        raise DataError(f"{where}: an annotator's name has 1 to 64 printable characters.")
    row = session.scalar(sa.select(AnnotatorRow).where(AnnotatorRow.name == name))
    if row is None:
        row = AnnotatorRow(name=name, added_at=datetime.now(UTC))
        session.add(row)
        session.flush()
    return row.number


def _key(assignment: int, earlier: int | None, said: Said, value: Mapping[str, Any]) -> str:
    content = json.dumps([assignment, earlier, value, said.made_at and said.made_at.isoformat()], sort_keys=True)
    return f"import-{blake2b(content.encode(), digest_size=16).hexdigest()}"
