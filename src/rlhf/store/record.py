"""Judgments that were made elsewhere, put into a store: as if their authors had made them here, and only once."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from rlhf.errors import DataError
from rlhf.store.database import wait_for_turn, write
from rlhf.store.items import ItemJudgment, check_annotator, checked_extras, judgment_words
from rlhf.store.table_rows import as_json
from rlhf.store.tables import DONE, LIVE, OPEN, AnnotatorRow, AssignmentRow, JudgmentRow, TaskRow
from rlhf.store.values import check_value, shortened

if TYPE_CHECKING:
    from rlhf.store.store import PreferenceStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What became of judgments that were brought."""

    num_added: int
    num_known: int
    """Their author has judged that task here already, by an earlier import or by hand; what is here stays."""
    num_corrections: int = 0
    """Of those added: they replace another answer that their author gave in the same import."""
    other_answers: Sequence[str] = ()
    """Of those known, where each is that says something its author has never said here."""


def record_judgments(store: PreferenceStore, made: Iterable[tuple[str, ItemJudgment]]) -> Recorded:
    """Keep judgments, all or none; bringing the same ones again changes nothing.

    A task may get more judgments this way than its overlap asks for. People who are not known yet become known, without
    a way to sign in. Where no order of completions is given, none is kept, and no position bias is measured on them; what
    somebody has on their screen at the moment keeps the order of the screen. Of several answers of one person to one task
    the last counts, and replaces the ones before.

    Args:
        store: Where their tasks are.
        made: Task ids and what was said, in the order it was made, and with the completions in the order of the store's task.

    Raises:
        DataError: A task is not there, a value is none of its kind, or an annotator's name is none.
    """
    brought = list(made)
    return write(store.engine, lambda session: keep_judgments(session, brought))


def keep_judgments(session: Session, brought: Sequence[tuple[str, ItemJudgment]]) -> Recorded:
    """What ``record_judgments`` does, within a transaction."""
    other_answers: list[str] = []
    new: list[tuple[AssignmentRow, ItemJudgment, dict[str, Any], dict[str, Any]]] = []
    latest: dict[int, dict[str, Any]] = {}
    """Assignment answered just now -> its value."""
    num_known = num_corrections = 0
    wait_for_turn(session, "slots")  # from here nobody is given a task until all of these are kept
    shelf = _Shelf.of(session)
    for task_id, judgment in _in_time(brought):
        task = shelf.tasks.get(task_id)
        if task is None:
            raise DataError(
                f"{shortened(judgment.annotator)} judged the task {task_id!r}, which is not in the store; import the tasks first."
            )
        where = judgment_words(task_id, judgment.annotator, judgment.where)
        value = check_value(task.kind, judgment.value, num_responses=len(task.responses), where=where)
        extras = checked_extras(judgment, where)
        held = shelf.held(session, task, judgment, where)
        before = latest.get(id(held))
        if before == value or (before is None and held.state == DONE):
            num_known += 1
            if before is None and value not in shelf.values(session, held):
                other_answers.append(judgment.where or f"task {task_id!r} by {judgment.annotator!r}")
            continue
        num_corrections += before is not None
        latest[id(held)], held.state = value, DONE
        new.append((held, judgment, value, extras))
    session.flush()  # numbers the assignments
    _write_down(session, new, shelf.last)
    return Recorded(
        num_added=len(new), num_known=num_known, num_corrections=num_corrections, other_answers=tuple(other_answers)
    )


def _in_time(brought: Sequence[tuple[str, ItemJudgment]]) -> list[tuple[str, ItemJudgment]]:
    """In the order they came, but for answers of one person to one task whose times are known: these by their times."""
    places: dict[tuple[str, str], list[int]] = {}
    for place, (task_id, judgment) in enumerate(brought):
        places.setdefault((task_id, judgment.annotator), []).append(place)
    ordered = list(brought)
    for mine in places.values():
        times = [moment for place in mine if (moment := brought[place][1].made_at) is not None]
        if len(times) == len(mine) > 1:
            by_time = [place for _, place in sorted(zip(times, mine, strict=True))]
            for place, source in zip(mine, by_time, strict=True):
                ordered[place] = brought[source]
    return ordered


def _write_down(
    session: Session,
    new: Sequence[tuple[AssignmentRow, ItemJudgment, dict[str, Any], dict[str, Any]]],
    last: Mapping[int, int],
) -> None:
    """Add the rows, each pointing to the one that it replaces.

    Args:
        session: Of a transaction.
        new: In order; a correction behind what it corrects.
        last: Assignment -> its newest judgment before these.
    """
    now = datetime.now(UTC)  # one for all: their order in a file is not an order in time
    written: dict[int, JudgmentRow] = {}
    for held, judgment, value, extras in new:
        earlier = last.get(held.number)
        if held.number in written:
            session.flush()  # numbers the one that is corrected
            earlier = written[held.number].number
        row = written[held.number] = _row_of(held, judgment, value, extras, earlier, now)
        session.add(row)


@dataclass(slots=True)
class _Shelf:
    """What is in the store already, read once: asking for each judgment again takes most of an import's time."""

    tasks: dict[str, TaskRow]
    live: dict[tuple[int, int], AssignmentRow]
    """By task and annotator."""
    slots: dict[int, set[int | None]]
    """Of each task, those that are taken."""
    last: dict[int, int]
    """Assignment to its newest judgment."""
    people: dict[str, int]
    all_values: dict[int, list[Any]] | None = field(default=None)
    """Assignment to all values that were ever given; read when it is first asked for."""

    @classmethod
    def of(cls, session: Session) -> _Shelf:
        live = session.scalars(sa.select(AssignmentRow).where(LIVE)).all()
        slots: dict[int, set[int | None]] = {}
        for row in live:
            slots.setdefault(row.task, set()).add(row.slot)
        newest = sa.select(JudgmentRow.assignment, sa.func.max(JudgmentRow.number)).group_by(JudgmentRow.assignment)
        return cls(
            tasks={row.id: row for row in session.scalars(sa.select(TaskRow))},
            live={(row.task, row.annotator): row for row in live},
            slots=slots,
            last={row[0]: row[1] for row in session.execute(newest)},
            people={},
        )

    def values(self, session: Session, held: AssignmentRow) -> list[Any]:
        """What somebody has said of a task, replaced answers and all."""
        if self.all_values is None:
            self.all_values = {}
            for number, value in session.execute(sa.select(JudgmentRow.assignment, JudgmentRow.value)):
                self.all_values.setdefault(number, []).append(value)
        return self.all_values.get(held.number, [])

    def held(self, session: Session, task: TaskRow, judgment: ItemJudgment, where: str) -> AssignmentRow:
        """The assignment of a judgment: its author's own, or a new one in the first free slot."""
        if judgment.annotator not in self.people:
            self.people[judgment.annotator] = _number_of(session, judgment.annotator, where)
        annotator = self.people[judgment.annotator]
        if (mine := self.live.get((task.number, annotator))) is not None:
            if mine.state == OPEN and mine.number is not None:
                # its author may answer it at this moment; once the row is ours, what they wrote is seen and stays
                session.refresh(mine, with_for_update=True)
                newest = sa.select(sa.func.max(JudgmentRow.number)).where(JudgmentRow.assignment == mine.number)
                if (last := session.scalar(newest)) is not None:
                    self.last[mine.number] = last
            return mine
        taken = self.slots.setdefault(task.number, set())
        slot = None if task.gold is not None else next(n for n in range(len(taken) + 1) if n not in taken)
        taken.add(slot)
        at = judgment.made_at or datetime.now(UTC)
        order = list(judgment.order) if judgment.order is not None else None
        row = AssignmentRow(
            task=task.number, annotator=annotator, slot=slot, order=order, state=OPEN, assigned_at=at, expires_at=at
        )
        session.add(row)
        self.live[task.number, annotator] = row
        return row


def _row_of(
    held: AssignmentRow,
    judgment: ItemJudgment,
    value: dict[str, Any],
    extras: dict[str, Any],
    earlier: int | None,
    now: datetime,
) -> JudgmentRow:
    return JudgmentRow(
        assignment=held.number, task=held.task, annotator=held.annotator, key=_key(held.number, earlier, judgment, value),
        value=value, replaces=earlier, made_at=judgment.made_at or now,
        trace=None if judgment.trace is None else as_json(dict(judgment.trace), what="The trace of a judgment"), **extras,
    )  # fmt: skip


def _number_of(session: Session, name: str, where: str) -> int:
    check_annotator(name, where)
    row = session.scalar(sa.select(AnnotatorRow).where(AnnotatorRow.name == name))
    if row is None:
        row = AnnotatorRow(name=name, added_at=datetime.now(UTC))
        session.add(row)
        session.flush()
    return row.number


def _key(assignment: int, earlier: int | None, judgment: ItemJudgment, value: Mapping[str, Any]) -> str:
    content = json.dumps(
        [assignment, earlier, value, judgment.made_at and judgment.made_at.isoformat()], sort_keys=True
    )
    return f"import-{blake2b(content.encode(), digest_size=16).hexdigest()}"
