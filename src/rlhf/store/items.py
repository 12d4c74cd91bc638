"""What travels between files, stores and other tools: a task, and what has been said of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from rlhf.data.contracts import RowError
from rlhf.data.message_text import one_line
from rlhf.errors import DataError
from rlhf.store.table_rows import as_json, extras_of
from rlhf.store.values import Submission, Task, check_value, is_name, shortened

if TYPE_CHECKING:
    from rlhf.store.store import PreferenceStore
    from rlhf.store.values import Judgment


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemJudgment:
    """One judgment, as a file knows it."""

    annotator: str
    value: Mapping[str, Any]
    """In the task's order of completions; see ``check_value``."""
    order: Sequence[int] | None = None
    """Places of the completions as they stood on the screen; None where the file does not tell."""
    comment: str = ""
    flags: Sequence[str] = ()
    spans: Sequence[Mapping[str, Any]] = ()
    label_probability: float | None = None
    seconds: float | None = None
    made_at: datetime | None = None
    diff_viewed: bool | None = None
    """As ``Judgment.diff_viewed``."""
    trace: Mapping[str, Any] | None = None
    """The conversation of another tool that it was said of (``tool``, ``trace_id``, ``message_id`` ...); None where there is none."""
    where: str = field(default="", compare=False)
    """File and line it came from, for messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A task with its judgments, in the order they were made."""

    task: Task
    judgments: Sequence[ItemJudgment] = field(default_factory=tuple)
    old_ids: Sequence[str] = field(default=(), compare=False)
    """What earlier versions called the task; it is the one of that name in a store if that shows the same texts."""
    where: str = field(default="", compare=False)
    """File and line it came from, for messages."""


def check_item(item: Item, where: str = "") -> Item:
    """The same item with its values in canonical shape, and all of a judgment as a store takes it.

    Raises:
        DataError: Something was said that is not an answer to this task, or that can't be kept; begins with ``where``.
    """
    task = item.task
    judgments = []
    for one in item.judgments:
        what = judgment_words(task.id, one.annotator, where)
        value = check_value(task.kind, one.value, num_responses=len(task.responses), where=what)
        check_annotator(one.annotator, what)
        checked_extras(one, what)
        if one.trace is not None:
            as_json(dict(one.trace), what=f"The trace of {what[0].lower()}{what[1:]}")
        if one.order is not None and sorted(one.order) != list(range(len(task.responses))):
            begin = f"{where}: t" if where else "T"
            raise DataError(
                f"{begin}he order of task {task.id!r} is {list(one.order)}; wanted each of 0 to {len(task.responses) - 1} once."
            )
        judgments.append(replace(one, value=value, where=where))
    return replace(item, judgments=tuple(judgments))


def judgment_words(task_id: str, annotator: str, where: str = "") -> str:
    """How an error about a judgment begins."""
    return f"{f'{where}: t' if where else 'T'}he judgment of task {task_id!r} by {shortened(annotator)}"


def check_annotator(name: str, where: str) -> None:
    """Refuse a name that nobody may have.

    Raises:
        DataError: Begins with ``where``.
    """
    if not is_name(name):
        raise DataError(f"{where}: an annotator's name has 1 to 64 printable characters.")


def checked_extras(judgment: ItemJudgment, where: str) -> dict[str, Any]:
    """Comment, flags and the like, by the rules of what a page sends.

    Raises:
        DataError: Something of it can't be kept; begins with ``where``.
    """
    try:
        return extras_of(
            Submission(
                assignment=0, key="", value=judgment.value, comment=judgment.comment, flags=list(judgment.flags), spans=list(judgment.spans),
                label_probability=judgment.label_probability, seconds=judgment.seconds, diff_viewed=judgment.diff_viewed,
            )
        )  # fmt: skip
    except DataError as err:
        raise DataError(f"{where}: {err}") from None


@contextmanager
def laid_out_as(what: str, where: str) -> Iterator[None]:
    """Inside, a value of another shape than the layout has (a list where an object should be, at any depth) is a bad row.

    Raises:
        RowError: With the place, and what Python stumbled over.
    """
    try:
        yield
    except DataError:
        raise
    except (TypeError, ValueError, KeyError, AttributeError, IndexError) as err:
        problem = f"{type(err).__name__}: {one_line(err, 120)}"
        raise RowError(
            where, f"a value in it does not have the shape of {what} ({problem}); fix the row, or export it again."
        ) from err


def items_of(store: PreferenceStore) -> list[Item]:
    """Everything a store holds that counts."""
    judgments: dict[str, list[ItemJudgment]] = {}
    for judgment in store.judgments():
        judgments.setdefault(judgment.task.id, []).append(judgment_of(judgment))
    return [Item(task=task, judgments=tuple(judgments.get(task.id, ()))) for task in store.tasks()]


def judgment_of(judgment: Judgment) -> ItemJudgment:
    """A store's judgment without its task."""
    return ItemJudgment(
        annotator=judgment.annotator, value=judgment.value, comment=judgment.comment,
        order=None if judgment.order is None else tuple(judgment.order),
        flags=tuple(judgment.flags), spans=tuple(judgment.spans), label_probability=judgment.label_probability,
        seconds=judgment.seconds, made_at=judgment.made_at, diff_viewed=judgment.diff_viewed, trace=judgment.trace,
    )  # fmt: skip


def moment_of(text: Any, where: str = "") -> datetime | None:
    """A time as files write it (ISO 8601); one without a zone is UTC.

    Raises:
        DataError: It is not a time.
    """
    if text is None or text == "":
        return None
    try:
        moment = datetime.fromisoformat(str(text))
    except ValueError:
        raise DataError(f"{where}: {text!r} is not a time; wanted ISO 8601 such as 2026-11-21T10:00:00Z.") from None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
