"""From rows of files to tasks for people, and what rows already say to judgments.

    row           asked as                     what it says
    comparison    pairwise, graded5, graded7   who was preferred
    preference    the same                     that `chosen` is better
    ranking       ranking, rating              ranks or ratings
    rating        rating                       one rating
    unpaired      binary                       good or bad
    completion    by how many a prompt has: 1 binary, 2 pairwise, 3 to 6 ranking
    messages      binary, of the last turn
    prompt        the same, where the row has a list `completions` (or `completion_a` and `completion_b`, no verdict)

What a row says becomes a judgment where it names its annotator (``annotator_id``), the gold value where it has
``gold: true``, and else stays beside the task in its column ``known``.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations
from typing import IO, Any

from rlhf.data.contracts import (
    BadRow,
    CompletionRow,
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
from rlhf.data.file_fingerprints import sha_of_text
from rlhf.data.message_text import counted, describe, one_line
from rlhf.data.raw import RawRow, Unreadable
from rlhf.data.read import OnBadRow, RowStream, open_rows
from rlhf.data.sources import Part, Source
from rlhf.data.strict_json import RefusedJsonError, decode
from rlhf.errors import DataError, look_up
from rlhf.feedback.identity import content_id, merged, sampled_id
from rlhf.feedback.items import Item, ItemJudgment, check_item, laid_out_as, moment_of
from rlhf.feedback.provenance import LINEAGE, RowOrigin
from rlhf.feedback.store.values import MAX_RANKED, Response, Task, TaskKind

STDIN = "-"
"""The name of standard input, where a file is wanted."""
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


@dataclass(slots=True)
class Found:
    """What a source held."""

    items: list[Item] = field(default_factory=list)
    left_out: list[BadRow] = field(default_factory=list)
    """Rows that are no task, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """How rows are asked, where they leave a choice."""

    kind: TaskKind | None
    batch: str
    all_gold: bool
    graded: bool = False
    """Some comparison of the source says how clearly, so a tie there is the middle of a scale."""


def tasks_of(source: Source, **how: Any) -> list[Task]:
    """The tasks in a source, without what it says of them; see ``read_items``."""
    return [item.task for item in read_items(source, **how).items]


def read_items(
    source: Source,
    *,
    kind: TaskKind | str | None = None,
    batch: str = "",
    all_gold: bool = False,
    on_bad_row: OnBadRow = "error",
    columns: Mapping[str, str | None] | None = None,
) -> Found:
    """Read rows of any kind as tasks.

    Completions of one prompt (and one ``id``, where rows have ids) become one task, wherever they stand: the output of
    ``rlhf generate --samples 2``, or of two models one behind the other. A task whose completions are all the same text
    asks nothing and is left out.

    Args:
        source: As of ``open_rows``, or ``-`` for standard input.
        kind: How to ask, where rows leave a choice.
        batch: Of tasks that name none.
        all_gold: What rows say is the gold value, as if all had ``gold: true``.
        on_bad_row: ``error`` stops at the first; ``skip`` lists them in ``left_out``.
        columns: Renames columns before they are read.

    Raises:
        DataError: A bad row, with file, line and column; or nothing that can be asked; or ``kind`` is ``multiclass``.
    """
    wanted = TaskKind(look_up({k.value: k for k in TaskKind}, str(kind), kind="kind of task")) if kind else None
    if wanted is TaskKind.MULTICLASS:
        raise DataError(
            "Labels of several classes can't be asked for on the page; `rlhf feedback import` reads those that others gave, one item, "
            "annotator and label a row."
        )
    if source == STDIN:
        stream = _from_stdin(sys.stdin, on_bad_row, columns)
    else:
        stream = open_rows(source, on_bad_row=on_bad_row, columns=columns)
    rows = list(stream)
    graded = any(isinstance(row, PreferenceSample) and row.strength is not None for row in rows)
    asking = Asking(kind=wanted, batch=batch, all_gold=all_gold, graded=graded)
    found = Found()
    made: list[tuple[str, Item]] = []
    loose: dict[tuple[str, str], list[CompletionRow]] = {}
    for row in rows:
        if isinstance(row, CompletionRow):
            loose.setdefault((str(row.columns.get("id", "")), text_key(row.prompt)), []).append(row)
        else:
            _keep(made, found, on_bad_row, row.where, partial(_items_of_row, row, asking))
    for completions in loose.values():
        _keep(made, found, on_bad_row, completions[0].where, partial(_items_of_completions, completions, asking))
    found.left_out += stream.bad_rows
    found.items = merged(made)
    if not found.items:
        first = f" The first: {found.left_out[0].where}: {found.left_out[0].reason}" if found.left_out else ""
        raise DataError(f"Nothing to judge: {counted(len(found.left_out), 'row')} left out, no task made.{first}")
    return found


def _keep(
    made: list[tuple[str, Item]], found: Found, on_bad_row: OnBadRow, where: str, make: Callable[[], list[Item]]
) -> None:
    """Add what a row gives; what can't be judged goes to ``left_out`` or up."""
    try:
        with laid_out_as("an exported row", where):
            made.extend([(where, check_item(item, where)) for item in make()])
    except NothingToJudgeError as err:
        found.left_out.append(BadRow(err.where, err.reason))
    except RowError as err:
        if on_bad_row == "error":
            raise
        found.left_out.append(BadRow(err.where, err.reason))
    except DataError as err:  # of a task's own checks, which know no file
        if on_bad_row == "error":
            raise RowError("" if str(err).startswith(where) else where, str(err)) from err
        found.left_out.append(BadRow(where, str(err).removeprefix(f"{where}: ")))


def _items_of_row(row: Row, asking: Asking) -> list[Item]:
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
    if not judgments and not origin.feedback and _are_equal(texts):
        raise NothingToJudgeError(row.where, len(texts))
    task = Task(
        id=origin.task_id or content_id(own_kind, prompt, texts), kind=own_kind, prompt=prompt, responses=responses,
        gold=gold, priority=origin.priority, batch=origin.batch or asking.batch, columns=kept,
    )  # fmt: skip
    return [Item(task=task, judgments=judgments)]


def _are_equal(texts: Sequence[Text]) -> bool:
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
        diff_viewed=origin.diff_viewed,
    )  # fmt: skip


_KEYS = {
    TaskKind.PAIRWISE: "preference", TaskKind.GRADED5: "grade", TaskKind.GRADED7: "grade", TaskKind.RANKING: "ranks",
    TaskKind.RATING: "ratings", TaskKind.BINARY: "label",
}  # fmt: skip


def _answer(value: Mapping[str, Any] | None, kind: TaskKind, row: Row, what: str) -> Mapping[str, Any]:
    if value is None or set(value) != {_KEYS[kind]}:
        said = "nothing" if value is None else ", ".join(f"{k} = {describe(v)}" for k, v in value.items())
        raise RowError(
            row.where,
            f"as a task of kind {kind} the row needs `{_KEYS[kind]}` for {what}, and it says {said}; choose another kind, "
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


def _items_of_completions(rows: Sequence[CompletionRow], asking: Asking) -> list[Item]:
    """One task of all completions of a prompt, or one for each two of them."""
    first = rows[0]
    natural = TaskKind.BINARY if len(rows) == 1 else TaskKind.PAIRWISE if len(rows) == 2 else TaskKind.RANKING
    own = asking.kind or natural
    if own in (TaskKind.RANKING, TaskKind.RATING) and len(rows) > MAX_RANKED:
        raise RowError(
            first.where,
            f"its prompt has {len(rows)} completions, and a person ranks or rates at most {MAX_RANKED} at once; sample fewer, "
            "or ask of each two: --kind pairwise",
        )
    if own in (*PAIRS, TaskKind.RANKING) and len(rows) < 2:
        raise RowError(
            first.where,
            f"its prompt has one completion, and {own} compares; sample several (--samples 2), or ask --kind binary",
        )
    size = 2 if own in PAIRS else 1 if own is TaskKind.BINARY else len(rows)
    shared, own_columns, models, samplings = _lineage(rows)
    items = []
    for places in combinations(range(len(rows)), size):
        texts = [rows[place].completion for place in places]
        if _are_equal(texts):
            continue
        given = str(first.columns.get("id") or "")
        before = given if len(places) == len(rows) else f"{given}#{'-'.join(map(str, places))}"
        responses = [
            Response(text=rows[p].completion, model=models[p], sampling=samplings[p], columns=own_columns[p])
            for p in places
        ]
        task = Task(
            id=sampled_id(given, own, first.prompt, texts), kind=own, prompt=first.prompt, responses=responses,
            priority=_number(shared.get("priority"), first, "priority"), batch=str(shared.get("batch") or asking.batch),
            columns={name: value for name, value in shared.items() if name not in ("id", "priority", "batch")},
        )  # fmt: skip
        items.append(Item(task=task, old_ids=(before,) if given else ()))
    if not items:
        raise NothingToJudgeError(first.where, len(rows))
    return items


def _lineage(
    rows: Sequence[CompletionRow],
) -> tuple[dict[str, Any], list[dict[str, Any]], list[str | None], list[dict[str, Any]]]:
    """Columns of the task (equal in all rows), columns of each completion, models, and how each was sampled."""
    left = [dict(row.columns) for row in rows]
    models = [str(model) if (model := columns.pop("model", None)) is not None else None for columns in left]
    samplings = []
    for columns, row in zip(left, rows, strict=True):
        sampling = columns.pop("sampling", {})
        if not isinstance(sampling, Mapping):
            raise RowError(row.where, f"column 'sampling' is {describe(sampling)}; wanted an object of settings.")
        samplings.append(dict(sampling))
    names = {
        name for name in left[0] if name not in LINEAGE and all(name in c and c[name] == left[0][name] for c in left)
    }
    shared = {name: left[0][name] for name in left[0] if name in names}
    return shared, [{k: v for k, v in c.items() if k not in names and k != "id"} for c in left], models, samplings


def _number(value: Any, row: Row, name: str) -> float:
    if value is None:
        return 0.0
    if isinstance(value, bool) or not isinstance(value, int | float) or not _is_finite(value):
        raise RowError(row.where, f"column {name!r} is {describe(value)}; wanted a finite number.")
    return float(value)


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond all floats
        return False


def _from_stdin(file: IO[str], on_bad_row: OnBadRow, columns: Mapping[str, str | None] | None) -> RowStream:
    """JSONL from a pipe. It can be read once, so its lines are kept."""
    lines = file.read().splitlines()

    def read(start: int) -> Iterator[RawRow]:
        for number, line in enumerate(lines, 1):
            if number > start and line.strip():
                yield RawRow(str(number), number, _value_of(line))

    part = Part(where="standard input", label="", read=read, content=lambda: sha_of_text("\n".join(lines)))
    return RowStream(parts=[part], on_bad_row=on_bad_row, columns=columns)


def _value_of(line: str) -> Any:
    try:
        return decode(line)
    except (ValueError, RefusedJsonError) as err:
        return Unreadable(f"not JSON: {one_line(err)}. One object is wanted on each line.")
