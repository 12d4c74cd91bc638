"""Judgments inside a transaction: kept once, taken back, and those that count. Rows are only added."""

from __future__ import annotations

from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.orm import Session, aliased

from rlhf.config.guidelines import STANDARD_GUIDELINES
from rlhf.errors import DataError
from rlhf.store.assign import drawn_order, hold_annotator, take_slot_again
from rlhf.store.table_rows import (
    MAX_NUMBER,
    UNDO_PREFIX,
    check_key,
    check_same,
    check_undo_key,
    extras_of,
    task_of,
)
from rlhf.store.tables import DONE, OPEN, AnnotatorRow, AssignmentRow, JudgmentRow, SettingRow, TaskRow
from rlhf.store.values import Judgment, KeyTakenError, Submission, TaskKind, check_value

GUIDELINES = "guidelines"
"""The setting that holds the owner's guidelines."""


def keep_judgment(session: Session, annotator: str, sent: Submission, made_at: datetime, *, overlap: int) -> int:
    """See ``PreferenceStore.submit``; the judgment's number."""
    check_key(sent.key)
    extras = extras_of(sent)
    row = own_assignment(session, annotator, sent.assignment)
    known = session.scalar(sa.select(JudgmentRow).where(JudgmentRow.key == sent.key))
    task = session.get_one(TaskRow, row.task)
    if known is not None:
        value = check_value(task.kind, sent.value, num_responses=len(task.responses))
        check_same(known, {"assignment": row.number, "value": value, **extras})
        return known.number
    value = check_value(task.kind, sent.value, num_responses=len(task.responses), dimensions=rated_dimensions(session))
    take_slot_again(session, row, overlap=overlap)
    row.state = DONE
    judgment = JudgmentRow(
        assignment=row.number, task=row.task, annotator=row.annotator, key=sent.key, value=value,
        made_at=made_at, replaces=_last(session, row.number), **extras,
    )  # fmt: skip
    session.add(judgment)
    session.flush()
    return judgment.number


def take_back_last(
    session: Session,
    annotator: str,
    who: int,
    key: str | None,
    *,
    made_at: datetime,
    expires_at: datetime,
    seed: int,
) -> int | None:
    """See ``PreferenceStore.undo``; the number of the assignment that is open again.

    Args:
        session: A transaction.
        annotator: Whose last judgment it is.
        who: Their number.
        key: Of this undo; None for one that no page sends twice.
        made_at: Of the row that takes it back.
        expires_at: When the assignment goes to others.
        seed: Of an order on the screen that was never drawn.

    Raises:
        DataError: The key is none.
        KeyTakenError: Somebody else used the key.
    """
    if key is not None:
        check_undo_key(key)
    hold_annotator(session, who)  # two clicks take back two judgments, in turn
    if key is not None and (known := _undone_by(session, key)) is not None:
        if known.annotator != who:
            raise KeyTakenError("A key names one undo; this one was used by somebody else.")
        assignment = session.get_one(AssignmentRow, known.assignment)
        return assignment.number if assignment.state == OPEN else None
    row = session.scalar(
        sa.select(JudgmentRow)
        .join(TaskRow, TaskRow.number == JudgmentRow.task)
        .where(JudgmentRow.annotator == who, JudgmentRow.value.is_not(None), _is_current())
        .where(TaskRow.kind != TaskKind.MULTICLASS)  # which no page could show
        .order_by(JudgmentRow.number.desc())
        .limit(1)
    )
    if row is None:
        return None
    assignment = session.get_one(AssignmentRow, row.assignment, with_for_update=True)
    assignment.state = OPEN
    if assignment.order is None:  # it came from a file, and is on a screen only now
        task = session.get_one(TaskRow, assignment.task)
        assignment.order = drawn_order(seed, annotator, task)
    assignment.expires_at = expires_at
    session.add(
        JudgmentRow(
            assignment=row.assignment, task=row.task, annotator=who, key=f"{UNDO_PREFIX}{key or row.number}",
            value=None, replaces=row.number, made_at=made_at,
        )
    )  # fmt: skip
    return assignment.number


def current_judgments(session: Session, annotator: str | None) -> list[Judgment]:
    """Those that count: not replaced, not taken back; in the order they were made."""
    query = (
        sa.select(JudgmentRow.__table__, AssignmentRow.order, AnnotatorRow.name)
        .select_from(JudgmentRow)
        .join(AssignmentRow, AssignmentRow.number == JudgmentRow.assignment)
        .join(AnnotatorRow, AnnotatorRow.number == JudgmentRow.annotator)
        .where(JudgmentRow.value.is_not(None), _is_current())
        .order_by(JudgmentRow.number)
    )
    if annotator is not None:
        query = query.where(AnnotatorRow.name == annotator)
    # each task is read and built once, however many judged it
    judged = query.with_only_columns(JudgmentRow.task, maintain_column_froms=True).order_by(None)
    tasks = {row.number: task_of(row) for row in session.scalars(sa.select(TaskRow).where(TaskRow.number.in_(judged)))}
    return [
        Judgment(
            number=row.number, task=tasks[row.task], annotator=row.name, value=row.value or {}, order=row.order,
            comment=row.comment, flags=row.flags, spans=row.spans, label_probability=row.label_probability,
            seconds=row.seconds, made_at=row.made_at, diff_viewed=row.diff_viewed, trace=row.trace,
        )
        for row in session.execute(query).all()
    ]  # fmt: skip


def own_assignment(session: Session, annotator: str, number: int) -> AssignmentRow:
    """An assignment to change, held until the transaction ends.

    Raises:
        DataError: It is somebody else's, or there is none.
    """
    row = session.get(AssignmentRow, number, with_for_update=True) if 0 < number <= MAX_NUMBER else None
    owner = session.get_one(AnnotatorRow, row.annotator).name if row is not None else None
    if row is None or owner != annotator:
        raise DataError(f"Assignment {number} does not belong to {annotator!r}.")
    return row


def rated_dimensions(session: Session) -> list[str]:
    """What a rating may name: the dimensions of the guidelines that the store asks for."""
    row = session.get(SettingRow, GUIDELINES)
    if row is None or not row.value:
        return [guideline.name for guideline in STANDARD_GUIDELINES]
    return [str(guideline["name"]) for guideline in row.value]


def _undone_by(session: Session, key: str) -> JudgmentRow | None:
    """The row that an undo of this key wrote."""
    return session.scalar(sa.select(JudgmentRow).where(JudgmentRow.key == f"{UNDO_PREFIX}{key}"))


def _last(session: Session, assignment: int) -> int | None:
    """The newest judgment of an assignment, which a new one replaces."""
    return session.scalar(sa.select(sa.func.max(JudgmentRow.number)).where(JudgmentRow.assignment == assignment))


def _is_current() -> sa.ColumnElement[bool]:
    newer = aliased(JudgmentRow)
    return ~sa.exists().where(newer.replaces == JudgmentRow.number)
