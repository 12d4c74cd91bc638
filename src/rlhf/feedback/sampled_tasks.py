"""All sampled completions of one prompt as tasks: one of all of them, or one for each two."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

from rlhf.data.contracts import CompletionRow, Row, RowError
from rlhf.data.message_text import describe
from rlhf.feedback.identity import sampled_id
from rlhf.feedback.judgment_origin import LINEAGE
from rlhf.feedback.row_tasks import PAIRS, Asking, NothingToJudgeError, are_equal
from rlhf.store.items import Item
from rlhf.store.values import MAX_RANKED, Response, Task, TaskKind


def items_of_completions(rows: Sequence[CompletionRow], asking: Asking) -> list[Item]:
    """One task of all completions of a prompt, or one for each two of them.

    Raises:
        RowError: There are too few or too many completions for the kind.
        NothingToJudgeError: All are the same.
    """
    first = rows[0]
    natural = TaskKind.BINARY if len(rows) == 1 else TaskKind.PAIRWISE if len(rows) == 2 else TaskKind.RANKING
    own = asking.kind or natural
    if own in (TaskKind.RANKING, TaskKind.RATING) and len(rows) > MAX_RANKED:
        raise RowError(
            first.where,
            f"its prompt has {len(rows)} completions, and a person ranks or rates at most {MAX_RANKED} at once; sample fewer, "
            "or ask of each two: --kind pairwise",
        )
    if own in (*PAIRS, TaskKind.RANKING) and len(rows) < 2:
        raise RowError(
            first.where,
            f"its prompt has one completion, and {own} compares; sample several (--samples 2), or ask --kind binary",
        )
    size = 2 if own in PAIRS else 1 if own is TaskKind.BINARY else len(rows)
    shared, own_columns, models, samplings = _lineage(rows)
    items = []
    for places in combinations(range(len(rows)), size):
        texts = [rows[place].completion for place in places]
        if are_equal(texts):
            continue
        given = str(first.columns.get("id") or "")
        before = given if len(places) == len(rows) else f"{given}#{'-'.join(map(str, places))}"
        responses = [
            Response(text=rows[p].completion, model=models[p], sampling=samplings[p], columns=own_columns[p])
            for p in places
        ]
        task = Task(
            id=sampled_id(given, own, first.prompt, texts), kind=own, prompt=first.prompt, responses=responses,
            priority=_number(shared.get("priority"), first, "priority"), batch=str(shared.get("batch") or asking.batch),
            columns={name: value for name, value in shared.items() if name not in ("id", "priority", "batch")},
        )  # fmt: skip
        items.append(Item(task=task, old_ids=(before,) if given else ()))
    if not items:
        raise NothingToJudgeError(first.where, len(rows))
    return items


def _lineage(
    rows: Sequence[CompletionRow],
) -> tuple[dict[str, Any], list[dict[str, Any]], list[str | None], list[dict[str, Any]]]:
    """Columns of the task (equal in all rows), columns of each completion, models, and how each was sampled."""
    left = [dict(row.columns) for row in rows]
    models = [str(model) if (model := columns.pop("model", None)) is not None else None for columns in left]
    samplings = []
    for columns, row in zip(left, rows, strict=True):
        sampling = columns.pop("sampling", {})
        if not isinstance(sampling, Mapping):
            raise RowError(row.where, f"column 'sampling' is {describe(sampling)}; wanted an object of settings.")
        samplings.append(dict(sampling))
    names = {
        name for name in left[0] if name not in LINEAGE and all(name in c and c[name] == left[0][name] for c in left)
    }
    shared = {name: left[0][name] for name in left[0] if name in names}
    return shared, [{k: v for k, v in c.items() if k not in names and k != "id"} for c in left], models, samplings


def _number(value: Any, row: Row, name: str) -> float:
    if value is None:
        return 0.0
    if isinstance(value, bool) or not isinstance(value, int | float) or not _is_finite(value):
        raise RowError(row.where, f"column {name!r} is {describe(value)}; wanted a finite number.")
    return float(value)


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond all floats
        return False
