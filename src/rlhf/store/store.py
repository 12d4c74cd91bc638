"""The preference store: tasks in, judgments out, nothing overwritten."""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

import sqlalchemy as sa
from sqlalchemy.orm import Session

from rlhf.errors import ConfigError, DataError, check_type
from rlhf.store.assign import (
    AssignmentRules,
    Skipped,
    give_back,
    skipped_tasks,
    take_slot_again,
    take_task,
)
from rlhf.store.database import open_engine, reading, write, writing
from rlhf.store.events import Event, keep_events
from rlhf.store.judgments import current_judgments, keep_judgment, own_assignment, take_back_last
from rlhf.store.labeling_progress import progress_of
from rlhf.store.migrate import upgrade
from rlhf.store.table_rows import (
    MAX_NUMBER,
    as_json,
    keep_tasks,
    task_of,
)
from rlhf.store.tables import (
    DONE,
    SKIPPED,
    AnnotatorRow,
    AssignmentRow,
    EventRow,
    SettingRow,
    TaskRow,
)
from rlhf.store.values import (
    Assignment,
    Judgment,
    Progress,
    Submission,
    Task,
    TaskKind,
    is_name,
    shortened,
)

OWN_ID = "name"
"""The setting that holds what tells this store from every other one."""


class PreferenceStore:
    """Tasks, annotators, assignments, judgments and events in one database.

    Args:
        place: A file for SQLite, made if it is not there, or a database URL.
        rules: How tasks are handed out; by default those the store was made with.
        seed: Of positions and gold items.
    """

    def __init__(self, place: str | Path, *, rules: AssignmentRules | None = None, seed: int | None = None) -> None:
        check_type(place, (str, Path), name="place", expected="a file, or a database URL")
        self.engine = open_engine(place)
        try:
            upgrade(self.engine)
        except BaseException:
            self.engine.dispose()
            raise
        if rules is not None:
            self.set_setting("rules", rules.model_dump(mode="json"))
        kept = self.setting("rules")
        self.rules = rules or (AssignmentRules.of(kept) if kept is not None else AssignmentRules())
        if seed is not None:
            self.set_setting("seed", seed)
        self.seed = int(self.setting("seed", 0))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the database back."""
        self.engine.dispose()

    # ------------------------------------------------------------------------------------------------- settings

    def setting(self, name: str, default: Any = None) -> Any:
        """A decision of the owner's."""
        with reading(self.engine) as session:
            row = session.get(SettingRow, name)
            return default if row is None else row.value

    def set_setting(self, name: str, value: Any) -> None:
        """Keep a decision of the owner's."""

        kept = as_json(value, what=f"The setting {name!r}")

        def keep(session: Session) -> None:
            session.merge(SettingRow(name=name, value=kept))

        write(self.engine, keep)

    @property
    def own_id(self) -> str:
        """What tells this store from every other one, made when it is first asked for: links and unsent judgments are one
        store's alone."""
        return self.own_secret(OWN_ID, num_bytes=8)

    def own_secret(self, name: str, *, num_bytes: int = 32) -> str:
        """Hexadecimal digits that are drawn when they are first asked for, and the same ever after."""
        if (known := self.setting(name)) is not None:
            return str(known)

        def keep(session: Session) -> str:
            row = session.get(SettingRow, name)  # somebody else may have made it meanwhile
            if row is None:
                session.add(row := SettingRow(name=name, value=secrets.token_hex(num_bytes)))
                session.flush()
            return str(row.value)

        return write(self.engine, keep)

    # ---------------------------------------------------------------------------------------------------- tasks

    def add_tasks(self, tasks: Iterable[Task], *, on_known: str = "error") -> int:
        """Add tasks, all or none.

        Args:
            tasks: In the order they are to be asked, priorities being equal.
            on_known: What happens to an id that is there already: ``error``, or ``skip`` if its texts are the same, in any order.

        Returns:
            How many were added.

        Raises:
            DataError: An id is there already, or comes twice, with other texts; or a task holds something that can't be kept.
        """
        brought, now = list(tasks), _now()
        return write(self.engine, lambda session: keep_tasks(session, brought, now, skip_known=on_known == "skip"))

    def tasks(self) -> Iterator[Task]:
        """All, in order."""
        with reading(self.engine) as session:
            for row in session.scalars(sa.select(TaskRow).order_by(TaskRow.number)):
                yield task_of(row)

    def batches(self) -> dict[str, int]:
        """Batch -> its tasks; tasks without a batch have the empty one."""
        with reading(self.engine) as session:
            query = sa.select(TaskRow.batch, sa.func.count()).group_by(TaskRow.batch).order_by(TaskRow.batch)
            return {str(name): int(number) for name, number in session.execute(query)}

    def num_never_asked(self) -> int:
        """Tasks of kind ``multiclass``: their labels are imported, and the page does not ask for them."""
        with reading(self.engine) as session:
            query = sa.select(sa.func.count()).select_from(TaskRow).where(TaskRow.kind == TaskKind.MULTICLASS)
            return session.scalar(query) or 0

    def set_priorities(self, priorities: Mapping[str, float]) -> None:
        """Ask some tasks sooner: ``rlhf.feedback`` sets these from a reward ensemble's disagreement.

        Raises:
            DataError: An id is not there, or a priority is not a finite number.
        """
        with writing(self.engine) as session:
            for name, priority in priorities.items():
                if not math.isfinite(priority):
                    raise DataError(f"The priority of task {name!r} is {priority}; wanted a finite number.")
                changed = session.execute(sa.update(TaskRow).where(TaskRow.id == name).values(priority=float(priority)))
                if not changed.rowcount:  # type: ignore[attr-defined]
                    raise DataError(f"There is no task {name!r} to set a priority of.")

    # ----------------------------------------------------------------------------------------------- annotators

    def add_annotator(
        self, name: str, *, role: str = "annotator", secret_hash: str | None = None, max_judgments: int | None = None
    ) -> int:
        """Make somebody known, or change what is known of them; returns their number."""
        if role not in ("annotator", "owner"):
            raise ConfigError(f"A role is `annotator` or `owner`; got {role!r} for {name!r}.")
        if not is_name(name):
            raise ConfigError(f"An annotator's name has 1 to 64 printable characters; got {shortened(name)}.")

        def keep(session: Session) -> int:
            row = session.scalar(sa.select(AnnotatorRow).where(AnnotatorRow.name == name))
            if row is None:
                row = AnnotatorRow(name=name, added_at=_now())
                session.add(row)
            row.role, row.max_judgments = role, max_judgments
            row.secret_hash = secret_hash if secret_hash is not None else row.secret_hash
            session.flush()
            return row.number

        return write(self.engine, keep)

    def annotators(self) -> list[AnnotatorRow]:
        """Everybody, in the order they came."""
        with reading(self.engine) as session:
            return list(session.scalars(sa.select(AnnotatorRow).order_by(AnnotatorRow.number)))

    # --------------------------------------------------------------------------------------------------- judging

    def next_task(self, annotator: str, *, beside: int | None = None, now: datetime | None = None) -> Assignment | None:
        """What somebody is to judge next: what they have open, or a new one; None where nothing is left for them.

        Two annotators never get the same slot, however many ask at once; a slot whose holder went silent comes back.
        With ``beside``, what follows that open assignment of theirs.
        """
        who, now = self._number_of(annotator), now or _now()
        taken = take_task(self.engine, who, rules=self.rules, seed=self.seed, now=now, beside=beside)
        return None if taken is None else replace(self.assignment(taken.assignment), fresh=taken.fresh)

    def assignment(self, number: int, *, annotator: str | None = None) -> Assignment:
        """One assignment; with a name, only if it is theirs."""
        with reading(self.engine) as session:
            row = session.get(AssignmentRow, number) if 0 < number <= MAX_NUMBER else None
            if row is None:
                raise DataError(f"There is no assignment {number}.")
            if annotator is not None and session.get_one(AnnotatorRow, row.annotator).name != annotator:
                raise DataError(f"There is no assignment {number} of {annotator!r}.")
            task = session.get_one(TaskRow, row.task)
            return Assignment(
                number=row.number, task=task_of(task), expires_at=row.expires_at, is_gold=task.gold is not None,
                order=list(range(len(task.responses)) if row.order is None else row.order),
            )  # fmt: skip

    def submit(self, annotator: str, sent: Submission, *, now: datetime | None = None) -> int:
        """Keep a judgment; when this returns, it is on disk.

        The same judgment sent again under its key changes nothing and returns the same number. A second judgment of an
        assignment, under a key of its own, replaces the first, which stays in the table.

        Returns:
            The judgment's number.

        Raises:
            DataError: The value is not one of the task's kind, or the assignment is somebody else's, or its time was over and
                others have all of the task's slots since.
            KeyTakenError: The key was used for another judgment.
        """
        made_at = now or _now()
        return write(
            self.engine, lambda session: keep_judgment(session, annotator, sent, made_at, overlap=self.rules.overlap)
        )

    def undo(self, annotator: str, *, key: str | None = None, now: datetime | None = None) -> Assignment | None:
        """Take back the last judgment that somebody made; it is theirs again. None where there is none to take back.

        Args:
            annotator: Who.
            key: Made by the page, once for each undo: the same key again takes back nothing more, and shows the same task
                for as long as it is open.
            now: For tests.

        Raises:
            DataError: The key is none.
            KeyTakenError: Somebody else used the key.
        """
        who, made_at = self._number_of(annotator), now or _now()
        expires_at = made_at + timedelta(minutes=self.rules.timeout_minutes)

        def take_back(session: Session) -> int | None:
            return take_back_last(session, annotator, who, key, made_at=made_at, expires_at=expires_at, seed=self.seed)

        number = write(self.engine, take_back)
        return None if number is None else self.assignment(number)

    def skip(self, annotator: str, number: int) -> None:
        """Give a task back without judging it; somebody else gets it."""

        def to_others(session: Session) -> None:
            row = own_assignment(session, annotator, number)
            if row.state == DONE:
                raise DataError("This task is judged already; undo the judgment first.")
            row.state = SKIPPED

        write(self.engine, to_others)

    def leave(self, annotator: str, held: Mapping[int, datetime]) -> int:
        """Give back what somebody holds and has not begun; see ``give_back``. They may get it again."""
        who = self._number_of(annotator)
        return write(self.engine, lambda session: give_back(session, who, held))

    def unskip(self, annotator: str, number: int, *, now: datetime | None = None) -> Assignment:
        """Take back a skip: the task is theirs again, unless others have all of its slots by now."""

        def take_back(session: Session) -> None:
            row = own_assignment(session, annotator, number)
            take_slot_again(session, row, overlap=self.rules.overlap)
            row.expires_at = (now or _now()) + timedelta(minutes=self.rules.timeout_minutes)

        write(self.engine, take_back)
        return self.assignment(number)

    def skipped(self) -> Skipped:
        """How many tasks wait that people skipped."""
        return skipped_tasks(self.engine, overlap=self.rules.overlap)

    def progress(self, annotator: str | None = None) -> Progress:
        """How far the set is (the batch that is handed out, or all), and one annotator in the whole store."""
        return progress_of(self.engine, self.rules, annotator)

    def judgments(self, annotator: str | None = None) -> list[Judgment]:
        """Those that count: not replaced, not taken back; in the order they were made."""
        with reading(self.engine) as session:
            return current_judgments(session, annotator)

    # ---------------------------------------------------------------------------------------------------- events

    def add_events(self, events: Sequence[Event], *, program: str) -> list[int]:
        """Keep several, all or none; their numbers. See ``keep_events``."""
        return keep_events(self.engine, events, program=program)

    def events(self) -> list[EventRow]:
        """All, in the order they came."""
        with reading(self.engine) as session:
            return list(session.scalars(sa.select(EventRow).order_by(EventRow.number)))

    # --------------------------------------------------------------------------------------------------- helpers

    def _number_of(self, annotator: str) -> int:
        with reading(self.engine) as session:
            row = session.scalar(sa.select(AnnotatorRow).where(AnnotatorRow.name == annotator))
        if row is None or not row.active:
            raise DataError(f"Nobody called {annotator!r} may judge here; invite them first.")
        return row.number


def _now() -> datetime:
    return datetime.now(UTC)
