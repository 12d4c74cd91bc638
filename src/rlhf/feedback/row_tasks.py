"""One row as a task: what is asked, and what the row answers itself."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlhf.data.contracts import (
    MessagesRow,
    Preference,
    PreferenceRow,
    PreferenceSample,
    PromptRow,
    RankingSample,
    RatingSample,
    Row,
    RowError,
    Strength,
    Text,
    UnpairedRow,
)
from rlhf.data.expand import text_key
from rlhf.data.message_text import describe
from rlhf.feedback.identity import content_id
from rlhf.feedback.judgment_origin import RowOrigin
from rlhf.store.items import Item, ItemJudgment, moment_of
from rlhf.store.values import Response, Task, TaskKind

GRADES = {(Preference.A, Strength.SIGNIFICANTLY): 2, (Preference.A, Strength.SLIGHTLY): 1, (Preference.TIE, None): 0,
          (Preference.B, Strength.SLIGHTLY): -1, (Preference.B, Strength.SIGNIFICANTLY): -2}  # fmt: skip
PAIRS = (TaskKind.PAIRWISE, TaskKind.GRADED5, TaskKind.GRADED7)
OVERALL = "overall"
"""The dimension of ratings that name none."""


class NothingToJudgeError(RowError):
    """All completions are the same text; never an error for the user, who did not choose what a model says twice."""

    def __init__(self, where: str, num_completions: int) -> None:
        which = "both" if num_completions == 2 else f"all {num_completions}"
        super().__init__(where, f"{which} completions say the same, so there is nothing to judge.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """How rows are asked, where they leave a choice."""

    kind: TaskKind | None
    batch: str
    all_gold: bool
    graded: bool = False
    """Some comparison of the source says how clearly, so a tie there is the middle of a scale."""


def items_of_row(row: Row, asking: Asking) -> list[Item]:
    """The task that a row asks, with the judgment, the gold value or the column ``known`` that it holds.

    Raises:
        RowError: Nothing in it can be judged, or what it says is not an answer.
    """
    origin = RowOrigin.of(row, is_gold=asking.all_gold)
    prompt, texts, models, own_kind, value = _parts_of(row, asking, origin)
    sampling, columns = origin.of_responses(len(texts))
    responses = [
        Response(text=text, model=model, sampling=sampling[place], columns=columns[place])
        for place, (text, model) in enumerate(zip(texts, models, strict=True))
    ]
    gold, kept = origin.gold, origin.all_columns
    if not math.isfinite(origin.priority):
        raise RowError(row.where, f"column 'priority' is {origin.priority}; wanted a finite number.")
    judgments: list[ItemJudgment] = []
    if origin.annotator is not None:
        judgments.append(judgment_in(origin, _answer(value, own_kind, row, "its judgment"), row.where, len(texts)))
    if origin.is_gold and gold is None:
        gold = _answer(value, own_kind, row, "its gold value")
    elif value is not None and origin.annotator is None:
        kept.setdefault("known", dict(value))
    if not judgments and not origin.feedback and are_equal(texts):
        raise NothingToJudgeError(row.where, len(texts))
    task = Task(
        id=origin.task_id or content_id(own_kind, prompt, texts), kind=own_kind, prompt=prompt, responses=responses,
        gold=gold, priority=origin.priority, batch=origin.batch or asking.batch, columns=kept,
    )  # fmt: skip
    return [Item(task=task, judgments=judgments)]


def are_equal(texts: Sequence[Text]) -> bool:
    """Whether there are several, all the same."""
    return len(texts) > 1 and len({text_key(text) for text in texts}) == 1


def judgment_in(origin: RowOrigin, value: Mapping[str, Any], where: str, num_responses: int) -> ItemJudgment:
    """The judgment that a row with an annotator holds."""
    order = origin.order
    if order is None and origin.shown_first in ("a", "b") and num_responses == 2:
        order = (0, 1) if origin.shown_first == "a" else (1, 0)
    assert origin.annotator is not None
    return ItemJudgment(
        annotator=origin.annotator, value=value, order=order, comment=origin.comment, flags=origin.flags,
        spans=origin.spans, label_probability=origin.label_probability, seconds=origin.seconds, made_at=moment_of(origin.made_at, where),
        diff_viewed=origin.diff_viewed, trace=origin.trace,
    )  # fmt: skip


_KEYS = {
    TaskKind.PAIRWISE: "preference", TaskKind.GRADED5: "grade", TaskKind.GRADED7: "grade", TaskKind.RANKING: "ranks",
    TaskKind.RATING: "ratings", TaskKind.BINARY: "label",
}  # fmt: skip


def _answer(value: Mapping[str, Any] | None, kind: TaskKind, row: Row, what: str) -> Mapping[str, Any]:
    if value is None or set(value) != {_KEYS[kind]}:
        given = "nothing" if value is None else ", ".join(f"{k} = {describe(v)}" for k, v in value.items())
        raise RowError(
            row.where,
            f"as a task of kind {kind} the row needs `{_KEYS[kind]}` for {what}, and it says {given}; choose another kind, "
            "or leave the judgments out.",
        )
    return value


Parts = tuple[Text, Sequence[Text], Sequence[str | None], TaskKind, Mapping[str, Any] | None]
"""Prompt, completions, their models, how it is asked, and what the row says."""


def _parts_of(row: Row, asking: Asking, origin: RowOrigin) -> Parts:
    """What to ask of a row, and what it answers itself."""
    kind = asking.kind or origin.kind
    if isinstance(row, PreferenceRow):
        models = [
            origin.take("chosen_model") or origin.take("model_a"),
            origin.take("rejected_model") or origin.take("model_b"),
        ]
        strength = origin.columns.get("strength")
        known = Strength(strength) if isinstance(strength, str) and strength in set(Strength) else None
        return _pair(row.prompt, [row.chosen, row.rejected], models, kind, origin.grade, Preference.A, known, row)
    if isinstance(row, PreferenceSample):
        models = [origin.take("model_a"), origin.take("model_b")]
        texts = [row.completion_a, row.completion_b]
        if kind is None and asking.graded and row.preference is Preference.TIE:
            kind = TaskKind.GRADED5
        return _pair(row.prompt, texts, models, kind, origin.grade, row.preference, row.strength, row)
    if isinstance(row, RankingSample):
        models = _models(origin, len(row.completions), row)
        if row.ranks is not None:
            return (
                row.prompt,
                row.completions,
                models,
                _of(kind, (TaskKind.RANKING,), row),
                {"ranks": _ranks(row.ranks)},
            )
        value = origin.ratings or _rated(row.ratings or ())
        return row.prompt, row.completions, models, _of(kind, (TaskKind.RATING,), row), value
    if isinstance(row, RatingSample):
        value = origin.ratings or _rated([row.rating])
        return row.prompt, [row.completion], [origin.take("model")], _of(kind, (TaskKind.RATING,), row), value
    if isinstance(row, UnpairedRow):
        own = _of(kind, (TaskKind.BINARY, TaskKind.RATING), row)
        return row.prompt, [row.completion], [origin.take("model")], own, {"label": row.label}
    if isinstance(row, PromptRow) and (texts := origin.take_completions()):
        natural = TaskKind.BINARY if len(texts) == 1 else TaskKind.PAIRWISE if len(texts) == 2 else TaskKind.RANKING
        models = [origin.take("model")] if len(texts) == 1 else _models(origin, len(texts), row)
        return row.prompt, texts, models, kind or natural, None
    if isinstance(row, MessagesRow):
        if len(row.messages) < 2 or row.messages[-1]["role"] != "assistant":
            raise RowError(
                row.where, "the dialogue does not end with an assistant's turn, so there is nothing to judge."
            )
        own = _of(kind, (TaskKind.BINARY, TaskKind.RATING), row)
        return row.messages[:-1], [row.messages[-1:]], [origin.take("model")], own, None
    raise RowError(
        row.where,
        f"a row of kind {row.kind} holds no completion to judge; sample some first: rlhf generate MODEL FILE --samples 2",
    )


def _pair(
    prompt: Text, texts: Sequence[Text], models: Sequence[str | None], kind: TaskKind | None, grade: int | None,
    preference: Preference, strength: Strength | None, row: Row,
) -> Parts:  # fmt: skip
    """Two completions: a grade where one is known and grades are asked, else the side."""
    value: dict[str, Any] = {"preference": str(preference)}
    own = _of(kind, (*PAIRS, TaskKind.RANKING, TaskKind.RATING), row) if kind else None
    if grade is not None:
        own = own or (TaskKind.GRADED7 if abs(grade) > 2 else TaskKind.GRADED5)
    elif own is None:
        own = TaskKind.GRADED5 if strength is not None else TaskKind.PAIRWISE
    if own is TaskKind.GRADED5 and grade is None:
        grade = GRADES.get((preference, strength))
    if own in PAIRS[1:] and grade is not None:
        value = {"grade": grade}
    elif own is TaskKind.RANKING:
        value = {"ranks": {Preference.A: [1, 2], Preference.B: [2, 1], Preference.TIE: [1, 1]}[preference]}
    return prompt, texts, models, own, value


def _of(kind: TaskKind | None, possible: Sequence[TaskKind], row: Row) -> TaskKind:
    if kind is None:
        return possible[0]
    if kind not in possible:
        raise RowError(
            row.where, f"a row of kind {row.kind} can be asked as {' or '.join(possible)}, and not as {kind}."
        )
    return kind


def _ranks(ranks: Sequence[float]) -> list[int]:
    """Ranks as judgments have them: whole, from 1, at most as many as there are; others keep their order."""
    if all(float(rank).is_integer() and rank <= len(ranks) for rank in ranks) and min(ranks) == 1:
        return [int(rank) for rank in ranks]
    return [1 + sum(other < rank for other in ranks) for rank in ranks]


def _rated(ratings: Sequence[float]) -> dict[str, Any]:
    """Of a row that names no dimensions. A mean of ratings may lie between two steps: then it is known, but no answer."""
    if all(float(rating).is_integer() for rating in ratings):
        return {"ratings": {OVERALL: [int(rating) for rating in ratings]}}
    return {"mean_ratings": list(ratings)}


def _models(origin: RowOrigin, count: int, row: Row) -> list[str | None]:
    models = origin.columns.pop("models", None)
    if models is None and count == 2:
        models = [origin.take("model_a"), origin.take("model_b")]
    if models is None:
        return [None] * count
    if not isinstance(models, list) or len(models) != count:
        raise RowError(row.where, f"column 'models' is {describe(models)}; wanted a list of {count} names.")
    return [None if model is None else str(model) for model in models]
