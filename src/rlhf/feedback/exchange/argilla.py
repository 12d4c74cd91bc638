"""Argilla 2.x: a folder with records.json and .argilla/, as ``Dataset.to_disk`` writes it, and the flat rows of ``to_list``.

    kind                question
    pairwise, graded    label_selection
    ranking             ranking of completion_1 ... (strict: ties travel next to it)
    rating              rating 1 to 5, one for each dimension and completion
    binary              label_selection good, bad

The nested records of Argilla itself drop whether a response was submitted or discarded; ours keep it, and discarded and
draft ones are never taken for answers. Source: argilla 2.8.0, records/_io, datasets/_io/_disk.py, _models/_settings.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlhf.config.guidelines import AnnotationGuideline
from rlhf.data.contracts import Text
from rlhf.data.message_text import describe, listed
from rlhf.errors import DataError
from rlhf.feedback.exchange.lines import Line
from rlhf.feedback.exchange.sidecar import (
    NAME,
    judgment_from_dict,
    judgment_to_dict,
    ranks_of_order,
    strict_order,
    task_from_dict,
    task_to_dict,
)
from rlhf.feedback.identity import content_id
from rlhf.files import write_json
from rlhf.store.items import Item
from rlhf.store.values import Response, Task, TaskKind

RECORDS = "records.json"
SUBMITTED = "submitted"
USERS = uuid.UUID("6f1d3a52-8f0e-5a55-9d35-3f6f2b0c7c11")
"""Namespace of user ids: the same name has the same one in every export."""
LABELS: Mapping[TaskKind, Mapping[str, Any]] = {
    TaskKind.PAIRWISE: {"a": "a", "b": "b", "tie": "tie"},
    TaskKind.GRADED5: {"a_much": 2, "a_slightly": 1, "same": 0, "b_slightly": -1, "b_much": -2},
    TaskKind.GRADED7: {"a_much": 3, "a_better": 2, "a_slightly": 1, "same": 0, "b_slightly": -1, "b_better": -2, "b_much": -3},
    TaskKind.BINARY: {"good": True, "bad": False},
}  # fmt: skip
QUESTION: Mapping[TaskKind, str] = {
    TaskKind.PAIRWISE: "preference", TaskKind.GRADED5: "grade", TaskKind.GRADED7: "grade", TaskKind.BINARY: "label",
    TaskKind.RANKING: "ranks",
}  # fmt: skip
PROMPT_FIELDS = ("prompt", "instruction", "question", "input")
ANSWER_FIELDS = ("completion", "response", "answer", "output", "generation")


def write_argilla(
    path: Path, items: Sequence[Item], guidelines: Sequence[AnnotationGuideline], *, overlap: int = 1
) -> int:
    """Write a folder that ``rg.Dataset.from_disk`` takes; returns the number of records.

    Args:
        path: The folder.
        items: Of one kind.
        guidelines: Become the data set's guidelines.
        overlap: Responses wanted of each record.

    Raises:
        DataError: The tasks are of several kinds, or rankings of several lengths.
    """
    kinds = sorted({str(item.task.kind) for item in items})
    if len(kinds) != 1:
        raise DataError(
            f"An Argilla data set asks the same questions of all, and these tasks are of {', '.join(kinds)}; choose one with --kind."
        )
    counts = sorted({len(item.task.responses) for item in items})
    if kinds == [TaskKind.RANKING] and len(counts) != 1:
        raise DataError(
            f"An Argilla ranking ranks equally many everywhere, and these have {', '.join(map(str, counts))} completions; export them apart."
        )
    chat = any(
        isinstance(t, list) for item in items for t in (item.task.prompt, *(r.text for r in item.task.responses))
    )
    write_json(path / RECORDS, [_record(item, chat) for item in items])
    write_json(path / ".argilla" / "settings.json", settings_of(items, guidelines, chat=chat, overlap=overlap))
    dataset = {"name": path.name, "status": "draft", "guidelines": None, "allow_extra_metadata": True}
    write_json(path / ".argilla" / "dataset.json", dataset)
    return len(items)


def settings_of(
    items: Sequence[Item], guidelines: Sequence[AnnotationGuideline], *, chat: bool, overlap: int
) -> dict[str, Any]:
    """Fields and questions, as ``Settings.serialize`` gives them."""
    kind = items[0].task.kind
    most = max(len(item.task.responses) for item in items)
    least = min(len(item.task.responses) for item in items)
    style = {"type": "chat", "use_markdown": True} if chat else {"type": "text", "use_markdown": True}
    names = ["prompt", *(f"completion_{n}" for n in range(1, most + 1))]
    fields = [
        {"name": name, "title": name, "required": number <= least, "settings": dict(style)}
        for number, name in enumerate(names)
    ]
    text = "\n\n".join(f"{guideline.name}: {guideline.description}" for guideline in guidelines)
    return {
        "guidelines": text or None, "fields": fields, "questions": [*_questions(kind, items, most), _comment()],
        "vectors": [], "metadata": [], "allow_extra_metadata": True,
        "distribution": {"strategy": "overlap", "min_submitted": overlap}, "mapping": None,
    }  # fmt: skip


def _questions(kind: TaskKind, items: Sequence[Item], most: int) -> list[dict[str, Any]]:
    if kind is TaskKind.RANKING:
        options = [
            {"value": f"completion_{n}", "text": f"completion_{n}", "description": None} for n in range(1, most + 1)
        ]
        return [_question("ranks", {"type": "ranking", "options": options})]
    if kind is TaskKind.RATING:
        scale = [{"value": number} for number in range(1, 6)]
        names = {slug: dimension for dimension, slug in _slugs(_dimensions(items)).items()}
        return [
            _question(f"{slug}_{n}", {"type": "rating", "options": scale}, title=f"{dimension} of {n}", required=False)
            for slug, dimension in names.items() for n in range(1, most + 1)
        ]  # fmt: skip
    options = [{"value": label, "text": label, "description": None} for label in LABELS[kind]]
    return [_question(QUESTION[kind], {"type": "label_selection", "options": options})]


def _slugs(dimensions: Sequence[str]) -> dict[str, str]:
    """Names as Argilla's server wants those of questions: small letters of a to z, digits, _ and -.

    Raises:
        DataError: Two become the same.
    """
    slugs = {
        dimension: re.sub(r"[^a-z0-9_-]+", "_", dimension.lower()).strip("_") or "dimension" for dimension in dimensions
    }
    if len(set(slugs.values())) < len(slugs):
        raise DataError(
            f"As names of Argilla's questions {', '.join(map(repr, dimensions))} can't be distinguished; rename one."
        )
    return slugs


def _question(name: str, settings: Mapping[str, Any], *, title: str = "", required: bool = True) -> dict[str, Any]:
    return {"name": name, "title": title or name, "description": None, "required": required, "settings": dict(settings)}


def _comment() -> dict[str, Any]:
    return _question("comment", {"type": "text", "use_markdown": False}, required=False)


def _dimensions(items: Sequence[Item]) -> list[str]:
    values = [judgment.value for item in items for judgment in item.judgments]
    return list(dict.fromkeys(name for value in values for name in value["ratings"])) or ["overall"]


def _record(item: Item, chat: bool) -> dict[str, Any]:
    task = item.task
    fields: dict[str, Any] = {"prompt": _shown(task.prompt, "user", chat)}
    fields |= {f"completion_{n}": _shown(r.text, "assistant", chat) for n, r in enumerate(task.responses, 1)}
    responses: dict[str, list[dict[str, Any]]] = {}
    kept: dict[str, Any] = {}
    for judgment in item.judgments:
        user = str(uuid.uuid5(USERS, judgment.annotator))
        kept[user] = judgment_to_dict(judgment)
        answers = _answers(task.kind, judgment.value) | ({"comment": judgment.comment} if judgment.comment else {})
        for question, value in answers.items():
            responses.setdefault(question, []).append({"value": value, "user_id": user, "status": SUBMITTED})
    aside = json.dumps({"task": task_to_dict(task), "said": kept}, ensure_ascii=False)
    return {
        "id": task.id, "fields": fields, "metadata": {NAME: aside}, "suggestions": {}, "responses": responses,
        "vectors": {}, "status": "completed" if item.judgments else "pending", "_server_id": None,
    }  # fmt: skip


def _shown(text: Text, role: str, chat: bool) -> Any:
    """A chat field takes role and content alone; the whole dialogue travels next to it."""
    if not chat:
        return text
    turns = text if isinstance(text, list) else [{"role": role, "content": text}]
    return [{"role": turn["role"], "content": str(turn.get("content") or "")} for turn in turns]


def _answers(kind: TaskKind, value: Mapping[str, Any]) -> dict[str, Any]:
    """Question to answer, as the SDK holds them."""
    if kind is TaskKind.RANKING:
        return {"ranks": [f"completion_{place + 1}" for place in strict_order(value["ranks"])]}
    if kind is TaskKind.RATING:
        slugs = _slugs(list(value["ratings"]))
        return {f"{slugs[d]}_{n}": rating for d, given in value["ratings"].items() for n, rating in enumerate(given, 1)}
    (answer,) = value.values()
    label = next(label for label, known in LABELS[kind].items() if known == answer and type(known) is type(answer))
    return {QUESTION[kind]: label}


def from_argilla(lines: Sequence[Line]) -> list[Item]:
    """A nested record."""
    (line,) = lines
    fields = line.cells.get("fields")
    if not isinstance(fields, Mapping):
        raise line.bad(f"its `fields` is {describe(fields)}; wanted an object of texts.")
    by_user: dict[str, dict[str, Any]] = {}
    for question, given in (line.cells.get("responses") or {}).items():
        for one in given or ():
            if one.get("status", SUBMITTED) == SUBMITTED:  # records of Argilla's own do not say: see the top
                by_user.setdefault(str(one.get("user_id")), {})[question] = one.get("value")
    metadata = line.cells.get("metadata") or {}
    return [_item(line, line.cells.get("id"), fields, metadata, by_user)]


def is_argilla_flat(row: Mapping[str, Any]) -> bool:
    """Whether a row has answers to a question in a column of their own."""
    return any(name.endswith(".responses") for name in row)


def from_argilla_flat(lines: Sequence[Line]) -> list[Item]:
    """A row of ``<question>.responses``, ``.responses.users`` and ``.responses.status``."""
    (line,) = lines
    cells = line.cells
    by_user: dict[str, dict[str, Any]] = {}
    questions = [name.removesuffix(".responses") for name in cells if name.endswith(".responses")]
    for question in questions:
        answers = cells.get(f"{question}.responses") or []
        users = cells.get(f"{question}.responses.users") or [None] * len(answers)
        states = cells.get(f"{question}.responses.status") or [SUBMITTED] * len(answers)
        if not len(answers) == len(users) == len(states):
            raise line.bad(
                f"{question!r} has {len(answers)} responses of {len(users)} users with {len(states)} statuses; wanted as many of each."
            )
        for answer, user, state in zip(answers, users, states, strict=True):
            if state in (SUBMITTED, None):
                by_user.setdefault(str(user), {})[question] = answer
    beside = {"id", "status", "_server_id"}
    plain = {
        name: value for name, value in cells.items() if "." not in name and name not in beside and value is not None
    }
    metadata = {NAME: plain.pop(NAME)} if NAME in plain else {}
    return [_item(line, cells.get("id"), plain, metadata, by_user)]


def _item(
    line: Line,
    own_id: Any,
    fields: Mapping[str, Any],
    metadata: Mapping[str, Any],
    by_user: Mapping[str, Mapping[str, Any]],
) -> Item:
    kept = _aside(metadata.get(NAME), line)
    count = len(kept["task"]["responses"]) if kept else None
    names = _answer_fields(fields, line, count)
    if kept:
        prompt, texts = _plain(fields.get("prompt", ""), kept["task"]["prompt"]), []
        for name, dialogue in zip(names, kept["task"]["texts"], strict=True):
            texts.append(_plain(fields[name], dialogue))
        task = task_from_dict(kept["task"], prompt, texts)
    else:
        task = _their_task(own_id, fields, names, metadata, by_user)
    known = [name for one in kept.get("said", {}).values() for name in one["value"].get("ratings", ())]
    dimensions = {slug: dimension for dimension, slug in _slugs(list(dict.fromkeys(known))).items()}
    judgments = []
    # responses stand by question, which loses the order in which people answered; what traveled with them has it
    places = {user: place for place, user in enumerate(kept.get("said", {}))}
    for user, answers in sorted(by_user.items(), key=lambda one: places.get(one[0], len(places))):
        comment = str(answers.get("comment") or "")
        value = _value(task, answers, names, dimensions, line)
        if value is not None:
            side = {"annotator": f"argilla-{user}", **(kept.get("said", {}).get(user, {}) if kept else {})}
            judgments.append(judgment_from_dict(side, annotator=user, value=value, comment=comment, where=line.where))
    return Item(task=task, judgments=tuple(judgments))


def _aside(value: Any, line: Line) -> dict[str, Any]:
    """What an export of ours put into the metadata, as JSON text."""
    if not isinstance(value, str):
        return {}
    try:
        kept = json.loads(value)
    except ValueError:
        raise line.bad(
            f"its metadata {NAME!r} is {describe(value)}, which is not the JSON that was exported."
        ) from None
    return kept if isinstance(kept, dict) and "task" in kept else {}


def _plain(shown: Any, dialogue: Any) -> Any:
    """What a chat field holds, as it went in: the dialogue, or the text that was made a turn of."""
    if not isinstance(shown, list):
        return shown
    if isinstance(dialogue, list):
        return dialogue if _shown(dialogue, "", chat=True) == [dict(turn) for turn in shown] else shown
    return shown[0]["content"] if len(shown) == 1 else shown


def _answer_fields(fields: Mapping[str, Any], line: Line, count: int | None) -> list[str]:
    names = [
        name
        for name in fields
        if name.lower().rstrip("_-0123456789abcd") in ANSWER_FIELDS or name.lower() in ANSWER_FIELDS
    ]
    names = sorted(names) if count is None else [f"completion_{n}" for n in range(1, count + 1)]
    if missing := [name for name in names if name not in fields]:
        raise line.bad(f"the field {missing[0]!r} is missing; found {listed(fields)}.")
    if not names:
        raise line.bad(
            f"no completion among the fields {listed(fields)}; wanted names such as completion_1 or response_a."
        )
    return names


def _their_task(
    own_id: Any, fields: Mapping[str, Any], names: Sequence[str], metadata: Mapping[str, Any],
    by_user: Mapping[str, Mapping[str, Any]],
) -> Task:  # fmt: skip
    prompt_name = next((name for name in PROMPT_FIELDS if name in fields), None)
    prompt = fields[prompt_name] if prompt_name is not None else ""
    texts = [fields[name] for name in names]
    rest = {name: value for name, value in fields.items() if name not in (prompt_name, *names)}
    kind = _kind_of(by_user, names)
    return Task(
        id=str(own_id or "") or content_id(kind, prompt, texts), kind=kind, prompt=prompt,
        responses=[Response(text=text) for text in texts], columns={**rest, **metadata},
    )  # fmt: skip


def _kind_of(by_user: Mapping[str, Mapping[str, Any]], names: Sequence[str]) -> TaskKind:
    """What was asked, by what was answered; by the number of completions where nobody has."""
    for answers in by_user.values():
        for value in answers.values():
            if isinstance(value, list) and _names_in(value) == sorted(names):  # spans and several labels are lists too
                return TaskKind.RANKING
            if isinstance(value, int) and not isinstance(value, bool):
                return TaskKind.RATING
            for kind, labels in LABELS.items():
                if isinstance(value, str) and value in labels:
                    return kind
    count = len(names)
    return TaskKind.BINARY if count == 1 else TaskKind.PAIRWISE if count == 2 else TaskKind.RANKING


def _value(
    task: Task, answers: Mapping[str, Any], names: Sequence[str], dimensions: Mapping[str, str], line: Line
) -> dict[str, Any] | None:
    """One user's answers as a judgment; None where they answered none of our questions."""
    if task.kind is TaskKind.RATING:
        table: dict[str, dict[int, int]] = {}
        for question, rating in answers.items():
            if isinstance(rating, int) and not isinstance(rating, bool):
                dimension, _, place = question.rpartition("_")
                named = bool(dimension) and place.isdigit()
                table.setdefault(dimension if named else question, {})[int(place) - 1 if named else 0] = rating
        count = len(task.responses)
        whole = {
            dimensions.get(d, d): [given[n] for n in range(count)]
            for d, given in table.items()
            if set(given) == set(range(count))
        }
        return {"ratings": whole} if whole else None
    for question, value in answers.items():
        if question == "comment":
            continue
        if (
            task.kind is TaskKind.RANKING
            and isinstance(value, list)
            and (question == "ranks" or _names_in(value) == sorted(names))
        ):
            return {"ranks": _ranks(value, names, line)}
        if isinstance(value, str) and value in LABELS.get(task.kind, {}):
            return {QUESTION[task.kind]: LABELS[task.kind][value]}
    return None


def _names_in(value: Sequence[Any]) -> list[str]:
    """What a ranking would rank."""
    return sorted(str(one.get("value")) if isinstance(one, Mapping) else str(one) for one in value)


def _ranks(value: Sequence[Any], names: Sequence[str], line: Line) -> list[int]:
    """Names best first (the SDK), or {"value", "rank"} (the wire), which knows ties."""
    if all(isinstance(one, Mapping) for one in value):
        ranked = {str(one.get("value")): one.get("rank") for one in value}
    else:
        ranked = {str(one): place for place, one in enumerate(value, 1)}
    if sorted(ranked) != sorted(names) or any(not isinstance(rank, int) for rank in ranked.values()):
        raise line.bad(f"a ranking names {listed(ranked)}; the completions are {listed(names)}, each once.")
    if all(isinstance(one, Mapping) for one in value):
        return [1 + sum(other < ranked[name] for other in ranked.values()) for name in names]
    return ranks_of_order([list(names).index(str(one)) for one in value])
