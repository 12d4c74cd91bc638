"""Items of every kind, with whatever a task, a completion and a judgment can carry."""

from __future__ import annotations

from datetime import UTC, datetime

from hypothesis import strategies as st

from rlhf.store.items import Item, ItemJudgment
from rlhf.store.values import Response, Task, TaskKind

TEXT = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=8)
LEAVES = st.none() | st.booleans() | st.integers(-99, 99) | st.floats(-9, 9) | TEXT
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXT, inner, max_size=2), max_leaves=4
)
NAMES = TEXT | st.sampled_from(
    ["chosen", "response", "seconds", "model", "label_probability", "completions", "metadata", "strength", "text"]
)
COLUMNS = st.dictionaries(
    NAMES.filter(lambda name: name not in ("id", "task_id", "feedback", "rlhf", "margin")), VALUES, max_size=3
)
FLAGS = ("unsafe", "unclear", "broken", "personal_data", "all_bad")
PEOPLE = ("ann", "bob", "Çem ☺")
NUM = {TaskKind.RANKING: (2, 4), TaskKind.RATING: (1, 3), TaskKind.BINARY: (1, 1), TaskKind.MULTICLASS: (1, 1)}
ASKED = tuple(kind for kind in TaskKind if kind is not TaskKind.MULTICLASS)
"""Kinds that the page asks for, and that rows of ours and other tools hold."""


def turns(role):
    return st.lists(
        st.fixed_dictionaries({"role": st.sampled_from([role, "assistant", "system"]), "content": TEXT}),
        min_size=1,
        max_size=3,
    )


@st.composite
def values(draw, kind, count):
    match kind:
        case TaskKind.PAIRWISE:
            return {"preference": draw(st.sampled_from(["a", "b", "tie"]))}
        case TaskKind.GRADED5 | TaskKind.GRADED7:
            most = 2 if kind is TaskKind.GRADED5 else 3
            return {"grade": draw(st.integers(-most, most))}
        case TaskKind.RANKING:
            ranks = draw(st.lists(st.integers(1, count), min_size=count, max_size=count))
            return {"ranks": [rank - min(ranks) + 1 for rank in ranks]}
        case TaskKind.BINARY:
            return {"label": draw(st.booleans())}
        case TaskKind.MULTICLASS:
            return {"class": draw(TEXT.map(str.strip).filter(lambda name: name and name.isprintable()))}
    ratings = st.lists(st.integers(1, 5), min_size=count, max_size=count)
    return {
        "ratings": draw(
            st.dictionaries(st.sampled_from(["accuracy", "helpfulness", "tone_of_voice"]), ratings, min_size=1)
        )
    }


@st.composite
def saids(draw, kind, count, who):
    return ItemJudgment(
        annotator=who, value=draw(values(kind, count)), order=draw(st.none() | st.permutations(range(count)).map(tuple)),
        comment=draw(st.just("") | TEXT), flags=tuple(draw(st.lists(st.sampled_from(FLAGS), unique=True, max_size=2))),
        spans=tuple(draw(st.lists(st.fixed_dictionaries({"start": st.integers(0, 9), "reason": TEXT}), max_size=1))),
        label_probability=draw(st.none() | st.floats(0, 1)), seconds=draw(st.none() | st.floats(0, 100)),
        made_at=draw(st.none() | st.datetimes(datetime(2020, 1, 1), datetime(2030, 1, 1), timezones=st.just(UTC))),
        diff_viewed=draw(st.none() | st.booleans()),
    )  # fmt: skip


@st.composite
def items(draw, *, kinds=ASKED, judged=False, chat=True, columns=COLUMNS, count=None):
    kind = draw(st.sampled_from(kinds))
    low, high = NUM.get(kind, (2, 2))
    number = count or draw(st.integers(low, high))
    as_chat = chat and draw(st.booleans())
    text = turns("assistant") if as_chat else TEXT
    responses = [
        Response(
            text=draw(text),
            model=draw(st.none() | TEXT),
            sampling=draw(st.dictionaries(TEXT, LEAVES, max_size=2)),
            columns=draw(columns),
        )
        for _ in range(number)
    ]
    task = Task(
        id=draw(TEXT), kind=kind, prompt=draw(turns("user") if as_chat else TEXT), responses=responses,
        gold=draw(st.none() | values(kind, number)), priority=draw(st.floats(-5, 5)), batch=draw(st.just("") | TEXT),
        columns=draw(columns),
    )  # fmt: skip
    people = draw(st.lists(st.sampled_from(PEOPLE), unique=True, min_size=int(judged), max_size=3))
    return Item(task=task, judgments=tuple(draw(saids(kind, number, who)) for who in people))


def files(**how):
    """A few items of different ids."""
    return st.lists(items(**how), min_size=1, max_size=3, unique_by=lambda item: item.task.id)
