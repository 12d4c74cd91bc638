"""From judgments to rows of DESIGN's kinds: one for each judgment, with where it came from.

    pairwise, graded   comparison   preference, strength, and `grade` where grades were asked
    ranking            ranking      ranks
    rating             ranking or, of one completion, rating: overall ratings, and `ratings_by_dimension`
    binary             unpaired     label
    multiclass         (none)       label, the class; `text`, or `prompt` and `completion`

Read again (``rlhf.feedback.tasks``), they give the same tasks and the same judgments.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any

from rlhf.config.guidelines import STANDARD_GUIDELINES, AnnotationGuideline, overall_rating
from rlhf.feedback.judgment_origin import provenance_of
from rlhf.store.items import Item
from rlhf.store.values import Task, TaskKind


def rows_of(
    items: Iterable[Item],
    *,
    guidelines: Sequence[AnnotationGuideline] = STANDARD_GUIDELINES,
    flat: bool = False,
    with_unjudged: bool = False,
) -> Iterator[dict[str, Any]]:
    """One row for each judgment.

    Args:
        items: Tasks with their judgments.
        guidelines: Whose weights make overall ratings, and whose digest is the column ``guideline_version``.
        flat: For CSV and Parquet; see ``rlhf.feedback.judgment_origin``.
        with_unjudged: Also a row for each task that nobody judged: its prompt and a list of completions. One with an empty
            prompt has none: such a row can't be read again.
    """
    version = guideline_version(guidelines)
    for item in items:
        for judgment in item.judgments:
            own = _own_columns(item.task, judgment.value, guidelines)
            yield own | provenance_of(item.task, judgment, guideline_version=version, flat=flat)
        if with_unjudged and not item.judgments and (item.task.prompt or item.task.kind is TaskKind.MULTICLASS):
            yield _unjudged(item.task, flat)


def guideline_version(guidelines: Sequence[AnnotationGuideline]) -> str:
    """Eight letters that change when the guidelines do."""
    content = json.dumps([guideline.model_dump(mode="json") for guideline in guidelines], sort_keys=True)
    return blake2b(content.encode(), digest_size=4).hexdigest()


def _own_columns(task: Task, value: Mapping[str, Any], guidelines: Sequence[AnnotationGuideline]) -> dict[str, Any]:
    texts = [response.text for response in task.responses]
    match task.kind:
        case TaskKind.PAIRWISE | TaskKind.GRADED5 | TaskKind.GRADED7:
            return {"prompt": task.prompt, "completion_a": texts[0], "completion_b": texts[1], **_verdict(task, value)}
        case TaskKind.RANKING:
            return {"prompt": task.prompt, "completions": texts, "ranks": value["ranks"]}
        case TaskKind.RATING:
            dimensions = value["ratings"]
            overall = overall_ratings(dimensions, guidelines)
            named = {"ratings_by_dimension": dimensions}
            if len(texts) == 1:
                return {"prompt": task.prompt, "completion": texts[0], "rating": overall[0], **named}
            return {"prompt": task.prompt, "completions": texts, "ratings": overall, **named}
    if task.kind is TaskKind.MULTICLASS:
        return {**labeled_text(task), "label": value["class"]}
    return {"prompt": task.prompt, "completion": texts[0], "label": value["label"]}


def labeled_text(task: Task) -> dict[str, Any]:
    """What a class was given to: a text, a completion of a prompt, or an item of which only the id is known."""
    text = task.responses[0].text
    if task.prompt:
        return {"prompt": task.prompt, "completion": text}
    return {"text": text} if text else {}


def _verdict(task: Task, value: Mapping[str, Any]) -> dict[str, Any]:
    if task.kind is TaskKind.PAIRWISE:
        return {"preference": value["preference"]}
    grade = value["grade"]
    verdict: dict[str, Any] = {"preference": "a" if grade > 0 else "b" if grade < 0 else "tie", "grade": grade}
    if grade:
        verdict["strength"] = "significantly" if abs(grade) > 1 else "slightly"
    return verdict


def overall_ratings(dimensions: Mapping[str, Sequence[int]], guidelines: Sequence[AnnotationGuideline]) -> list[float]:
    """Of each completion: the mean by the guidelines' weights, or the plain mean where they do not know a dimension."""
    weights = {guideline.name: guideline.weight for guideline in guidelines}
    if not dimensions.keys() <= weights.keys():
        guidelines = [AnnotationGuideline(name=name, description="") for name in dimensions]
    return [
        overall_rating(dict(zip(dimensions, given, strict=True)), guidelines)
        for given in zip(*dimensions.values(), strict=True)
    ]


def _unjudged(task: Task, flat: bool) -> dict[str, Any]:
    """A prompt and its completions, without a verdict; of a class that is known, the class."""
    if task.kind is TaskKind.MULTICLASS:
        known = {"label": task.gold["class"], "gold": True} if task.gold is not None else {}
        return {**labeled_text(task), **known, **provenance_of(task, None, flat=flat)}
    texts = [response.text for response in task.responses]
    return {"prompt": task.prompt, "completions": texts, **provenance_of(task, None, flat=flat)}


def with_judgments(items: Iterable[Item], keep: Any) -> list[Item]:
    """The same items with only those judgments that ``keep(task, judgment)`` wants."""
    return [
        Item(task=item.task, judgments=tuple(judgment for judgment in item.judgments if keep(item.task, judgment)))
        for item in items
    ]
