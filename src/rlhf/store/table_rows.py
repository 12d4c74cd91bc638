"""Between rows of tables and what the store gives and takes: what goes in comes out, or is refused on input."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import partial
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from rlhf.data.expand import text_key
from rlhf.errors import DataError
from rlhf.store.tables import JudgmentRow, ResponseRow, TaskRow
from rlhf.store.values import MAX_TEXT, KeyTakenError, Response, Submission, Task, TaskKind

FLAGS = ("unsafe", "unclear", "broken", "personal_data", "all_good", "all_bad")
"""What an annotator can say of an item next to judging it. Which completion is better, or that neither is, is one question;
whether any of them is good enough is another, and the last two answer it."""
OPPOSITES = ("all_good", "all_bad")
MAX_NUMBER = 2**31 - 1
"""Of a row: what an integer column of PostgreSQL holds."""
MAX_KEY = 64
MIN_UNDO_KEY = 16
"""Longer than any row's number."""
UNDO_PREFIX = "undo-"
"""Of the keys that the store makes itself."""
MAX_SPANS = 100


def row_of(task: Task, now: datetime) -> TaskRow:
    """A task as it is kept.

    Raises:
        DataError: It holds something that can't be kept.
    """
    keep = partial(as_json, what=f"Task {task.id!r}")
    return TaskRow(
        id=task.id, kind=str(task.kind), prompt=keep(task.prompt), gold=task.gold, priority=task.priority,
        batch=task.batch, columns=keep(dict(task.columns)), added_at=now,
        responses=[
            ResponseRow(
                place=place, text=keep(r.text), model=r.model, sampling=keep(dict(r.sampling)),
                columns=keep(dict(r.columns)),
            )
            for place, r in enumerate(task.responses)
        ],
    )  # fmt: skip


def task_of(row: TaskRow) -> Task:
    """A task as it went in."""
    return Task(
        id=row.id, kind=TaskKind(row.kind), prompt=row.prompt, gold=row.gold, priority=row.priority, batch=row.batch,
        columns=row.columns,
        responses=[
            Response(text=r.text, model=r.model, sampling=r.sampling, columns=r.columns) for r in row.responses
        ],
    )  # fmt: skip


def keep_tasks(session: Session, tasks: Iterable[Task], now: datetime, *, skip_known: bool) -> int:
    """Add tasks within a transaction; see ``PreferenceStore.add_tasks``."""
    brought = list(tasks)
    taken = set(session.scalars(sa.select(TaskRow.id)))
    seen: dict[str, Task] = {}
    if skip_known and any(
        task.id in taken for task in brought
    ):  # read at once: one by one takes a hundred times as long
        seen = {row.id: task_of(row) for row in session.scalars(sa.select(TaskRow))}
    added = 0
    for task in brought:
        if task.id not in taken:
            taken.add(task.id)
            seen[task.id] = task
            session.add(row_of(task, now))
            added += 1
        elif not skip_known:
            raise DataError(f"A task with the id {task.id!r} is there already; give each its own, or skip known ones.")
        elif _texts(seen[task.id]) != _texts(task):
            raise DataError(
                f"A task with the id {task.id!r} is there already and shows other texts; nothing was added. Give the new one an id of "
                "its own."
            )
    return added


def _texts(task: Task) -> tuple[str, list[str]]:
    """What is shown, whichever completion comes first."""
    return text_key(task.prompt), sorted(text_key(response.text) for response in task.responses)


def as_json(value: Any, *, what: str = "It") -> Any:
    """What JSON gives back is what went in, or an error now rather than a surprise later.

    Raises:
        DataError: It is nothing that JSON can hold, or nothing that UTF-8 can: a page or a file that shows half a character
            breaks as a whole. Begins with ``what``.
    """
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False)
        text.encode()
        return json.loads(text)
    except UnicodeEncodeError as err:
        raise DataError(
            f"{what} holds half a character ({err.object[err.start]!r}), which is not Unicode text; write it without."
        ) from None
    except (TypeError, ValueError, RecursionError) as err:
        raise DataError(
            f"{what} holds something that JSON can't ({err}); wanted texts, numbers, lists and mappings."
        ) from None


def check_key(key: str) -> None:
    """Refuse a submission's key that no page of ours makes.

    Raises:
        DataError: It is empty, too long, not printable, or one that the store keeps for itself.
    """
    if not 0 < len(key) <= MAX_KEY or not (key.isascii() and key.isprintable()) or key.startswith(UNDO_PREFIX):
        raise DataError(
            f"A submission's key has 1 to {MAX_KEY} printable ASCII characters and does not begin with {UNDO_PREFIX!r}; "
            f"got {key[:80]!r}."
        )


def check_same(known: JudgmentRow, sent: Mapping[str, Any]) -> None:
    """Refuse a judgment under the key of another one: anyone who sends it would take it for kept.

    Args:
        known: What is kept under the key.
        sent: Columns of what comes under it now.

    Raises:
        KeyTakenError: They differ.
    """
    differs = next((name for name, value in sent.items() if getattr(known, name) != value), None)
    if differs is not None:
        raise KeyTakenError(
            f"The key of this judgment was used for another one ({differs} differs), which is kept; this one is not. Make a key "
            "of its own for each judgment."
        )


def check_undo_key(key: str) -> None:
    """Refuse an undo's key that could be taken for one that the store makes, which are numbers.

    Raises:
        DataError: It is too short or too long, or holds something else than letters, digits and hyphens.
    """
    if not MIN_UNDO_KEY <= len(key) <= MAX_KEY - len(UNDO_PREFIX) or not re.fullmatch(r"[A-Za-z0-9-]+", key):
        raise DataError(
            f"An undo's key has {MIN_UNDO_KEY} to {MAX_KEY - len(UNDO_PREFIX)} letters, digits or hyphens; got {key[:80]!r}."
        )


def extras_of(sent: Submission) -> dict[str, Any]:
    """What a submission says in addition to its value, checked.

    Raises:
        DataError: Something of it is not a comment, flag, span, share or time.
    """
    if len(sent.comment) > MAX_TEXT:
        raise DataError(f"The comment has {len(sent.comment):,} characters; at most {MAX_TEXT:,} are kept.")
    if unknown := [flag for flag in sent.flags if flag not in FLAGS]:
        raise DataError(f"There is no flag {unknown[0]!r}; flags are {', '.join(FLAGS)}.")
    if set(OPPOSITES) <= set(sent.flags):
        raise DataError(f"The flags {' and '.join(OPPOSITES)} contradict each other; keep one of them.")
    if len(sent.spans) > MAX_SPANS:
        raise DataError(f"{len(sent.spans)} passages are marked; at most {MAX_SPANS} are kept.")
    if sent.label_probability is not None and not 0 <= sent.label_probability <= 1:
        raise DataError(f"label_probability is {sent.label_probability}; it must be between 0 and 1.")
    if sent.seconds is not None and not (math.isfinite(sent.seconds) and sent.seconds >= 0):
        raise DataError(f"seconds is {sent.seconds}; a time is at least 0.")
    if not (sent.diff_viewed is None or isinstance(sent.diff_viewed, bool)):
        raise DataError(f"diff_viewed is {sent.diff_viewed!r}; wanted true, false or null.")
    return {
        "comment": _storable(sent.comment), "flags": list(sent.flags), "spans": [_span(span) for span in sent.spans],
        "label_probability": sent.label_probability, "seconds": sent.seconds, "diff_viewed": sent.diff_viewed,
    }  # fmt: skip


def _span(span: Mapping[str, Any]) -> Any:
    """A passage; what somebody wrote of it is kept like a comment."""
    clean = {name: _storable(value) if isinstance(value, str) else value for name, value in span.items()}
    return as_json(clean, what="A marked passage")


def _storable(text: str) -> str:
    """A text as every database takes it: PostgreSQL refuses NUL, and no UTF-8 has half a character."""
    return (
        text.replace("\x00", "\N{REPLACEMENT CHARACTER}").encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    )
