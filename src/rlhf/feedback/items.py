"""What travels between files, stores and other tools: a task, and what has been said of it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from rlhf.data.contracts import RowError
from rlhf.data.words import one_line
from rlhf.errors import DataError
from rlhf.feedback.store.values import Task, TaskKind, check_value

if TYPE_CHECKING:
    from rlhf.feedback.store import Judgement, PreferenceStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """One judgement, as a file knows it."""

    annotator: str
    value: Mapping[str, Any]
    """In the task's order of completions; see ``check_value``."""
    order: Sequence[int] | None = None
    """Places of the completions as they stood on the screen; None where the file does not tell."""
    comment: str = ""
    flags: Sequence[str] = ()
    spans: Sequence[Mapping[str, Any]] = ()
    confidence: float | None = None
    seconds: float | None = None
    made_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A task with its judgements, in the order they were made."""

    task: Task
    said: Sequence[Said] = field(default_factory=tuple)


def check_item(item: Item, where: str = "") -> Item:
    """The same item with its values in canonical shape.

    Raises:
        DataError: Something was said that is no answer to this task; begins with ``where``.
    """
    task = item.task
    begin = f"{where}: t" if where else "T"
    said = [
        replace(
            one,
            value=check_value(
                task.kind, one.value, num_responses=len(task.responses),
                where=f"{begin}he judgement of task {task.id!r} by {one.annotator!r}",
            ),
        )
        for one in item.said
    ]  # fmt: skip
    for one in said:
        if one.order is not None and sorted(one.order) != list(range(len(task.responses))):
            raise DataError(
                f"{begin}he order of task {task.id!r} is {list(one.order)}; wanted each of 0 to {len(task.responses) - 1} once."
            )
    return replace(item, said=said)


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
        found = f"{type(err).__name__}: {one_line(err, 120)}"
        raise RowError(
            where, f"a value in it has not the shape that {what} has ({found}); mend the row, or export it anew."
        ) from err


def content_id(kind: TaskKind, prompt: Any, texts: Sequence[Any]) -> str:
    """A name for a task that brings none: the same content has the same one in any file."""
    content = json.dumps([str(kind), prompt, list(texts)], sort_keys=True, ensure_ascii=False)
    return f"task-{blake2b(content.encode(), digest_size=8).hexdigest()}"


def merged(items: Iterable[tuple[str, Item]]) -> list[Item]:
    """Items of the same task made one, in order of appearance; several rows may tell of one task.

    Args:
        items: Each with the row it came from.

    Raises:
        DataError: Two have the same id and ask something else, or know another right answer.
    """
    tasks: dict[str, Task] = {}
    said: dict[str, list[Said]] = {}
    told: dict[str, str] = {}
    """Task -> the row that told its gold value, or else its first."""
    for where, item in items:
        new = item.task
        known_task, first = tasks.setdefault(new.id, new), told.setdefault(new.id, where)
        if difference := _difference(known_task, new):
            raise DataError(
                f"Two rows have the id {new.id!r} and another {difference} ({first} and {where}); give each task its own id, or say "
                "how all are asked (--kind)."
            )
        if known_task.gold is None and new.gold is not None:
            tasks[new.id], told[new.id] = replace(known_task, gold=new.gold), where
        elif new.gold is not None and new.gold != known_task.gold:
            raise DataError(
                f"Two rows know another right answer to the task {new.id!r}: {dict(known_task.gold or {})} in {first} and "
                f"{dict(new.gold)} in {where}; keep the one that is right."
            )
        known = said.setdefault(new.id, [])
        known.extend(one for one in item.said if one not in known)
    return [Item(task=task, said=tuple(said[name])) for name, task in tasks.items()]


def _difference(first: Task, second: Task) -> str:
    if first is second:
        return ""
    if first.kind is not second.kind:
        return f"kind ({first.kind} and {second.kind})"
    if first.prompt != second.prompt:
        return "prompt"
    return "completions" if [r.text for r in first.responses] != [r.text for r in second.responses] else ""


def items_of(store: PreferenceStore) -> list[Item]:
    """Everything a store holds that counts."""
    said: dict[str, list[Said]] = {}
    for judgement in store.judgements():
        said.setdefault(judgement.task.id, []).append(said_of(judgement))
    return [Item(task=task, said=tuple(said.get(task.id, ()))) for task in store.tasks()]


def said_of(judgement: Judgement) -> Said:
    """A store's judgement without its task."""
    return Said(
        annotator=judgement.annotator, value=judgement.value, comment=judgement.comment,
        order=None if judgement.order is None else tuple(judgement.order),
        flags=tuple(judgement.flags), spans=tuple(judgement.spans), confidence=judgement.confidence,
        seconds=judgement.seconds, made_at=judgement.made_at,
    )  # fmt: skip


def moment_of(text: Any, where: str = "") -> datetime | None:
    """A time as files write it (ISO 8601); one without a zone is UTC.

    Raises:
        DataError: It is no time.
    """
    if text is None or text == "":
        return None
    try:
        found = datetime.fromisoformat(str(text))
    except ValueError:
        raise DataError(f"{where}: {text!r} is no time; wanted ISO 8601 such as 2026-11-21T10:00:00Z.") from None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
