"""Which task a task is: its name by content, and the same question with its completions in another order."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Any

from rlhf.data.contracts import Text
from rlhf.data.expand import text_key
from rlhf.errors import DataError
from rlhf.store.items import Item, ItemJudgment
from rlhf.store.values import MAX_ID, Task, TaskKind

KNOWN = "known"
"""The column next to a task of what a row says of it and nobody in particular has said."""
NAMED = "task-"
"""How names by content begin; hexadecimal digits follow, and what a reader of another layout puts behind them."""
NUM_DIGITS = 16


def content_id(kind: TaskKind, prompt: Any, texts: Sequence[Any]) -> str:
    """A name for a task that brings none: the same question has the same one in any file, whichever completion comes first."""
    return _named_in_order(kind, prompt, sorted(texts, key=text_key))


def sampled_id(given: str, kind: TaskKind, prompt: Any, texts: Sequence[Any]) -> str:
    """A name for sampled completions: a prompt may have an id, and completions that are sampled again are another question.

    Args:
        given: The prompt's id; empty where it has none.
        kind: How it is asked.
        prompt: Of the task.
        texts: Its completions.
    """
    if not given:
        return content_id(kind, prompt, texts)
    name = f"{given}#{_digest([prompt, *sorted(texts, key=text_key)])}"
    return name if len(name) <= MAX_ID else content_id(kind, prompt, texts)


def lasting_id(task: Task) -> str:
    """A task's id; of one that an earlier version named by its content in the order of the file, its name as of today."""
    if not task.id.startswith(NAMED):
        return task.id
    length = len(NAMED) + NUM_DIGITS
    texts = [response.text for response in task.responses]
    if task.id[:length] != _named_in_order(task.kind, task.prompt, texts):
        return task.id
    return content_id(task.kind, task.prompt, texts) + task.id[length:]


def places_of(first: Task, second: Task) -> list[int] | None:
    """Where each completion of one task is in another; None where they show other texts.

    Completions of the same text are distinguished by their models, as far as that goes.
    """
    if text_key(first.prompt) != text_key(second.prompt):
        return None
    wanted = [text_key(response.text) for response in first.responses]
    there = [text_key(response.text) for response in second.responses]
    if wanted == there:
        return list(range(len(wanted)))
    if sorted(wanted) != sorted(there):
        return None
    left = list(range(len(there)))
    place_of: dict[int, int] = {}
    for by_model in (True, False):
        for place, response in enumerate(first.responses):
            fits = (
                other
                for other in left
                if there[other] == wanted[place] and (not by_model or second.responses[other].model == response.model)
            )
            if place not in place_of and (other := next(fits, None)) is not None:
                place_of[place] = other
                left.remove(other)
    return [place_of[place] for place in range(len(wanted))]


def turned(item: Item, places: Sequence[int]) -> Item:
    """The same task with its completions in another order, and all that was said of it turned along.

    Args:
        item: A task and its judgments, whose values are those of its kind.
        places: For each place of the new order, where that completion is now.
    """
    if list(places) == list(range(len(places))):
        return item
    task = item.task
    columns = dict(task.columns)
    if KNOWN in columns:
        columns[KNOWN] = _turned_value(columns[KNOWN], places)
    new = replace(
        task, columns=columns, gold=None if task.gold is None else _turned_value(task.gold, places),
        responses=[task.responses[place] for place in places],
    )  # fmt: skip
    return replace(item, task=new, judgments=tuple(_turned_judgment(judgment, places) for judgment in item.judgments))


def merged(items: Iterable[tuple[str, Item]]) -> list[Item]:
    """Items of the same task made one, in order of appearance; several rows may tell of one task.

    Completions stand as in the first of its rows, and what the others say is turned round to that. Where rows know different
    things of a task (``known``, which nobody vouches for), all of it is kept, as a list.

    Args:
        items: Each with the row it came from.

    Raises:
        DataError: Two have the same id and ask something else, or know another right answer.
    """
    tasks: dict[str, Item] = {}
    judgments: dict[str, list[ItemJudgment]] = {}
    known: dict[str, list[Any]] = {}
    sources: dict[str, str] = {}
    """Task -> the row that gave its gold value, or else its first."""
    for where, brought in items:
        item = replace(brought, where=where, task=replace(brought.task, id=lasting_id(brought.task)))
        name = item.task.id
        first, row = tasks.setdefault(name, item), sources.setdefault(name, where)
        places = places_of(first.task, item.task)
        if places is None or first.task.kind is not item.task.kind:
            raise DataError(
                f"Two rows have the id {name!r} and another {difference(first.task, item.task)} ({row} and {where}); give each task "
                "its own id, or say how all are asked (--kind)."
            )
        item = turned(item, places)
        gold, new_gold = first.task.gold, item.task.gold
        if gold is None and new_gold is not None:
            tasks[name], sources[name] = replace(first, task=replace(first.task, gold=new_gold)), where
        elif new_gold is not None and new_gold != gold:
            raise DataError(
                f"Two rows know another right answer to the task {name!r}: {dict(gold or {})} in {row} and {dict(new_gold)} in "
                f"{where}, both with the completions in the order of the first; keep the one that is right."
            )
        heard = judgments.setdefault(name, [])
        heard.extend(one for one in item.judgments if one not in heard)
        if KNOWN in item.task.columns and (says := item.task.columns[KNOWN]) not in known.setdefault(name, []):
            known[name].append(says)
    return [_with_all(item, judgments[name], known.get(name, [])) for name, item in tasks.items()]


def difference(first: Task, second: Task) -> str:
    """What two tasks of one id ask differently, in words; empty where they show the same texts and ask alike."""
    if first.kind is not second.kind:
        return f"kind ({first.kind} and {second.kind})"
    if text_key(first.prompt) != text_key(second.prompt):
        return "prompt"
    return "completions" if places_of(first, second) is None else ""


def _with_all(item: Item, judgments: Sequence[ItemJudgment], known: Sequence[Any]) -> Item:
    if len(known) > 1:
        item = replace(item, task=replace(item.task, columns={**item.task.columns, KNOWN: list(known)}))
    return replace(item, judgments=tuple(judgments))


def _turned_judgment(judgment: ItemJudgment, places: Sequence[int]) -> ItemJudgment:
    now = {old: new for new, old in enumerate(places)}
    return replace(
        judgment, value=_turned_value(judgment.value, places),
        order=None if judgment.order is None else tuple(now[place] for place in judgment.order),
        spans=tuple(_turned_span(span, now) for span in judgment.spans),
    )  # fmt: skip


def _turned_span(span: Mapping[str, Any], now: Mapping[int, int]) -> Mapping[str, Any]:
    place = span.get("completion")
    return {**span, "completion": now[place]} if isinstance(place, int) and place in now else span


def _turned_value(value: Any, places: Sequence[int]) -> Any:
    """A judgment's value for the completions in another order; something of another shape (somebody's own) as it is."""
    if not isinstance(value, Mapping):
        return value
    return {name: _turned(name, given, places) for name, given in value.items()}


def _turned(name: str, given: Any, places: Sequence[int]) -> Any:
    if name == "preference" and len(places) == 2:
        return {"a": "b", "b": "a"}.get(given, given) if isinstance(given, str) else given
    if name == "grade" and isinstance(given, int):
        return -given
    if name in ("ranks", "mean_ratings") and isinstance(given, list) and len(given) == len(places):
        return [given[place] for place in places]
    if name == "ratings" and isinstance(given, Mapping):
        return {dimension: _turned("ranks", numbers, places) for dimension, numbers in given.items()}
    return given


def _named_in_order(kind: TaskKind, prompt: Text, texts: Sequence[Text]) -> str:
    return f"{NAMED}{_digest([str(kind), prompt, list(texts)])}"


def _digest(parts: Sequence[Any]) -> str:
    content = json.dumps(parts, sort_keys=True, ensure_ascii=False)
    return blake2b(content.encode(), digest_size=NUM_DIGITS // 2).hexdigest()
