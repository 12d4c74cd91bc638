"""Judgments of every kind as single answers that can be compared: what agreement, quality and aggregation work on.

    kind      questions of one task                           answers
    pairwise  one                                             a, tie, b
    graded    one                                             -2 ... 2 or -3 ... 3
    ranking   one for each two completions                    a, tie, b
    rating    one for each dimension and completion           1 ... 5
    binary    one                                             False, True
    multiclass one                                            the classes, by name

Answers of one judgment are one piece of evidence; anyone who makes an interval of them draws tasks, not answers.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any

from rlhf.data.contracts import Text
from rlhf.feedback.quality import Verdict

if TYPE_CHECKING:  # the store needs an extra; reading what it gave needs none
    from rlhf.store import Judgment, TaskKind

Part = tuple[Hashable, ...]
"""Which of a task's questions: () where there is one, (0, 1) for two completions, ("accuracy", 0) for a rating."""
SIDES = ("a", "tie", "b")


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked alike of many tasks: its answers form one table."""

    name: str
    """The kind, and for ratings the dimension."""
    scale: tuple[Any, ...]
    """All answers there can be, in order."""
    is_ordered: bool
    """Whether neighbors on the scale are nearer than others: then coefficients weigh how far apart answers are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One thing that somebody said."""

    question: Question
    task: str
    part: Part
    annotator: str
    value: Any
    judgment: Judgment

    @property
    def item(self) -> tuple[Hashable, ...]:
        """What others may have answered too."""
        return (self.task, *self.part)


def values_of(kind: TaskKind | str, value: Mapping[str, Any]) -> dict[Part, Any]:
    """A judgment's or a gold item's value, taken apart."""
    match str(kind):
        case "ranking":
            ranks = value["ranks"]
            return {(i, j): _side(ranks[j] - ranks[i]) for i, j in combinations(range(len(ranks)), 2)}
        case "rating":
            return {
                (name, place): rating for name, given in value["ratings"].items() for place, rating in enumerate(given)
            }
    (answer,) = value.values()
    return {(): answer}


def question_of(kind: TaskKind | str, part: Part, classes: Sequence[str] = ()) -> Question:
    """What a part of a task of this kind asks; ``classes`` is the scale of kind ``multiclass``."""
    match str(kind):
        case "rating":
            return Question(name=f"rating: {part[0]}", scale=(1, 2, 3, 4, 5), is_ordered=True)
        case "graded5":
            return Question(name="graded5", scale=tuple(range(-2, 3)), is_ordered=True)
        case "graded7":
            return Question(name="graded7", scale=tuple(range(-3, 4)), is_ordered=True)
        case "binary":
            return Question(name="binary", scale=(False, True), is_ordered=False)
        case "multiclass":
            return Question(name="multiclass", scale=tuple(classes), is_ordered=False)
    return Question(name=str(kind), scale=SIDES, is_ordered=False)


def answers_of(judgments: Iterable[Judgment], classes: Sequence[str] | None = None) -> Iterator[Answer]:
    """All that was said, in order.

    Args:
        judgments: Of any kinds.
        classes: That those of kind ``multiclass`` choose from; by default those that they name.
    """
    made = list(judgments)
    known = classes if classes is not None else classes_of(made)
    for judgment in made:
        kind = judgment.task.kind
        for part, value in values_of(kind, judgment.value).items():
            yield Answer(
                question=question_of(kind, part, known), task=judgment.task.id, part=part, annotator=judgment.annotator,
                value=value, judgment=judgment,
            )  # fmt: skip


def classes_of(judgments: Iterable[Judgment]) -> tuple[str, ...]:
    """Classes that judgments of kind ``multiclass`` name, sorted."""
    return tuple(sorted({j.value["class"] for j in judgments if str(j.task.kind) == "multiclass"}))


def verdicts_of(judgments: Iterable[Judgment]) -> Iterator[Verdict]:
    """For ``AnnotatorQualityControl``: answers as coarse as people can be expected to agree on.

    Grades count by the side they take, ratings as bad (1, 2), middling (3) or good (4, 5): who says "slightly" where
    others say "much" does not disagree about what is better.
    """
    for answer in answers_of(judgments):
        judgment = answer.judgment
        task = judgment.task
        gold = values_of(task.kind, task.gold).get(answer.part) if task.gold is not None else None
        yield Verdict(
            item=answer.item,
            annotator=answer.annotator,
            value=_coarse(answer.question, answer.value),
            gold=None if gold is None else _coarse(answer.question, gold),
            seconds=judgment.seconds,
            at=judgment.made_at.timestamp(),
            unit=judgment.number,
            **_leanings(judgment, answer.part),
        )


def length_of(text: Text) -> int:
    """Characters of a completion, whether a text or turns."""
    return len(text) if isinstance(text, str) else sum(len(str(turn.get("content") or "")) for turn in text)


def _leanings(judgment: Judgment, part: Part) -> dict[str, str | None]:
    """Which of two completions stood first, and which is longer; nothing for answers about a single one."""
    responses = judgment.task.responses
    pair = part if len(part) == 2 and part[0] in range(len(responses)) else (0, 1) if len(responses) == 2 else None
    if pair is None or str(judgment.task.kind) in ("rating", "binary", "multiclass"):
        return {}
    first, second = (int(str(place)) for place in pair)
    lead = length_of(responses[first].text) - length_of(responses[second].text)
    shown = None
    if judgment.order is not None:  # a file need not tell, and then nothing is known of any leaning to a position
        places = list(judgment.order)
        shown = "a" if places.index(first) < places.index(second) else "b"
    return {
        "shown_first": shown,
        "longer": None if lead == 0 else "a" if lead > 0 else "b",
    }


def _coarse(question: Question, value: Any) -> Any:
    if question.name.startswith("rating"):
        return "good" if value > 3 else "bad" if value < 3 else "middling"
    return _side(value) if question.is_ordered else value


def _side(lead: float) -> str:
    return "a" if lead > 0 else "b" if lead < 0 else "tie"
