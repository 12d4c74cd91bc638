"""How far the work is: exactly, for the owner, and in numbers that tell an annotator nothing of gold items."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.engine import Engine
from sqlalchemy.orm import Session

from rlhf.store.assign import AssignmentRules
from rlhf.store.database import reading
from rlhf.store.tables import DONE, AnnotatorRow, AssignmentRow, TaskRow
from rlhf.store.values import Progress


def progress_of(engine: Engine, rules: AssignmentRules, annotator: str | None) -> Progress:
    """How far labeling is: what ``PreferenceStore.progress`` gives."""
    with reading(engine) as session:
        in_batch = sa.true() if rules.batch is None else TaskRow.batch == rules.batch
        plain = TaskRow.gold.is_(None)
        tasks = sa.select(sa.func.count().filter(plain), sa.func.count().filter(~plain)).select_from(TaskRow)
        num_tasks, num_gold = session.execute(tasks.where(in_batch)).one()
        done = (
            sa.select(sa.func.count().filter(plain), sa.func.count())
            .select_from(AssignmentRow)
            .join(TaskRow, TaskRow.number == AssignmentRow.task)
            .where(AssignmentRow.state == DONE)
        )
        num_done, num_done_with_gold = session.execute(done.where(in_batch)).one()
        num_mine = 0
        if annotator is not None:
            who = session.scalar(sa.select(AnnotatorRow.number).where(AnnotatorRow.name == annotator))
            _, num_mine = session.execute(done.where(AssignmentRow.annotator == who)).one()
        num_wanted = num_tasks * rules.overlap
        num_gold_wanted = _num_gold_wanted(session, rules, num_wanted, num_gold)
    return Progress(
        num_tasks=num_tasks, num_wanted=num_wanted, num_done=num_done, num_mine=num_mine, num_gold=num_gold,
        num_done_with_gold=num_done_with_gold,
        num_wanted_with_gold=max(num_wanted + num_gold_wanted, num_done_with_gold),
    )  # fmt: skip


def _num_gold_wanted(session: Session, rules: AssignmentRules, num_wanted: int, num_gold: int) -> int:
    """Gold items that will be asked in addition to the wanted judgments: their share, but of each who works here one at least and each at
    most once."""
    if not rules.gold_frac:
        return 0
    people = session.scalar(sa.select(sa.func.count(AssignmentRow.annotator.distinct()))) or 1
    return min(max(round(num_wanted * rules.gold_frac / (1 - rules.gold_frac)), people), num_gold * people)
