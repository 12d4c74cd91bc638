"""Labels of several classes, one judgment a row: (item, annotator, label), as annotation tools and crowd platforms write them.

    item, item_id, task_id, id      what was labeled; where a row has a text and none of these, the text names it
    annotator, annotator_id, ...    who says so
    label, class                    what they say: a name or a whole number
    text | prompt, completion       what was shown, if the file tells
    gold                            true where the label is known to be right; then the annotator may be missing

Columns of a judgment (``label_probability``, ``seconds``, ``comment``, ``flags``) are taken as in rows of ours; others stay with the item.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlhf.data.cells import FALSE_LABELS, TRUE_LABELS
from rlhf.data.contracts import Row
from rlhf.data.message_text import describe
from rlhf.feedback.exchange.lines import Line
from rlhf.feedback.identity import content_id
from rlhf.feedback.judgment_origin import FEEDBACK, RowOrigin
from rlhf.feedback.layouts import ANNOTATOR_COLUMNS, LABEL_COLUMNS
from rlhf.feedback.row_tasks import judgment_in
from rlhf.store.items import Item
from rlhf.store.values import Response, Task, TaskKind

ITEM = ("task_id", "item", "item_id", "id")


def is_labels(row: Mapping[str, Any]) -> bool:
    """Whether a row is one of these and not a completion that somebody called good or bad, which rows of ours are."""
    feedback = row.get(FEEDBACK)
    if not {"prompt", "completion"} <= row.keys() or "class" in row or str(TaskKind.MULTICLASS) in str(feedback):
        return True
    return str(row["label"]).strip().lower() not in TRUE_LABELS | FALSE_LABELS


def from_labels(lines: Sequence[Line]) -> list[Item]:
    """One judgment, or one gold label.

    Raises:
        RowError: It has no label, no annotator, or nothing by which its item could be told.
    """
    (line,) = lines
    cells = line.taken_by()
    name, _ = _first(cells.cells, ITEM)
    annotator, _ = _first(cells.cells, ANNOTATOR_COLUMNS)
    label, column = _first(cells.cells, LABEL_COLUMNS)
    if label is None:
        raise line.bad(f"column {LABEL_COLUMNS[0]!r} is missing or empty; wanted the name of a class.")
    prompt = cells.either("prompt") if "prompt" in cells.cells else ""
    text = next((cells.either(column) for column in ("completion", "text") if column in cells.cells), "")
    columns = cells.rest() | {"annotator_id": annotator, "task_id": name}
    origin = RowOrigin.of(
        Row(where=line.where, columns={key: value for key, value in columns.items() if value is not None})
    )
    value = {"class": _class_of(label, column, line)}
    sampling, own_columns = origin.of_responses(1)
    response = Response(text=text, model=origin.take("model"), sampling=sampling[0], columns=own_columns[0])
    if origin.annotator is None and not origin.is_gold:
        raise line.bad(
            f"no annotator is named ({', '.join(ANNOTATOR_COLUMNS[:2])}); who says so is needed, or gold: true."
        )
    if not origin.task_id and not text and not prompt:
        raise line.bad(f"nothing says what was labeled; wanted one of {', '.join((*ITEM[1:], 'text', 'completion'))}.")
    task = Task(
        id=origin.task_id or content_id(TaskKind.MULTICLASS, prompt, [text]), kind=TaskKind.MULTICLASS, prompt=prompt,
        responses=[response], gold=origin.gold or (value if origin.is_gold else None),
        priority=origin.priority, batch=origin.batch, columns=origin.all_columns,
    )  # fmt: skip
    if origin.annotator is None:
        return [Item(task=task)]
    return [Item(task=task, judgments=(judgment_in(origin, value, line.where, 1),))]


def _first(cells: dict[str, Any], columns: Sequence[str]) -> tuple[Any, str]:
    """The first of these columns that holds something, taken out with the others; None where none does."""
    filled = [(value, column) for column in columns if (value := cells.pop(column, None)) not in (None, "")]
    return filled[0] if filled else (None, columns[0])


def _class_of(label: Any, column: str, line: Line) -> str:
    """A class by its name: 1, 1.0 and "1" are one."""
    if isinstance(label, bool):
        return str(label).lower()
    if isinstance(label, float) and label.is_integer():
        return str(int(label))
    if isinstance(label, str | int):
        return str(label).strip()
    raise line.bad(f"column {column!r} is {describe(label)}; wanted the name of a class, or a whole number.")
