"""What can be asked, and what can be answered: kinds of tasks and the values of judgements, checked in one place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from rlhf.data.contracts import Text
from rlhf.errors import DataError, look_up

MAX_RANKED = 6
"""Completions in one ranking; more are not read."""
MAX_TEXT = 10_000
"""Characters of a comment or a reason."""


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


NUM_RESPONSES: Mapping[TaskKind, tuple[int, int]] = {
    TaskKind.PAIRWISE: (2, 2),
    TaskKind.GRADED5: (2, 2),
    TaskKind.GRADED7: (2, 2),
    TaskKind.RANKING: (2, MAX_RANKED),
    TaskKind.RATING: (1, MAX_RANKED),
    TaskKind.BINARY: (1, 1),
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
    """The right value, for gold items; shaped as a judgement's value."""
    priority: float = 0.0
    """Larger is asked sooner."""
    batch: str = ""
    columns: Mapping[str, Any] = field(default_factory=dict)
    """Whatever else the row carried; comes out with the export."""

    def __post_init__(self) -> None:
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


def check_value(
    kind: TaskKind | str,
    value: Mapping[str, Any],
    *,
    num_responses: int,
    dimensions: Sequence[str] | None = None,
    where: str = "The judgement",
) -> dict[str, Any]:
    """A judgement's value in its one canonical shape.

        pairwise   {"preference": "a" | "b" | "tie"}
        graded5/7  {"grade": -2 ... 2 | -3 ... 3}       above 0: the first is better
        ranking    {"ranks": [1, 2, 2, ...]}            one for each completion
        rating     {"ratings": {dimension: [1 ... 5, ...]}}
        binary     {"label": true | false}

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
        raise DataError(f"{where} has the keys {', '.join(sorted(value)) or '(none)'}; a {kind} has `{key}` alone.")
    found = check(value[key], num_responses, dimensions)
    if found is None:
        raise DataError(f"{where} has {key} = {value[key]!r}; wanted {_WANTED[kind].format(n=num_responses)}.")
    return {key: found}


def _preference(value: Any, _n: int, _d: Sequence[str] | None) -> str | None:
    return value if value in ("a", "b", "tie") else None


def _grade(limit: int) -> Any:
    def check(value: Any, _n: int, _d: Sequence[str] | None) -> int | None:
        return value if _is_whole(value) and -limit <= value <= limit else None

    return check


def _ranks(value: Any, n: int, _d: Sequence[str] | None) -> list[int] | None:
    if not isinstance(value, list) or len(value) != n or not all(_is_whole(rank) and 1 <= rank <= n for rank in value):
        return None
    return value if min(value) == 1 else None


def _ratings(value: Any, n: int, dimensions: Sequence[str] | None) -> dict[str, list[int]] | None:
    if not isinstance(value, Mapping) or not value or not all(isinstance(name, str) for name in value):
        return None
    if dimensions is not None and not set(value) <= set(dimensions):
        return None
    for numbers in value.values():
        if not isinstance(numbers, list) or len(numbers) != n:
            return None
        if not all(_is_whole(number) and 1 <= number <= 5 for number in numbers):
            return None
    return {name: list(numbers) for name, numbers in value.items()}


def _label(value: Any, _n: int, _d: Sequence[str] | None) -> bool | None:
    return value if isinstance(value, bool) else None


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


_CHECKS: Mapping[TaskKind, tuple[str, Any]] = {
    TaskKind.PAIRWISE: ("preference", _preference),
    TaskKind.GRADED5: ("grade", _grade(2)),
    TaskKind.GRADED7: ("grade", _grade(3)),
    TaskKind.RANKING: ("ranks", _ranks),
    TaskKind.RATING: ("ratings", _ratings),
    TaskKind.BINARY: ("label", _label),
}
_WANTED: Mapping[TaskKind, str] = {
    TaskKind.PAIRWISE: "`a`, `b` or `tie`",
    TaskKind.GRADED5: "a whole number from -2 (second much better) to 2 (first much better)",
    TaskKind.GRADED7: "a whole number from -3 (second much better) to 3 (first much better)",
    TaskKind.RANKING: "a list of {n} ranks, 1 for the best",
    TaskKind.RATING: "for each dimension of the guidelines a list of {n} whole numbers from 1 to 5",
    TaskKind.BINARY: "true or false",
}
