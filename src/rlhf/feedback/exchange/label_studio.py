"""Label Studio: a JSON list of tasks with their annotations, and the labeling configuration that shows them.

    kind           configuration
    pairwise       Pairwise on `left` and `right`, which knows no tie, and a choice "tie" next to it
    graded5, 7     Choices on `left`
    ranking        Ranker on a List of {id, title, body}
    rating         a Rating for each dimension and completion
    binary         Choices "good", "bad"

One project shows one configuration, so a file holds tasks of one kind. Cancelled annotations are skips and no answers.
Source: label_studio_sdk 2.1.2, label_interface/ (validated with it by tools/check_formats.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from rlhf.config.guidelines import AnnotationGuideline
from rlhf.data.message_text import describe, listed
from rlhf.errors import DataError
from rlhf.feedback.exchange.lines import Line
from rlhf.feedback.exchange.sidecar import (
    NAME,
    judgment_from_dict,
    judgment_to_dict,
    ranks_of_order,
    rendered,
    strict_order,
    task_from_dict,
    task_to_dict,
)
from rlhf.feedback.identity import content_id
from rlhf.files import write_json, write_text
from rlhf.store.items import Item, ItemJudgment
from rlhf.store.values import Response, Task, TaskKind

CHOICES: Mapping[TaskKind, Mapping[str, Any]] = {
    TaskKind.GRADED5: {"A much better": 2, "A slightly better": 1, "Same": 0, "B slightly better": -1, "B much better": -2},
    TaskKind.GRADED7: {
        "A much better": 3, "A better": 2, "A slightly better": 1, "Same": 0, "B slightly better": -1, "B better": -2,
        "B much better": -3,
    },
    TaskKind.BINARY: {"good": True, "bad": False},
    TaskKind.PAIRWISE: {"tie": "tie"},
}  # fmt: skip
"""Label of a choice to its value."""
SIDES = ("left", "right")
PROMPT_KEYS = ("prompt", "question", "instruction", "text")
ANSWER = re.compile(r"^(?:answer|response|completion|output|text|option)[_-]?([1-9a-f])$", re.IGNORECASE)


def is_label_studio(row: Mapping[str, Any]) -> bool:
    """Whether a task's fields are in its column ``data``."""
    return isinstance(row.get("data"), Mapping)


def write_label_studio(path: Path, items: Sequence[Item], guidelines: Sequence[AnnotationGuideline] = ()) -> int:
    """Write the tasks, and next to them ``<name>.config.xml``; returns the number of tasks. It has no place for guidelines.

    Raises:
        DataError: The tasks are of several kinds.
    """
    kinds = sorted({str(item.task.kind) for item in items})
    if len(kinds) != 1:
        raise DataError(
            f"A Label Studio project shows one kind of task, and these are of {', '.join(kinds)}; choose one with --kind."
        )
    people: dict[str, int] = {}
    tasks = [_task_dict(item, number, people) for number, item in enumerate(items, 1)]
    most = max(len(item.task.responses) for item in items)
    for task in tasks if kinds == [TaskKind.RATING] else ():
        for place in range(1, most + 1):
            task["data"].setdefault(f"answer{place}", "")  # the configuration names all of them
    write_json(path, tasks)
    write_text(config_path(path), labeling_config(items))
    return len(tasks)


def config_path(path: Path) -> Path:
    """Where the configuration of a file of tasks lies."""
    return path.with_name(f"{path.name.removesuffix('.json')}.config.xml")


def labeling_config(items: Sequence[Item]) -> str:
    """The XML that a project needs to show these tasks."""
    kind = items[0].task.kind
    parts = ['<Text name="prompt" value="$prompt"/>']
    if kind in (TaskKind.PAIRWISE, TaskKind.GRADED5, TaskKind.GRADED7):
        parts += [f'<Text name="{side}" value="$answer{n}"/>' for n, side in enumerate(SIDES, 1)]
        if kind is TaskKind.PAIRWISE:
            parts.append('<Pairwise name="preference" toName="left,right"/>')
        parts.append(_choices("tie" if kind is TaskKind.PAIRWISE else "grade", "left", CHOICES[kind]))
    elif kind is TaskKind.RANKING:
        parts += ['<List name="answers" value="$items"/>', '<Ranker name="ranking" toName="answers"/>']
    elif kind is TaskKind.BINARY:
        parts += ['<Text name="answer1" value="$answer1"/>', _choices("label", "answer1", CHOICES[kind])]
    else:
        for place in range(1, max(len(item.task.responses) for item in items) + 1):
            parts.append(f'<Text name="answer{place}" value="$answer{place}"/>')
            for dimension in _dimensions(items):
                name = escape(f"{dimension}_{place}", quote=True)
                parts.append(f'<Rating name="{name}" toName="answer{place}" maxRating="5"/>')
    parts.append('<TextArea name="comment" toName="prompt" editable="true"/>')
    return "<View>\n  " + "\n  ".join(parts) + "\n</View>\n"


def _choices(name: str, to: str, choices: Mapping[str, Any]) -> str:
    inside = "".join(f'<Choice value="{label}"/>' for label in choices)
    return f'<Choices name="{name}" toName="{to}" choice="single">{inside}</Choices>'


def _dimensions(items: Iterable[Item]) -> list[str]:
    values = [judgment.value for item in items for judgment in item.judgments]
    values += [item.task.gold for item in items if item.task.gold is not None]
    return list(dict.fromkeys(name for value in values for name in value["ratings"])) or ["overall"]


def _task_dict(item: Item, number: int, people: dict[str, int]) -> dict[str, Any]:
    task = item.task
    texts = [rendered(response.text) for response in task.responses]
    data: dict[str, Any] = {"prompt": rendered(task.prompt)}
    if task.kind is TaskKind.RANKING:
        data["items"] = [{"id": str(n), "title": f"Answer {n}", "body": text} for n, text in enumerate(texts, 1)]
    else:
        data |= {f"answer{n}": text for n, text in enumerate(texts, 1)}
    annotations = []
    for one in item.judgments:
        who = people.setdefault(one.annotator, len(people) + 1)
        annotations.append(_annotation(task, one, who))
    judgments = {str(people[one.annotator]): judgment_to_dict(one) for one in item.judgments}
    return {
        "id": number,
        "data": {**data, NAME: {"task": task_to_dict(task), "said": judgments}},
        "annotations": annotations,
    }


def _annotation(task: Task, judgment: ItemJudgment, who: int) -> dict[str, Any]:
    regions = _regions(task.kind, judgment.value)
    if judgment.comment:
        regions.append(("comment", "prompt", "textarea", {"text": [judgment.comment]}))
    result = [
        {"id": f"r{n}", "from_name": name, "to_name": to, "type": kind, "value": value}
        for n, (name, to, kind, value) in enumerate(regions, 1)
    ]
    annotation: dict[str, Any] = {"completed_by": who, "was_cancelled": False, "ground_truth": False, "result": result}
    if judgment.seconds is not None:
        annotation["lead_time"] = judgment.seconds
    if judgment.made_at is not None:
        annotation["created_at"] = annotation["updated_at"] = judgment.made_at.isoformat()
    return annotation


Region = tuple[str, str, str, dict[str, Any]]
"""from_name, to_name (one of the objects, never "left,right"), type, value."""


def _regions(kind: TaskKind, value: Mapping[str, Any]) -> list[Region]:
    match kind:
        case TaskKind.PAIRWISE if value["preference"] != "tie":
            return [("preference", "left", "pairwise", {"selected": SIDES["ab".index(value["preference"])]})]
        case TaskKind.PAIRWISE:
            return [("tie", "left", "choices", {"choices": ["tie"]})]
        case TaskKind.RANKING:
            best_first = [str(place + 1) for place in strict_order(value["ranks"])]
            return [("ranking", "answers", "ranker", {"ranker": {"rank": best_first}})]
        case TaskKind.RATING:
            return [
                (f"{dimension}_{place}", f"answer{place}", "rating", {"rating": rating})
                for dimension, given in value["ratings"].items() for place, rating in enumerate(given, 1)
            ]  # fmt: skip
    (answer,) = value.values()
    label = next(label for label, known in CHOICES[kind].items() if known == answer and type(known) is type(answer))
    name, to = ("label", "answer1") if kind is TaskKind.BINARY else ("grade", "left")
    return [(name, to, "choices", {"choices": [label]})]


def from_label_studio(lines: Sequence[Line]) -> list[Item]:
    """One task of a project: ours, or anybody's that has a prompt and answers under the usual names."""
    (line,) = lines
    data = line.cells.get("data")
    if not isinstance(data, Mapping):
        raise line.bad(f"its `data` is {describe(data)}; wanted the object with the texts of the task.")
    annotations = line.cells.get("annotations", line.cells.get("completions")) or []  # the second in old exports
    made = [one for one in annotations if isinstance(one, Mapping) and not one.get("was_cancelled")]
    kept = data.get(NAME)
    if isinstance(kept, Mapping) and "task" in kept:
        task = task_from_dict(kept["task"], data.get("prompt", ""), _texts(data, line))
        sides = kept.get("said", {})
    else:
        task, sides = _their_task(line, data, made), {}
    return [Item(task=task, judgments=tuple(_judgment(task, one, sides, line) for one in made if one.get("result")))]


def _texts(data: Mapping[str, Any], line: Line) -> list[str]:
    """Completions, in order."""
    if isinstance(data.get("items"), list):
        return [str(one.get("body", "")) if isinstance(one, Mapping) else str(one) for one in data["items"]]
    if all(side in data for side in SIDES):
        return [str(data[side]) for side in SIDES]
    names = sorted(name for name in data if ANSWER.match(name))
    kept = data.get(NAME)
    if isinstance(kept, Mapping) and "task" in kept:  # behind them stand empty ones, which the configuration asked for
        names = names[: len(kept["task"]["responses"])]
    if not names:
        raise line.bad(
            f"no answers in `data`, which has {listed(data)}; wanted answer1, answer2 ..., or left and right, or items."
        )
    return [str(data[name]) for name in names]


def _their_task(line: Line, data: Mapping[str, Any], made: Sequence[Mapping[str, Any]]) -> Task:
    texts = _texts(data, line)
    name = next((key for key in PROMPT_KEYS if key in data), None)
    prompt = str(data[name]) if name is not None else ""
    regions = [region for one in made for region in one.get("result") or () if isinstance(region, Mapping)]
    kind = _kind_of(regions, len(texts))
    used = {name, "items", *SIDES, *(key for key in data if ANSWER.match(key))}
    columns = {key: value for key, value in data.items() if key not in used and value is not None}
    responses = [Response(text=text) for text in texts]
    own_id = str(columns.pop("id", "") or "") or content_id(kind, prompt, texts)
    return Task(id=own_id, kind=kind, prompt=prompt, responses=responses, columns=columns)


def _kind_of(regions: Sequence[Mapping[str, Any]], num_texts: int) -> TaskKind:
    """What was asked, by what was answered; by the number of answers where nobody has."""
    types = {str(region.get("type")) for region in regions}
    labels = {label for region in regions for label in _value(region).get("choices", ())}
    if "ranker" in types:
        return TaskKind.RANKING
    if "rating" in types:
        return TaskKind.RATING
    if "pairwise" in types:
        return TaskKind.PAIRWISE
    for kind in (TaskKind.PAIRWISE, TaskKind.BINARY, TaskKind.GRADED5, TaskKind.GRADED7):
        if labels and labels <= set(CHOICES[kind]):
            return kind
    return TaskKind.BINARY if num_texts == 1 else TaskKind.PAIRWISE if num_texts == 2 else TaskKind.RANKING


def _value(region: Mapping[str, Any]) -> Mapping[str, Any]:
    value = region.get("value")
    return value if isinstance(value, Mapping) else {}


def _judgment(task: Task, annotation: Mapping[str, Any], sides: Mapping[str, Any], line: Line) -> ItemJudgment:
    by = annotation.get("completed_by")
    who = str((by.get("email") or by.get("id")) if isinstance(by, Mapping) else by)
    key = str(by.get("id")) if isinstance(by, Mapping) else who
    regions = [region for region in annotation["result"] if isinstance(region, Mapping)]
    comment = "\n".join(
        text for r in regions if r.get("type") == "textarea" for text in _as_list(_value(r).get("text"))
    )
    kept = dict(sides.get(key, {}))
    kept.setdefault("annotator", f"label-studio-{who}" if who.isdigit() else who)
    kept.setdefault("seconds", annotation.get("lead_time"))
    kept.setdefault("made_at", annotation.get("created_at"))
    answers = [region for region in regions if region.get("type") != "textarea"]
    return judgment_from_dict(
        kept, annotator=who, value=_answer(task, answers, line), comment=comment, where=line.where
    )


def _as_list(value: Any) -> list[str]:
    return [str(one) for one in value] if isinstance(value, list) else [] if value is None else [str(value)]


def _answer(task: Task, regions: Sequence[Mapping[str, Any]], line: Line) -> dict[str, Any]:
    """The value of a judgment, from the regions of an annotation."""
    if task.kind is TaskKind.RATING:
        return {"ratings": _ratings(task, regions, line)}
    for region in regions:
        value = _value(region)
        if "selected" in value and value["selected"] in SIDES:
            return {"preference": "ab"[SIDES.index(value["selected"])]}
        if "ranker" in value:
            return {"ranks": _ranks(task, value["ranker"], line)}
        for label in _as_list(value.get("choices")):
            if label in CHOICES.get(task.kind, {}):
                name = {TaskKind.PAIRWISE: "preference", TaskKind.BINARY: "label"}.get(task.kind, "grade")
                return {name: CHOICES[task.kind][label]}
    answer = "; ".join(f"{region.get('type')}: {describe(region.get('value'))}" for region in regions) or "nothing"
    raise line.bad(f"an annotation answers {answer}, which says nothing of a task of kind {task.kind}.")


def _ranks(task: Task, ranker: Any, line: Line) -> list[int]:
    """Both shapes there are: {"ranker": {"rank": [...]}} of the SDK, {"ranker": [...]} of the tag's page."""
    best_first = next(iter(ranker.values()), []) if isinstance(ranker, Mapping) else ranker
    data = line.cells["data"]
    ids = [
        str(one.get("id")) if isinstance(one, Mapping) else str(n) for n, one in enumerate(data.get("items") or (), 1)
    ]
    if sorted(map(str, best_first)) != sorted(ids):
        raise line.bad(
            f"a ranking names {listed(map(str, best_first))}; the task's items are {listed(ids)}, each once."
        )
    return ranks_of_order([ids.index(str(one)) for one in best_first])


def _ratings(task: Task, regions: Sequence[Mapping[str, Any]], line: Line) -> dict[str, list[int]]:
    """Names such as ``accuracy_2`` are a dimension and a completion; another tool's name is the dimension of a single one."""
    table: dict[str, dict[int, Any]] = {}
    for region in regions:
        name, rating = str(region.get("from_name")), _value(region).get("rating")
        dimension, _, place = name.rpartition("_")
        if not dimension or not place.isdigit():
            dimension, place = name, "1"
        table.setdefault(dimension, {})[int(place) - 1] = rating
    count = len(task.responses)
    whole = {name: [given[n] for n in range(count)] for name, given in table.items() if set(given) == set(range(count))}
    if not whole:
        raise line.bad(
            f"an annotation rates {listed(table) or 'nothing'}, and no dimension for all {count} completions."
        )
    return whole
