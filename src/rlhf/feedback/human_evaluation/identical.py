"""Completions that can't be compared because they are the same, and comparisons that are not what they were."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from rlhf.data.contracts import Text
from rlhf.data.expand import text_key
from rlhf.data.message_text import counted
from rlhf.errors import DataError
from rlhf.store.values import Response, Task

MAX_SHOWN = 60
"""Characters of a prompt in an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alike:
    """How often two models' completions are the same: ties that nobody is asked about."""

    num_same: int
    """Prompts."""
    num_prompts: int
    """All prompts on which the two are compared, those among them."""


def alike_of(key: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], Alike]:
    """How often two models' completions are the same, of every pair that is compared.

    Args:
        key: ``models`` and ``item`` of every comparison, and ``identical`` of those that nobody is asked.
    """
    items, same = _items(key, lambda row: True), not_compared(key)
    return {pair: Alike(num_same=len(same.get(pair, ())), num_prompts=len(on)) for pair, on in items.items()}


def not_compared(key: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], set[str]]:
    """Pair of models -> the prompts on which nobody is asked to compare them."""
    asked = _items(key, lambda row: not row.get("identical"))
    same = _items(key, lambda row: bool(row.get("identical")))
    return {pair: items - asked.get(pair, set()) for pair, items in same.items()}


def task_digest(task: Task) -> str:
    """What is the same for two tasks that show the same texts of the same models, in whichever order."""
    return _digest(text_key(task.prompt), *(f"{r.model} {text_key(r.text)}" for r in _by_model(task)))


def check_unchanged(
    tasks: Iterable[Task], asked: Mapping[str, Task], not_asked: Mapping[str, Mapping[str, Any]]
) -> None:
    """Refuse tasks that an evaluation knows with other texts: left alone as known, they would be lost silently.

    Args:
        tasks: That are to be opened.
        asked: Id -> task, of those that the evaluation asks.
        not_asked: Id -> row of those that it does not, because their completions are the same, with their ``digest``.

    Raises:
        DataError: A task shows another prompt or other completions than the one of its id.
    """
    changed = []
    for task in tasks:
        digest = task_digest(task)
        if task.id in asked:
            known = task_digest(asked[task.id])
        else:
            known = not_asked.get(task.id, {}).get("digest", digest)
        if digest != known:
            changed.append(task)
    if not changed:
        return
    first = changed[0]
    before = asked.get(first.id)
    if before is not None and text_key(before.prompt) != text_key(first.prompt):
        what = f"another text ({_beginning(before.prompt)})"
    elif before is not None:
        earlier = {r.model: text_key(r.text) for r in before.responses}
        others = [str(r.model) for r in _by_model(first) if earlier.get(r.model) != text_key(r.text)]
        what = f"other completions of {', '.join(others)}"
    else:
        what = "other completions"
    prompts = len({str(task.columns["item"]) for task in changed})
    likewise = f", and so {'was' if prompts == 2 else 'were'} {counted(prompts - 1, 'other')}" if prompts > 1 else ""
    raise DataError(
        f"Prompt {str(first.columns['item'])!r} ({_beginning(first.prompt)}) was opened in this evaluation before, with {what}"
        f"{likewise}. Nothing was added: give the evaluation of the new ones a name of its own (--name), or the prompts other ids."
    )


def _items(
    key: Sequence[Mapping[str, Any]], wanted: Callable[[Mapping[str, Any]], bool]
) -> dict[tuple[str, str], set[str]]:
    items: dict[tuple[str, str], set[str]] = defaultdict(set)
    for row in filter(wanted, key):
        for pair in combinations(sorted(row["models"]), 2):
            items[pair].add(row["item"])
    return items


def _beginning(text: Text) -> str:
    shown = text_key(text)
    return repr(shown if len(shown) <= MAX_SHOWN else f"{shown[:MAX_SHOWN]} ...")


def _by_model(task: Task) -> list[Response]:
    return sorted(task.responses, key=lambda response: str(response.model))


def _digest(*parts: str) -> str:
    return hashlib.blake2b(json.dumps(parts).encode(), digest_size=8).hexdigest()
