"""What the store gives and takes: what can be asked and what can be answered, checked in one place."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from rlhf.data.contracts import Text
from rlhf.errors import DataError, look_up

MAX_RANKED = 6
"""Completions in one ranking; more are not read."""
MAX_TEXT = 10_000
"""Characters of a comment or a reason."""
MAX_ID = 255
"""Characters of an id, a model's name or a batch's: what their columns hold in every database."""
MAX_NAME = 64
"""Characters of an annotator's or a program's name."""


class KeyTakenError(DataError):
    """One key was used for two judgments, undos or events: one of them would be lost."""


class TaskKind(StrEnum):
    """How a person is asked."""

    PAIRWISE = "pairwise"
    """A, B or tie."""
    GRADED5 = "graded5"
    """-2 to 2: B much better ... same ... A much better."""
    GRADED7 = "graded7"
    """-3 to 3."""
    RANKING = "ranking"
    """All completions in order, 1 = best, equal ranks allowed."""
    RATING = "rating"
    """Each completion alone, from 1 to 5, on every dimension of the guidelines."""
    BINARY = "binary"
    """One completion, good or bad."""
    MULTICLASS = "multiclass"
    """One text, one of several classes that have no order. Labels of this kind are imported; the page does not ask for them."""


NUM_RESPONSES: Mapping[TaskKind, tuple[int, int]] = {
    TaskKind.PAIRWISE: (2, 2),
    TaskKind.GRADED5: (2, 2),
    TaskKind.GRADED7: (2, 2),
    TaskKind.RANKING: (2, MAX_RANKED),
    TaskKind.RATING: (1, MAX_RANKED),
    TaskKind.BINARY: (1, 1),
    TaskKind.MULTICLASS: (1, 1),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """A completion to be judged, and where it came from. Annotators never see where."""

    text: Text
    model: str | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)
    columns: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Something to judge."""

    id: str
    kind: TaskKind
    prompt: Text
    responses: Sequence[Response]
    gold: Mapping[str, Any] | None = None
    """The right value, for gold items; shaped as a judgment's value."""
    priority: float = 0.0
    """Larger is asked sooner."""
    batch: str = ""
    columns: Mapping[str, Any] = field(default_factory=dict)
    """Whatever else the row carried; comes out with the export."""

    def __post_init__(self) -> None:
        check_id(self.id, "A task's id")
        check_id(self.batch or "-", f"The batch of task {self.id!r}")
        for response in self.responses:
            check_id(response.model or "-", f"A model of task {self.id!r}")
        if not math.isfinite(self.priority):
            raise DataError(f"Task {self.id!r} has the priority {self.priority}; wanted a finite number.")
        low, high = NUM_RESPONSES[self.kind]
        if not low <= len(self.responses) <= high:
            wanted = str(low) if low == high else f"{low} to {high}"
            raise DataError(
                f"Task {self.id!r} of kind {self.kind} has {len(self.responses)} completion(s); wanted {wanted}."
            )
        if self.gold is not None:
            check_value(
                self.kind, self.gold, num_responses=len(self.responses), where=f"The gold value of task {self.id!r}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """A task in somebody's hands."""

    number: int
    task: Task
    order: Sequence[int]
    """Places of the task's completions as they stand on the screen; the task's own where none has shown them yet."""
    expires_at: datetime
    is_gold: bool
    fresh: bool = False
    """Whether it was taken at this very call. One that was held before may stand on another page of the same person, so a page
    gives back on leaving only what it was handed fresh."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgment:
    """What somebody said of a task, as it counts now."""

    number: int
    task: Task
    annotator: str
    value: Mapping[str, Any]
    order: Sequence[int] | None
    """None where it came from a file that does not tell."""
    comment: str
    flags: Sequence[str]
    spans: Sequence[Mapping[str, Any]]
    label_probability: float | None
    """That it is right, as its annotator sees it: 0.5 for a guess between two, 1 for certainty."""
    seconds: float | None
    made_at: datetime
    diff_viewed: bool | None = None
    """Whether the view with the differences marked was open at any time before; None where that is not known."""
    trace: Mapping[str, Any] | None = None
    """The conversation of another tool that it was said of; None for what was said here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far somebody, or everybody, has come."""

    num_tasks: int
    num_wanted: int
    """Judgments that the overlap asks for, gold items apart."""
    num_done: int
    num_mine: int = 0
    """Of one annotator, gold items and all."""
    num_gold: int = 0
    """Gold items, which are not among the tasks."""
    num_done_with_gold: int = 0
    num_wanted_with_gold: int = 0
    """What annotators may see in addition to ``num_mine``. Every judgment of anybody's, gold or not, makes all of these grow alike:
    the last is an estimate from ``gold_frac``, which no judgment of a gold item changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """What a page sends."""

    assignment: int
    key: str
    """Made by the page, once for each submission."""
    value: Mapping[str, Any]
    comment: str = ""
    flags: Sequence[str] = ()
    spans: Sequence[Mapping[str, Any]] = ()
    label_probability: float | None = None
    seconds: float | None = None
    diff_viewed: bool | None = None


def label_probability_of(confidence: float) -> float:
    """What pages and files of before sent as ``confidence``, 0 for a guess and 1 for certainty, as a probability."""
    return (1 + confidence) / 2


def is_name(name: str) -> bool:
    """Whether people and programs may be called so: half a character or one that nobody sees would break anyone who shows it."""
    return bool(name.strip()) and len(name) <= MAX_NAME and name.isprintable()


def check_id(text: str, what: str) -> None:
    """Refuse what some database can't keep as it is, or some page can't show.

    Raises:
        DataError: It is empty or too long, or holds a control character or half a character; begins with ``what``.
    """
    if not text or len(text) > MAX_ID:
        raise DataError(f"{what} has 1 to {MAX_ID} characters; got {len(text):,}: {text[:40]!r}.")
    if (bad := next((letter for letter in text if unicodedata.category(letter) in ("Cc", "Cs")), None)) is not None:
        raise DataError(f"{what} is {text[:80]!r}; the character {bad!r} in it can't be kept, write it without.")


def check_value(
    kind: TaskKind | str,
    value: Mapping[str, Any],
    *,
    num_responses: int,
    dimensions: Sequence[str] | None = None,
    where: str = "The judgment",
) -> dict[str, Any]:
    """A judgment's value in its one canonical shape.

        pairwise   {"preference": "a" | "b" | "tie"}
        graded5/7  {"grade": -2 ... 2 | -3 ... 3}       above 0: the first is better
        ranking    {"ranks": [1, 2, 2, ...]}            one for each completion
        rating     {"ratings": {dimension: [1 ... 5, ...]}}
        binary     {"label": true | false}
        multiclass {"class": name}

    Args:
        kind: Of the task.
        value: As it came from a page or a file; completions in the order of the *task*, not of a screen.
        num_responses: Of the task.
        dimensions: What a rating may name; None for anything.
        where: How errors begin.

    Raises:
        DataError: It is not a value of this kind.
    """
    kind = TaskKind(look_up({k.value: k for k in TaskKind}, str(kind), kind="kind of task"))
    key, check = _CHECKS[kind]
    if set(value) != {key}:
        raise DataError(f"{where} has the keys {_listed(value)}; a {kind} has only `{key}`, such as {SHAPES[kind]}.")
    checked = check(value[key], num_responses)
    if checked is None:
        raise DataError(f"{where} has {key} = {shortened(value[key])}; wanted {_WANTED[kind].format(n=num_responses)}.")
    if kind is TaskKind.RATING and dimensions is not None and not set(checked) <= set(dimensions):
        raise DataError(
            f"{where} rates {_listed(checked)}; the dimensions of the guidelines are {_listed(dimensions)}."
        )
    return {key: checked}


def shortened(value: Any) -> str:
    """A value as an error shows it."""
    shown = repr(value)
    return shown if len(shown) <= MAX_ID else f"{shown[:MAX_ID]} ..."


def _listed(names: Iterable[str]) -> str:
    """Names as an error shows them, whatever somebody sent for one."""
    shown = ", ".join(name if name.isprintable() else repr(name) for name in sorted(names)) or "(none)"
    return shown if len(shown) <= MAX_ID else f"{shown[:MAX_ID]} ..."


def _preference(value: Any, _n: int) -> str | None:
    return value if value in ("a", "b", "tie") else None


def _grade(limit: int) -> Any:
    def check(value: Any, _n: int) -> int | None:
        return value if _is_whole(value) and -limit <= value <= limit else None

    return check


def _ranks(value: Any, n: int) -> list[int] | None:
    if not isinstance(value, list) or len(value) != n or not all(_is_whole(rank) and 1 <= rank <= n for rank in value):
        return None
    return value if min(value) == 1 else None


def _ratings(value: Any, n: int) -> dict[str, list[int]] | None:
    if not isinstance(value, Mapping) or not value:
        return None
    if not all(isinstance(name, str) and 0 < len(name) <= MAX_ID and name.isprintable() for name in value):
        return None
    for numbers in value.values():
        if not isinstance(numbers, list) or len(numbers) != n:
            return None
        if not all(_is_whole(number) and 1 <= number <= 5 for number in numbers):
            return None
    return {name: list(numbers) for name, numbers in value.items()}


def _label(value: Any, _n: int) -> bool | None:
    return value if isinstance(value, bool) else None


def _class(value: Any, _n: int) -> str | None:
    return value if isinstance(value, str) and 0 < len(value) <= MAX_NAME and value.isprintable() else None


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


_CHECKS: Mapping[TaskKind, tuple[str, Any]] = {
    TaskKind.PAIRWISE: ("preference", _preference),
    TaskKind.GRADED5: ("grade", _grade(2)),
    TaskKind.GRADED7: ("grade", _grade(3)),
    TaskKind.RANKING: ("ranks", _ranks),
    TaskKind.RATING: ("ratings", _ratings),
    TaskKind.BINARY: ("label", _label),
    TaskKind.MULTICLASS: ("class", _class),
}
SHAPES: Mapping[TaskKind, str] = {
    TaskKind.PAIRWISE: '{"preference": "a"}',
    TaskKind.GRADED5: '{"grade": -2}',
    TaskKind.GRADED7: '{"grade": 3}',
    TaskKind.RANKING: '{"ranks": [1, 3, 2]}',
    TaskKind.RATING: '{"ratings": {"accuracy": [4, 2]}}',
    TaskKind.BINARY: '{"label": true}',
    TaskKind.MULTICLASS: '{"class": "toxic"}',
}
"""A value of each kind, as JSON."""
_WANTED: Mapping[TaskKind, str] = {
    TaskKind.PAIRWISE: "`a`, `b` or `tie`",
    TaskKind.GRADED5: "a whole number from -2 (second much better) to 2 (first much better)",
    TaskKind.GRADED7: "a whole number from -3 (second much better) to 3 (first much better)",
    TaskKind.RANKING: "a list of {n} ranks, 1 for the best",
    TaskKind.RATING: "for each dimension of the guidelines a list of {n} whole numbers from 1 to 5",
    TaskKind.BINARY: "true or false",
    TaskKind.MULTICLASS: f"the name of a class, 1 to {MAX_NAME} printable characters",
}
