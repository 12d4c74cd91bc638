"""Who judges what next. All of it happens in one transaction, and the table's own indices refuse a slot to a second taker."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

import sqlalchemy as sa
from pydantic import Field
from sqlalchemy.engine import Engine
from sqlalchemy.orm import Session

from rlhf.config.base import BaseConfig
from rlhf.errors import DataError
from rlhf.seeds import derive_seed
from rlhf.store.database import reading, wait_for_turn, write
from rlhf.store.tables import (
    DONE,
    EXPIRED,
    IS_OPEN,
    LIVE,
    OPEN,
    SKIPPED,
    AnnotatorRow,
    AssignmentRow,
    TaskRow,
)
from rlhf.store.values import TaskKind


class AssignmentRules(BaseConfig):
    """How tasks are handed out."""

    overlap: int = Field(1, ge=1)
    """Independent judgments wanted of each task."""
    gold_frac: float = Field(0.0, ge=0, lt=1)
    """Share of an annotator's tasks that are gold items, as long as there are gold items that they have not seen; above 0, at
    least one before their tasks run out."""
    timeout_minutes: float = Field(30.0, gt=0)
    """After so long without a judgment a task goes back to the queue."""
    max_judgments: int | None = Field(None, ge=1)
    """Of each annotator, unless the annotator has a number of their own."""
    batch: str | None = None
    """Hand out only tasks of this batch."""


class Taken(NamedTuple):
    """What somebody works on next."""

    assignment: int
    """Its number."""
    fresh: bool
    """Whether they did not hold it before."""


def take_task(
    engine: Engine, annotator: int, *, rules: AssignmentRules, seed: int, now: datetime, beside: int | None = None
) -> Taken | None:
    """The assignment that an annotator works on next, or None where nothing is left for them.

    An open one of their own comes first, so that a reload shows the same task; then what they were given before and left, so
    that nobody learns by leaving which items are gold. Then, with the probability of ``gold_frac``, a gold item; then the task
    of highest priority that wants judgments and that they have not seen. Where few tasks are left and somebody has had no
    gold item, its place among them is drawn with equal chances.
    With ``beside``, the one to follow that open assignment: a page asks for it early, so that nobody waits.
    """
    return write(engine, lambda session: _take(session, annotator, rules, seed, now, beside))


def _take(
    session: Session, annotator: int, rules: AssignmentRules, seed: int, now: datetime, beside: int | None
) -> Taken | None:
    late = (
        sa.select(AssignmentRow.number)
        .where(IS_OPEN, AssignmentRow.expires_at < now, AssignmentRow.annotator != annotator)
        .with_for_update(skip_locked=True)  # anyone who holds one is about to answer it, or ends it as we would
    )
    session.execute(sa.update(AssignmentRow).where(AssignmentRow.number.in_(late)).values(state=EXPIRED))
    # two tabs of one person ask one behind the other, and so get the same task
    row = hold_annotator(session, annotator)
    is_open = sa.select(AssignmentRow).where(AssignmentRow.annotator == annotator, AssignmentRow.state == OPEN)
    wanted = is_open if beside is None else is_open.where(AssignmentRow.number != beside)
    # locked, or somebody else could end it as late between our look and our word
    held = session.scalars(wanted.order_by(AssignmentRow.number).with_for_update()).first()
    expires = now + timedelta(minutes=rules.timeout_minutes)
    if held is not None:
        held.expires_at = expires
        return Taken(held.number, fresh=False)
    taken = session.scalar(
        sa.select(sa.func.count()).select_from(AssignmentRow).where(AssignmentRow.annotator == annotator, LIVE)
    )
    limit = row.max_judgments or rules.max_judgments
    if limit is not None and (taken or 0) >= limit:
        return None
    task = _new_task(session, row, rules, seed, None if limit is None else limit - (taken or 0))
    if task is None:
        return None
    assignment = AssignmentRow(
        task=task.number, annotator=annotator, slot=_free_slot(session, task, rules),
        order=drawn_order(seed, row.name, task), state=OPEN, assigned_at=now, expires_at=expires,
    )  # fmt: skip
    session.add(assignment)
    session.flush()
    return Taken(assignment.number, fresh=True)


def hold_annotator(session: Session, annotator: int) -> AnnotatorRow:
    """Somebody's row, which two calls of theirs have one behind the other.

    The lock lets others write rows that name them: anyone who keeps a judgment holds its assignment, and would wait here for
    one who holds the annotator and waits there.
    """
    return session.get_one(AnnotatorRow, annotator, with_for_update={"key_share": True})


def drawn_order(seed: int, annotator: str, task: TaskRow) -> list[int]:
    """Places of a task's completions on somebody's screen: always the same for the same person."""
    order = list(range(len(task.responses)))
    random.Random(derive_seed(seed, "position", annotator, task.id)).shuffle(order)
    return order


def take_slot_again(session: Session, row: AssignmentRow, *, overlap: int) -> None:
    """Let somebody go on who skipped a task or whose time was over: in their own slot, or in another that is free.

    Where they have been given the task again meanwhile, what they hold of it is this again.

    Raises:
        DataError: The task has all the judgments it wants, or people who are at it.
    """
    if row.state in (OPEN, DONE):
        return
    wait_for_turn(session, "slots")
    of_task = sa.select(AssignmentRow).where(AssignmentRow.task == row.task, LIVE, AssignmentRow.number != row.number)
    others = session.scalars(of_task).all()
    held = next((other for other in others if other.annotator == row.annotator), None)
    if held is not None and held.state == OPEN:
        held.state = EXPIRED
        row.slot = held.slot
        session.flush()  # its slot is free before this one takes it
    elif held is not None:
        raise _not_needed()
    elif row.slot is not None:
        if len(others) >= overlap:  # which may be lower now than when the task was given
            raise _not_needed()
        taken = {other.slot for other in others}
        row.slot = next(slot for slot in (row.slot, *range(overlap)) if slot not in taken)
    row.state = OPEN


def give_back(session: Session, annotator: int, held: Mapping[int, datetime]) -> int:
    """Let others have at once what somebody holds and left.

    Args:
        session: Of a transaction.
        annotator: Who.
        held: Assignment -> the time it was given until. One that was handed out again since, to a page that was reloaded while
            this was on its way, has another time and is kept.

    Returns:
        How many went back.
    """
    hold_annotator(
        session, annotator
    )  # anyone who shows one of these to a page at this moment does it before or after us
    mine = sa.select(AssignmentRow).where(
        AssignmentRow.annotator == annotator, AssignmentRow.state == OPEN, AssignmentRow.number.in_(held)
    )
    left = [row for row in session.scalars(mine.with_for_update()) if row.expires_at == held[row.number]]
    for row in left:
        row.state = EXPIRED
    return len(left)


def _not_needed() -> DataError:
    return DataError(
        "This task was skipped or took longer than its time, and somebody else has it now; it is not needed again."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """Tasks that somebody skipped and that still want judgments, gold items apart."""

    num_waiting: int
    num_left_to_newcomers: int
    """Of those: everybody who works here (is not shut out, and was ever given a task) has skipped or judged them, and
    somebody who may come in has not begun."""
    num_left_to_nobody: int
    """Of those: the same, and nobody else was invited, so they are asked of nobody any more."""
    newcomers: tuple[str, ...]
    """Annotators who may come in, by a link or a password, and were never given a task."""


def skipped_tasks(engine: Engine, *, overlap: int) -> Skipped:
    """Count them."""
    with reading(engine) as session:
        here = (
            sa.select(AssignmentRow.annotator)
            .join(AnnotatorRow, AnnotatorRow.number == AssignmentRow.annotator)
            .where(AnnotatorRow.active)
            .distinct()
        )
        working = set(session.scalars(here))
        may_come = (
            sa.select(AnnotatorRow.name)
            .where(
                AnnotatorRow.active,
                AnnotatorRow.role == "annotator",  # an owner may judge, but most only look
                sa.or_(AnnotatorRow.invitations > 0, AnnotatorRow.secret_hash.is_not(None)),
                AnnotatorRow.number.not_in(sa.select(AssignmentRow.annotator)),
            )
            .order_by(AnnotatorRow.number)
        )
        newcomers = tuple(session.scalars(may_come))
        skipped = (
            sa.select(AssignmentRow.task)
            .where(AssignmentRow.state == SKIPPED, AssignmentRow.slot.is_not(None))
            .distinct()
        )
        seen: dict[int, set[int]] = {}
        live: Counter[int] = Counter()
        columns = (AssignmentRow.task, AssignmentRow.annotator, AssignmentRow.state)
        for task, annotator, state in session.execute(sa.select(*columns).where(AssignmentRow.task.in_(skipped))):
            who = seen.setdefault(task, set())
            if state != EXPIRED:
                who.add(annotator)
            live[task] += state in (OPEN, DONE)
    waiting = [task for task in seen if live[task] < overlap]
    left = sum(working <= seen[task] for task in waiting)
    return Skipped(
        num_waiting=len(waiting),
        num_left_to_newcomers=left if newcomers else 0,
        num_left_to_nobody=0 if newcomers else left,
        newcomers=newcomers,
    )


def _unseen(annotator: int, rules: AssignmentRules) -> sa.Select[TaskRow]:
    """Tasks that an annotator has not judged or skipped, most urgent first.

    One whose time ran out under their hands may come to them again: in a small team nobody else is left to judge it.
    """
    seen = sa.select(AssignmentRow.task).where(AssignmentRow.annotator == annotator, AssignmentRow.state != EXPIRED)
    query = sa.select(TaskRow).where(TaskRow.number.not_in(seen), TaskRow.kind != TaskKind.MULTICLASS)
    query = query.order_by(TaskRow.priority.desc(), TaskRow.number)
    return query if rules.batch is None else query.where(TaskRow.batch == rules.batch)


def _new_task(
    session: Session, who: AnnotatorRow, rules: AssignmentRules, seed: int, most: int | None
) -> TaskRow | None:
    """What somebody who holds nothing is given. Takers come one at a time, so that each counts what the last took.

    Args:
        session: Of a transaction.
        who: The taker.
        rules: How tasks are handed out.
        seed: Of the store.
        most: Tasks that they may still be given; None for no limit.
    """
    wait_for_turn(session, "slots")
    unseen = _unseen(who.number, rules)
    is_gold, is_wanted = TaskRow.gold.is_not(None), sa.and_(TaskRow.gold.is_(None), _num_live() < rules.overlap)
    left = (
        sa.select(AssignmentRow.task, sa.func.min(AssignmentRow.number).label("first"))
        .where(AssignmentRow.annotator == who.number, AssignmentRow.state == EXPIRED)
        .group_by(AssignmentRow.task)
        .subquery()
    )
    again = unseen.join(left, left.c.task == TaskRow.number).where(sa.or_(is_gold, is_wanted))
    if (task := session.scalar(again.order_by(None).order_by(left.c.first).limit(1))) is not None:
        return task
    # a draw for each task that they were ever given: what they leave and take again draws nothing again
    given = sa.select(sa.func.count(AssignmentRow.task.distinct())).where(AssignmentRow.annotator == who.number)
    number = session.scalar(given) or 0
    chance = rules.gold_frac
    if chance and not _had_gold(session, who.number):
        enough = math.ceil(1 / chance)  # where so many are left, gold_frac is the larger chance
        plain = unseen.where(is_wanted).order_by(None).limit(enough).with_only_columns(TaskRow.number)
        num_left = session.scalar(sa.select(sa.func.count()).select_from(plain.subquery())) or 0
        if number or num_left:  # who comes when all is done gets no gold item for its own sake
            chance = max(chance, 1 / min(num_left + 1, most or num_left + 1))
    if random.Random(derive_seed(seed, "assignment", who.name, number)).random() < chance:
        task = session.scalar(unseen.where(is_gold).limit(1))
    return task if task is not None else session.scalar(unseen.where(is_wanted).limit(1))


def _had_gold(session: Session, annotator: int) -> bool:
    """Whether somebody was ever given a gold item."""
    of_gold = sa.select(AssignmentRow.number).join(TaskRow, TaskRow.number == AssignmentRow.task)
    of_gold = of_gold.where(AssignmentRow.annotator == annotator, TaskRow.gold.is_not(None))
    return session.scalar(of_gold.limit(1)) is not None


def _num_live() -> sa.ScalarSelect[int]:
    """People who are at a task, or have judged it."""
    of_task = sa.select(sa.func.count()).where(AssignmentRow.task == TaskRow.number, LIVE)
    return of_task.correlate(TaskRow).scalar_subquery()


def _free_slot(session: Session, task: TaskRow, rules: AssignmentRules) -> int | None:
    """Of a task with one free; None of a gold item, which everybody may get."""
    if task.gold is not None:
        return None
    taken = set(session.scalars(sa.select(AssignmentRow.slot).where(AssignmentRow.task == task.number, LIVE)))
    return next(slot for slot in range(rules.overlap) if slot not in taken)
