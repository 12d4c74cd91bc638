"""The columns that tell where a judgment came from: written next to every exported row, and taken back on import.

What people and training look at is in columns of its own; what only a round trip needs lies in one column,
``feedback``. In tables (CSV, Parquet), where every row has every column and nesting is awkward, that one is JSON text
and holds the task's own columns too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlhf.data.contracts import OLD_LABEL_PROBABILITY, RENAMED_LABEL_PROBABILITY, Judgment, Row, RowError, Text
from rlhf.data.message_text import describe
from rlhf.data.row_kinds import ALIASES, COLUMNS
from rlhf.store.items import ItemJudgment
from rlhf.store.values import Task, TaskKind

FEEDBACK = "feedback"
"""The column of whatever has no column of its own."""
OF_JUDGMENTS = ("seconds", "shown_first", "comment", "flags", "grade", "ratings_by_dimension", "guideline_version")
"""Columns of a judgment; in a row that names no annotator they are somebody's own."""
TRACE, TRACES = "trace", "traces"
"""The conversation of another tool that a judgment was made of; in a row of several judgments, those of all of them."""
OF_TASKS = ("task_id", "batch", "priority", "gold")
OF_MODELS = ("model", "models", "model_a", "model_b", "chosen_model", "rejected_model", "sampling")
LINEAGE = ("model", "sampling", "stage", "run", "seed", "sample", "finish_reason", "logprob", "weight_version")
"""Columns of a sampled row that belong to the completion, though all of a prompt's may have the same."""
RESERVED = frozenset({
    "id", "annotator_id", "label_probability", "strength", FEEDBACK, TRACE, TRACES, *OF_JUDGMENTS, *OF_TASKS, *OF_MODELS, *COLUMNS,
    *ALIASES, *(other for others in ALIASES.values() for other in others),
})  # fmt: skip
"""A task's own columns of these names would be taken for something else; they travel inside ``feedback``."""


@dataclass(slots=True)
class RowOrigin:
    """What a row carries besides its texts and its verdict, sorted by whom it belongs to."""

    where: str
    columns: dict[str, Any]
    """The task's own; anyone who builds the task takes the models out of them."""
    feedback: dict[str, Any] = field(default_factory=dict)
    annotator: str | None = None
    label_probability: float | None = None
    seconds: float | None = None
    shown_first: str | None = None
    comment: str = ""
    flags: Sequence[str] = ()
    trace: Mapping[str, Any] | None = None
    grade: int | None = None
    ratings: Mapping[str, Any] | None = None
    task_id: str = ""
    batch: str = ""
    priority: float = 0.0
    is_gold: bool = False

    @classmethod
    def of(cls, row: Row, *, is_gold: bool = False) -> RowOrigin:
        """Sort a row's columns.

        Args:
            row: Of any kind.
            is_gold: What it says is known to be right, whether it has a column ``gold`` or not.

        Raises:
            RowError: One of ours holds what it can't.
        """
        columns = dict(row.columns)
        origin = cls(where=row.where, columns=columns)
        origin._take_feedback()
        origin._take_annotator(row)
        gold = columns.pop("gold", None)
        if gold not in (None, "", True, False, 0, 1, "true", "false"):
            raise RowError(row.where, f"column 'gold' is {describe(gold)}; wanted true or false.")
        origin.is_gold = is_gold or gold in (True, 1, "true")
        is_ours = origin.annotator is not None or bool(origin.feedback)
        if is_ours:
            origin._take_judgment()
        if is_ours or origin.is_gold:
            origin._take_verdict()
        own_id = columns.pop("id", None)
        origin.task_id = str(columns.pop("task_id", None) or own_id or "")
        origin.batch = str(columns.pop("batch", None) or "")
        origin.priority = origin._number("priority") or origin.feedback.get("priority", 0.0)
        return origin

    @property
    def all_columns(self) -> dict[str, Any]:
        """The task's own, once everything else has been taken: those that traveled inside ``feedback`` too."""
        return {**self.columns, **self.feedback.get("columns", {})}

    @property
    def kind(self) -> TaskKind | None:
        """How the task was asked, where the row tells."""
        given = self.feedback.get("kind")
        if given is not None and given not in set(TaskKind):
            raise self._bad(FEEDBACK, f"names the kind {describe(given)}; wanted one of {', '.join(TaskKind)}")
        return TaskKind(given) if given is not None else None

    @property
    def gold(self) -> Mapping[str, Any] | None:
        """The right value as an export wrote it."""
        gold = self.feedback.get("gold")
        return gold if isinstance(gold, Mapping) else None

    @property
    def order(self) -> Sequence[int] | None:
        """Places of the completions on the screen, as an export wrote them."""
        order = self.feedback.get("order")
        if order is not None and not (isinstance(order, list) and all(type(place) is int for place in order)):
            raise self._bad(FEEDBACK, f"has the order {describe(order)}; wanted a list of places")
        return order

    @property
    def spans(self) -> Sequence[Mapping[str, Any]]:
        """Highlights."""
        return tuple(self.feedback.get("spans", ()))

    @property
    def made_at(self) -> Any:
        """When it was said, still as text."""
        return self.feedback.get("made_at")

    @property
    def diff_viewed(self) -> Any:
        """Whether the differences were seen marked; checked with the judgment."""
        return self.feedback.get("diff_viewed")

    def take(self, column: str) -> str | None:
        """A name from the columns, or None."""
        value = self.columns.pop(column, None)
        return None if value in (None, "") else str(value)

    def take_completions(self) -> list[Text]:
        """What is to be judged, of a row that has a prompt, completions and no verdict; empty where there are none."""
        given = _from_text(self.columns.pop("completions", None))
        if given is None and "completion_a" in self.columns:
            given = [self.columns.pop("completion_a"), self.columns.pop("completion_b")]
        if given is None:
            return []
        if not isinstance(given, list) or not given or not all(_is_text(text) for text in given):
            raise self._bad("completions", f"is {describe(given)}; wanted a list of texts, or of lists of messages")
        return given

    def of_responses(self, count: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """How each completion was sampled, and its own columns."""
        of_each = []
        for name in ("sampling", "response_columns"):
            given = self.feedback.get(name) or [{}] * count
            if not isinstance(given, list) or len(given) != count:
                raise self._bad(FEEDBACK, f"has {name} {describe(given)}; wanted {count} objects")
            of_each.append([dict(one) for one in given])
        return of_each[0], of_each[1]

    def _take_feedback(self) -> None:
        given = self.columns.get(FEEDBACK)
        if isinstance(given, str) and given.startswith("{"):  # of a table
            try:
                given = json.loads(given)
            except ValueError:
                return
        if isinstance(given, Mapping) and "kind" in given:  # else it is somebody's own column of that name
            self.feedback = dict(given)
            del self.columns[FEEDBACK]

    def _take_annotator(self, row: Row) -> None:
        if isinstance(row, Judgment):
            self.annotator, self.label_probability = row.annotator_id, row.label_probability
            if row.metadata:
                self.columns["metadata"] = dict(row.metadata)
            if self.annotator is None and self.label_probability is not None and not self.feedback:
                self.columns["label_probability"] = self.label_probability
        else:
            self.annotator = self.take("annotator_id")
            if self.annotator is not None:
                self.label_probability = self._number("label_probability")
        if self.annotator is not None and OLD_LABEL_PROBABILITY in self.columns:
            raise RowError(self.where, f"{RENAMED_LABEL_PROBABILITY}.")
        if self.label_probability is not None and not 0 <= self.label_probability <= 1:
            raise self._bad("label_probability", f"is {self.label_probability}; wanted a number from 0 to 1")

    def _take_judgment(self) -> None:
        self.seconds = self._number("seconds")
        self.shown_first = self.take("shown_first")
        self.comment = self.take("comment") or ""
        self.flags = tuple(_from_text(self.columns.pop("flags", None)) or ())
        self.columns.pop("guideline_version", None)
        trace = _from_text(self.columns.pop(TRACE, None))
        if trace not in (None, "") and not isinstance(trace, Mapping):
            raise self._bad(TRACE, f"is {describe(trace)}; wanted an object with a trace_id")
        self.trace = dict(trace) if trace else None
        if isinstance(self.columns.get("models"), str):
            self.columns["models"] = _from_text(self.columns["models"])

    def _take_verdict(self) -> None:
        """What says the row's own verdict more exactly."""
        grade = self._number("grade")
        if grade is not None and not grade.is_integer():
            raise self._bad("grade", f"is {grade}; wanted a whole number")
        self.grade = None if grade is None else int(grade)
        ratings = _from_text(self.columns.pop("ratings_by_dimension", None))
        if isinstance(ratings, Mapping):
            self.ratings = {"ratings": {name: given for name, given in ratings.items() if given is not None}}

    def _number(self, column: str) -> float | None:
        value = self.columns.pop(column, None)
        if value in (None, ""):
            return None
        try:
            if isinstance(value, bool):
                raise TypeError
            return float(value)
        except (TypeError, ValueError):
            raise self._bad(column, f"is {describe(value)}; wanted a number") from None

    def _bad(self, column: str, reason: str) -> RowError:
        return RowError(self.where, f"column {column!r} {reason}.")


def provenance_of(
    task: Task, judgment: ItemJudgment | None, *, guideline_version: str = "", flat: bool = False
) -> dict[str, Any]:
    """The columns next to an exported judgment, or next to a task that nobody has judged.

    Args:
        task: What was asked.
        judgment: What an annotator answered; None for none.
        guideline_version: Of the guidelines that are in force.
        flat: For tables; see above.
    """
    feedback: dict[str, Any] = {"kind": str(task.kind)}
    row: dict[str, Any] = {"id": task.id if judgment is None else f"{task.id}#{judgment.annotator}", "task_id": task.id}
    if judgment is not None:
        row |= {
            "annotator_id": judgment.annotator,
            "label_probability": judgment.label_probability,
            "seconds": judgment.seconds,
        }
        if judgment.order is not None:
            feedback["order"] = list(judgment.order)
            if len(task.responses) == 2:
                row["shown_first"] = "ab"[judgment.order[0]]
        row |= {"comment": judgment.comment, "flags": list(judgment.flags), "guideline_version": guideline_version}
        feedback |= {
            "spans": list(judgment.spans),
            "made_at": None if judgment.made_at is None else judgment.made_at.isoformat(),
        }
        feedback["diff_viewed"] = judgment.diff_viewed
        if judgment.trace:
            row[TRACE] = json.dumps(judgment.trace, ensure_ascii=False) if flat else dict(judgment.trace)
    row["batch"] = task.batch
    row |= _models_of(task)
    feedback |= {
        "priority": task.priority or None,
        "gold": task.gold,
        "sampling": _unless_empty([dict(response.sampling) for response in task.responses]),
        "response_columns": _unless_empty([dict(response.columns) for response in task.responses]),
    }
    hidden = {name: value for name, value in task.columns.items() if flat or _would_change(name, value)}
    row |= {name: value for name, value in task.columns.items() if name not in hidden}
    feedback = _without_empty(feedback | {"columns": hidden})
    row = _without_empty(row)
    row[FEEDBACK] = json.dumps(feedback, ensure_ascii=False) if flat else feedback
    return row


def _models_of(task: Task) -> dict[str, Any]:
    models = [response.model for response in task.responses]
    if not any(models):
        return {}
    if task.kind in (TaskKind.PAIRWISE, TaskKind.GRADED5, TaskKind.GRADED7):
        return {"model_a": models[0], "model_b": models[1]}
    return {"models": models} if len(models) > 1 else {"model": models[0]}


def _would_change(name: str, value: Any) -> bool:
    """Whether a column read again is not what was written."""
    if name in RESERVED or value is None or (name == "metadata" and not value):
        return True
    return name == "margin" and (isinstance(value, bool) or not isinstance(value, int | float))


def _unless_empty(values: list[dict[str, Any]]) -> list[dict[str, Any]] | None:
    return values if any(values) else None


def _without_empty(values: Mapping[str, Any]) -> dict[str, Any]:
    """Ours that say nothing left out; a task's own columns are not touched, which may be empty on purpose."""
    ours = RESERVED | {"order", "spans", "made_at", "diff_viewed", "sampling", "response_columns", "columns"}
    return {name: value for name, value in values.items() if name not in ours or value not in (None, "", [], {})}


def _is_text(value: Any) -> bool:
    """A string, or turns that each have a role and a content."""
    if isinstance(value, str):
        return True
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(turn, Mapping) and isinstance(turn.get("role"), str) and "content" in turn for turn in value)
    )


def _from_text(value: Any) -> Any:
    """A list or an object that a table holds as JSON text."""
    if isinstance(value, str) and value[:1] in ("[", "{"):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value
