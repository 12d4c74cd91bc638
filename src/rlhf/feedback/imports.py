"""What files bring, put into a store: all of it or nothing, and each judgment on the texts that it was made of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import sqlalchemy as sa
from sqlalchemy.orm import Session

from rlhf.data.contracts import BadRow, RowError
from rlhf.data.expand import text_key
from rlhf.data.message_text import counted
from rlhf.data.read import OnBadRow
from rlhf.errors import DataError
from rlhf.feedback.identity import lasting_id, places_of, turned
from rlhf.feedback.judgment_origin import TRACE
from rlhf.store.database import write
from rlhf.store.deletion import TEXT_OF, TRACE_USER
from rlhf.store.items import Item, ItemJudgment
from rlhf.store.record import Recorded, keep_judgments
from rlhf.store.table_rows import row_of, task_of
from rlhf.store.tables import DONE, AnnotatorRow, AssignmentRow, ForgottenRow, TaskRow
from rlhf.store.values import Task, TaskKind

if TYPE_CHECKING:
    from rlhf.store.store import PreferenceStore

FORGOTTEN = "the user was forgotten (`rlhf feedback forget`), and this is from before"
MAX_SHOWN = 60
"""Characters of a prompt in an error."""
MAX_REASONS, MAX_PLACES = 20, 3
"""Reasons for leaving rows out that are listed, and rows named for each."""


@dataclass(slots=True)
class Imported:
    """What became of items that were brought."""

    num_added: int = 0
    """Tasks."""
    num_known: int = 0
    """Tasks that the store held, with the same texts; they stay as they were asked."""
    gold_not_taken: list[str] = field(default_factory=list)
    """Of those known: tasks that stay without a gold answer or with another one."""
    recorded: Recorded = field(default_factory=lambda: Recorded(num_added=0, num_known=0))
    left_out: list[BadRow] = field(default_factory=list)
    """Items whose id the store knows with other texts, where they were to be left out."""


def import_items(
    store: PreferenceStore, items: Iterable[Item], *, with_judgments: bool = True, on_other_texts: OnBadRow = "error"
) -> Imported:
    """Add tasks that the store does not hold yet, and judgments; importing the same again changes nothing.

    A task is known by its id, and by what earlier versions called it, if the texts are the same. Where its completions stand
    in another order here, what was said is turned round to the store's order.

    Args:
        store: Where to.
        items: As ``read_items`` gives them.
        with_judgments: Whether what was said comes along.
        on_other_texts: An id that the store knows with other texts: ``error`` refuses the import, ``skip`` lists the row.

    Raises:
        DataError: An id is known with other texts; or something can't be kept. Nothing was added then.
    """
    brought = list(items)
    return write(store.engine, lambda session: _import(session, brought, with_judgments, on_other_texts))


def overlap_words(items: Sequence[Item], wanted: int) -> str:
    """That tasks which were judged less often than others in the file will not be asked again; empty where there is none.

    All judgments of a file are kept. How many are wanted of a task is a setting of the store, so a new store takes a task
    with one judgment for finished, whether or not the project that it comes from wanted three.

    Args:
        items: Of the file.
        wanted: Judgments of each task.
    """
    asked = [item for item in items if item.task.gold is None and item.task.kind is not TaskKind.MULTICLASS]
    given = [len({judgment.annotator for judgment in item.judgments}) for item in asked]
    most = max(given, default=0)
    started = sum(wanted <= number < most for number in given)
    if not started:
        return ""
    return (
        f"{counted(started, 'task')} of the file {'has' if started == 1 else 'have'} fewer judgments than others, which have up to {most}; "
        f"`rlhf annotate --overlap {most}` asks for the rest of them."
    )


def left_out_words(rows: Sequence[BadRow]) -> list[str]:
    """What is left out, one line for each reason: two models may answer thousands of prompts alike.

    Args:
        rows: With their reasons, in the order of the file.

    Returns:
        At most ``MAX_REASONS`` lines and one that counts what else is left out; empty where nothing is.
    """
    places: dict[str, list[str]] = {}
    for row in rows:
        places.setdefault(row.reason, []).append(row.where)
    lines = []
    for reason, where in list(places.items())[:MAX_REASONS]:
        if len(where) == 1:
            lines.append(f"left out: {where[0]}: {reason}")
            continue
        more = f" and {len(where) - MAX_PLACES:,} more" if len(where) > MAX_PLACES else ""
        lines.append(
            f"left out, {len(where):,} times: {reason.removesuffix('.')} ({', '.join(where[:MAX_PLACES])}{more})."
        )
    if rest := sum(len(where) for where in list(places.values())[MAX_REASONS:]):
        lines.append(f"... and {rest:,} more left out, for {counted(len(places) - MAX_REASONS, 'other reason')}.")
    return lines


def _import(session: Session, items: Sequence[Item], with_judgments: bool, on_other_texts: OnBadRow) -> Imported:
    shelf = _Known.of(session)
    result, made, now = Imported(), [], datetime.now(UTC)
    # in this transaction: somebody may have been forgotten since the file was read
    forgotten = {row.name: row.forgotten_at for row in session.scalars(sa.select(ForgottenRow))}
    for given in items:
        item = given
        if forgotten:
            rest = _without_forgotten(item, forgotten)
            if rest is None:
                result.left_out.append(BadRow(item.where, FORGOTTEN))
                continue
            item = rest
        there = shelf.tasks_of(item)
        if not there:
            session.add(_row_of(item, now))
            result.num_added += 1
            made += [(item.task.id, judgment) for judgment in item.judgments]
            continue
        places = places_of(there[0], item.task)
        if places is None:
            reason = _other_texts(there[0], item.task)
            if on_other_texts == "error":
                raise RowError(item.where, f"{reason} Nothing was imported.")
            result.left_out.append(BadRow(item.where, reason))
            continue
        result.num_known += 1
        same = turned(item, places)
        if same.task.gold is not None and same.task.gold != there[0].gold:
            result.gold_not_taken.append(there[0].id)
        made += shelf.placed(session, item, there)
    if with_judgments and made:
        session.flush()
        result.recorded = keep_judgments(session, made)
    return result


@dataclass(slots=True)
class _Known:
    """Tasks of the store by their names."""

    by_id: Mapping[str, Task]
    by_lasting_id: Mapping[str, Sequence[Task]]
    """Several where an earlier version named tasks by their content in the order of the file, and so one question twice."""

    @classmethod
    def of(cls, session: Session) -> _Known:
        tasks = [task_of(row) for row in session.scalars(sa.select(TaskRow).order_by(TaskRow.number))]
        by_lasting_id: dict[str, list[Task]] = {}
        for task in tasks:
            by_lasting_id.setdefault(lasting_id(task), []).append(task)
        return cls(by_id={task.id: task for task in tasks}, by_lasting_id=by_lasting_id)

    def tasks_of(self, item: Item) -> Sequence[Task]:
        """Those that this one is: the one of its name, or else one that an earlier version named and that shows the same."""
        if known := self.by_lasting_id.get(item.task.id):
            return known
        old = (self.by_id[name] for name in item.old_ids if name in self.by_id)
        return [task for task in old if places_of(task, item.task) is not None]

    def placed(self, session: Session, item: Item, there: Sequence[Task]) -> list[tuple[str, ItemJudgment]]:
        """What was said, in the store's order; of a question that is there twice, where its author has judged it."""
        judged: dict[str, Task] = {}
        if len(there) > 1:
            query = (
                sa.select(TaskRow.id, AnnotatorRow.name)
                .select_from(AssignmentRow)
                .join(TaskRow, TaskRow.number == AssignmentRow.task)
                .join(AnnotatorRow, AnnotatorRow.number == AssignmentRow.annotator)
                .where(AssignmentRow.state == DONE, TaskRow.id.in_([task.id for task in there]))
            )
            judged = {name: self.by_id[task] for task, name in session.execute(query)}
        judgments = []
        for judgment in item.judgments:
            task = judged.get(judgment.annotator, there[0])
            places = places_of(task, item.task)
            assert places is not None, "all of them have one name by content"
            judgments.append((task.id, turned(replace(item, judgments=(judgment,)), places).judgments[0]))
        return judgments


def _without_forgotten(item: Item, forgotten: Mapping[str, datetime]) -> Item | None:
    """An item without words of people that are older than the day they were forgotten, or have no time; None where nothing is left."""

    def is_gone(name: object, time: datetime | None) -> bool:
        since = forgotten.get(str(name))
        return since is not None and (time is None or time <= since)

    own = item.task.columns.get(TRACE)
    if isinstance(own, Mapping) and is_gone(own.get(TRACE_USER), None):
        return None
    kept = tuple(
        one
        for one in item.judgments
        if not is_gone(one.annotator, one.made_at) and not is_gone((one.trace or {}).get(TEXT_OF), one.made_at)
    )
    return replace(item, judgments=kept) if kept or not item.judgments else None


def _row_of(item: Item, now: datetime) -> TaskRow:
    try:
        return row_of(item.task, now)
    except DataError as err:
        raise RowError(item.where, str(err)) from err


def _other_texts(known: Task, new: Task) -> str:
    if text_key(known.prompt) != text_key(new.prompt):
        shown = text_key(known.prompt)
        beginning = repr(shown if len(shown) <= MAX_SHOWN else f"{shown[:MAX_SHOWN]} ...")
        what = f"another prompt ({beginning})"
    else:
        what = "other completions of the same prompt"
    return (
        f"the store knows the id {new.id!r} with {what}, so this is another task, or its text was changed. Give the row an id of its "
        "own, or none: it is then named by its content."
    )
