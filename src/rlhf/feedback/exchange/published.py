"""Layouts of public preference data. What a set says becomes the judgment of an annotator called after who said it.

    UltraFeedback   prompts with four completions, each rated on four dimensions by GPT-4       rating
    HelpSteer2      completions rated 0 to 4 on five dimensions, one a row; or pairs, -3 to 3    rating, graded7
    HelpSteer3      pairs, -3 to 3, by several people                                            graded7
    Nectar          seven completions ranked by GPT-4                                            ranking
    SHP             two comments to a post, the better one by votes                              pairwise
    PKU-SafeRLHF    pairs with two verdicts: more helpful, and safer                             two tasks a row

Scales are turned into ours: ratings 0 to 4 become 1 to 5; strengths, which are negative where the first is better, change
their sign. Everything else a row holds stays next to the task or the completion it belongs to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlhf.data.cells import Cells
from rlhf.data.contracts import PromptRow, Text
from rlhf.data.expand import to_conversational
from rlhf.data.message_text import describe
from rlhf.feedback.exchange.lines import Line, whole
from rlhf.feedback.identity import content_id
from rlhf.feedback.layouts import HELPSTEER_DIMENSIONS
from rlhf.store.items import Item, ItemJudgment
from rlhf.store.values import MAX_RANKED, MAX_TEXT, Response, Task, TaskKind


def is_ultrafeedback(row: Mapping[str, Any]) -> bool:
    """Whether a row with its columns is not a ranking or a rating of ours."""
    return "ranks" not in row and "ratings" not in row


def _item(
    kind: TaskKind, prompt: Text, responses: Sequence[Response], judgments: Sequence[ItemJudgment], cells: Cells, *,
    name: str = "", batch: str = "", columns: Mapping[str, Any] | None = None,
) -> Item:  # fmt: skip
    """A task named by its row's id where it has one, with the columns nobody took."""
    rest = {**cells.rest(), **(columns or {})}
    own_id = str(rest.pop("id", "") or "")
    task = Task(
        id=name or own_id or content_id(kind, prompt, [r.text for r in responses]), kind=kind, prompt=prompt,
        responses=responses, batch=batch, columns=rest,
    )  # fmt: skip
    return Item(task=task, judgments=tuple(judgments))


def ultrafeedback(lines: Sequence[Line]) -> list[Item]:
    """Dimensions that some completion is not rated on (N/A) are left out: a judgment rates all completions of a task."""
    (line,) = lines
    cells = line.taken_by("instruction", "completions")
    prompt = cells.text("instruction")
    given = cells.list_of("completions", lambda value, column: _object(value, column, line))
    responses, tables = [], []
    for number, one in enumerate(given):
        text = cells.one_text(one.pop("response", None), f"completions[{number}].response")
        annotations = one.get("annotations") or {}
        tables.append({name: _likert(table) for name, table in annotations.items() if isinstance(table, Mapping)})
        responses.append(Response(text=text, model=_name(one.pop("model", None)), columns=one))
    dimensions = [name for name in (tables[0] if tables else {}) if all(table.get(name) for table in tables)]
    judgments = (
        [ItemJudgment(annotator="gpt-4", value={"ratings": {d: [t[d] for t in tables] for d in dimensions}})]
        if dimensions
        else []
    )
    return [_item(TaskKind.RATING, prompt, responses, judgments, cells)]


def _likert(table: Mapping[str, Any]) -> int | None:
    rating = str(table.get("Rating", "")).strip()
    return int(rating) if rating in ("1", "2", "3", "4", "5") else None


def helpsteer2(lines: Sequence[Line]) -> list[Item]:
    """Rows one behind the other with the same prompt are completions of one task."""
    tables, responses = [], []
    for line in lines:
        cells = line.taken_by("prompt", "response", *HELPSTEER_DIMENSIONS)
        prompt, text = cells.text("prompt"), cells.text("response")
        tables.append(
            [whole(cells.cells.pop(name), 0, 4, f"column {name!r}", line) + 1 for name in HELPSTEER_DIMENSIONS]
        )
        responses.append(Response(text=text, columns=cells.rest()))
    value = {"ratings": {name: [table[n] for table in tables] for n, name in enumerate(HELPSTEER_DIMENSIONS)}}
    if len(responses) > MAX_RANKED:
        raise lines[0].bad(
            f"its prompt is in {len(responses)} rows, and a task holds at most {MAX_RANKED} completions."
        )
    judgments = [ItemJudgment(annotator="helpsteer2", value=value)]
    return [_item(TaskKind.RATING, prompt, responses, judgments, Cells({}, lines[0].where, False))]


def helpsteer2_preference(lines: Sequence[Line]) -> list[Item]:
    """Strengths from -3 (the first is much better) to 3."""
    (line,) = lines
    cells = line.taken_by("prompt", "response_1", "response_2", "preference_strength")
    grade = -whole(cells.cells.pop("preference_strength"), -3, 3, "column 'preference_strength'", line)
    prompt = cells.either("prompt")
    responses = [Response(text=_beside(prompt, cells.text(name))) for name in ("response_1", "response_2")]
    return [
        _item(
            TaskKind.GRADED7, prompt, responses, [ItemJudgment(annotator="helpsteer2", value={"grade": grade})], cells
        )
    ]


def helpsteer3(lines: Sequence[Line]) -> list[Item]:
    """Each person's own verdict where they are there; the overall one is made of them and stays a column."""
    (line,) = lines
    cells = line.taken_by("context", "response1", "response2", "overall_preference")
    overall = -whole(cells.cells["overall_preference"], -3, 3, "column 'overall_preference'", line)
    prompt = cells.either("context")
    responses = [Response(text=_beside(prompt, cells.text(name))) for name in ("response1", "response2")]
    judgments = []
    for number, one in enumerate(cells.cells.get("individual_preference") or (), 1):
        if not isinstance(one, Mapping) or "score" not in one:
            raise line.bad(f"individual_preference[{number - 1}] is {describe(one)}; wanted an object with a score.")
        grade = -whole(one["score"], -3, 3, f"individual_preference[{number - 1}].score", line)
        judgments.append(
            ItemJudgment(
                annotator=f"helpsteer3-{number}",
                value={"grade": grade},
                comment=str(one.get("reasoning") or "")[:MAX_TEXT],
            )
        )
    judgments = judgments or [ItemJudgment(annotator="helpsteer3", value={"grade": overall})]
    return [_item(TaskKind.GRADED7, prompt, responses, judgments, cells)]


def nectar(lines: Sequence[Line]) -> list[Item]:
    """Seven answers, and people compare six: the middle one is left out and kept in the column ``left_out``."""
    (line,) = lines
    cells = line.taken_by("prompt", "answers")
    prompt = _turns_of(cells.text("prompt"), line)
    given = cells.list_of("answers", lambda value, column: _object(value, column, line))
    ranks = [whole(one.get("rank"), 1, len(given), f"answers[{n}].rank", line) for n, one in enumerate(given)]
    by_rank = sorted(range(len(given)), key=lambda place: ranks[place])
    surplus = len(given) - MAX_RANKED
    middle = by_rank[(len(by_rank) - surplus) // 2 :][:surplus] if surplus > 0 else []
    kept = [place for place in range(len(given)) if place not in middle]
    responses, left = [], [ranks[place] for place in kept]
    for place in kept:
        one = dict(given[place])
        text = cells.one_text(one.pop("answer", None), f"answers[{place}].answer")
        one.pop("rank")
        responses.append(Response(text=_beside(prompt, text), model=_name(one.pop("model", None)), columns=one))
    value = {"ranks": [1 + sum(other < rank for other in left) for rank in left]}
    columns = {"left_out": [dict(given[place]) for place in middle]} if middle else {}
    return [
        _item(
            TaskKind.RANKING, prompt, responses, [ItemJudgment(annotator="gpt-4", value=value)], cells, columns=columns
        )
    ]


def shp(lines: Sequence[Line]) -> list[Item]:
    """``labels`` is 1 where the first is better. Pairs of one post share ``post_id``: split data by it."""
    (line,) = lines
    cells = line.taken_by("history", "human_ref_A", "human_ref_B", "labels")
    label = whole(cells.cells.pop("labels"), 0, 1, "column 'labels'", line)
    prompt = cells.text("history")
    responses = []
    for side in "AB":
        columns = {
            name: cells.cells.pop(f"{name}_{side}")
            for name in ("score", "c_root_id", "seconds")
            if f"{name}_{side}" in cells.cells
        }
        responses.append(Response(text=cells.text(f"human_ref_{side}"), columns=columns))
    ids = [cells.cells.get("post_id"), *(response.columns.get("c_root_id") for response in responses)]
    name = ":".join(map(str, ids)) if all(ids) else ""
    judgments = [ItemJudgment(annotator="reddit", value={"preference": "a" if label else "b"})]
    return [_item(TaskKind.PAIRWISE, prompt, responses, judgments, cells, name=name)]


def pku_saferlhf(lines: Sequence[Line]) -> list[Item]:
    """Two questions, so two tasks, in the batches ``helpfulness`` and ``safety``; hand out one batch at a time."""
    (line,) = lines
    cells = line.taken_by("prompt", "response_0", "response_1", "better_response_id", "safer_response_id")
    verdicts = {
        "helpfulness": whole(cells.cells.pop("better_response_id"), 0, 1, "column 'better_response_id'", line),
        "safety": whole(cells.cells.pop("safer_response_id"), 0, 1, "column 'safer_response_id'", line),
    }
    prompt = cells.text("prompt")
    responses = []
    for side in "01":
        mine = [name for name in cells.cells if f"response_{side}" in name and name != f"response_{side}"]
        columns = {name.replace(f"_{side}", ""): cells.cells.pop(name) for name in mine}
        responses.append(Response(text=cells.text(f"response_{side}"), columns=columns))
    name = str(cells.cells.get("id") or content_id(TaskKind.PAIRWISE, prompt, [r.text for r in responses]))
    return [
        _item(
            TaskKind.PAIRWISE, prompt, responses, [ItemJudgment(annotator="pku-saferlhf", value={"preference": "ab"[better]})],
            cells, name=f"{name}#{dimension}", batch=dimension, columns={"dimension": dimension},
        )
        for dimension, better in verdicts.items()
    ]  # fmt: skip


def _turns_of(prompt: str, line: Line) -> Text:
    """A transcript "Human: ... Assistant:" as turns; any other text as it is."""
    row = to_conversational(PromptRow(where=line.where, prompt=prompt.rstrip()))
    assert isinstance(row, PromptRow)
    return row.prompt if prompt.startswith("\n\nHuman:") else prompt


def _beside(prompt: Text, completion: str) -> Text:
    """A completion of the form its prompt has."""
    return completion if isinstance(prompt, str) else [{"role": "assistant", "content": completion}]


def _object(value: Any, column: str, line: Line) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise line.bad(f"{column} is {describe(value)}; wanted an object.")
    return dict(value)


def _name(value: Any) -> str | None:
    return None if value in (None, "") else str(value)
