from __future__ import annotations

import json
from dataclasses import replace
from hashlib import blake2b
from itertools import permutations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from rlhf.errors import DataError
from rlhf.feedback.identity import content_id, lasting_id, merged, places_of, turned
from rlhf.feedback.tasks import read_items, tasks_of
from rlhf.store.items import Item, ItemJudgment
from rlhf.store.values import Response, Task, TaskKind

from .strategies import items

PAIR = {"prompt": "q", "chosen": "x", "rejected": "y"}
OPPOSITE = {"prompt": "q", "chosen": "y", "rejected": "x"}


def named_before(kind, prompt, texts):
    """The name that earlier versions gave: it hung on the order of the completions."""
    content = json.dumps([kind, prompt, texts], sort_keys=True, ensure_ascii=False)
    return f"task-{blake2b(content.encode(), digest_size=8).hexdigest()}"


@given(items())
def test_the_same_question_has_one_name_in_every_order_and_turning_there_and_back_changes_nothing(item):
    task = item.task
    count = len(task.responses)
    texts = [response.text for response in task.responses]
    names = {content_id(task.kind, task.prompt, [texts[n] for n in order]) for order in permutations(range(count))}
    assert len(names) == 1
    for order in permutations(range(count)):
        there = turned(item, order)
        back = [order.index(place) for place in range(count)]
        assert turned(there, back) == item


@given(items(), st.randoms())
def test_turned_rows_of_one_task_come_together_with_every_value_on_its_own_text(item, random):
    texts = [json.dumps(response.text) for response in item.task.responses]
    distinct = len({*texts}) == len(texts)
    assume(distinct or item.task.gold is None)  # which of two equal texts is right can't be turned round
    order = list(range(len(item.task.responses)))
    random.shuffle(order)
    other = turned(replace(item, judgments=tuple(replace(said, annotator="zed") for said in item.judgments[:1])), order)
    (one,) = merged([("row 1", item), ("row 2", other)])
    assert one.task.responses == item.task.responses
    assert one.judgments[: len(item.judgments)] == item.judgments
    if distinct:  # else equal texts may change places
        assert all(
            replace(said, annotator=item.judgments[0].annotator) == item.judgments[0]
            for said in one.judgments[len(item.judgments) :]
        )


@pytest.mark.parametrize(
    ("kind", "value", "wanted"),
    [
        (TaskKind.PAIRWISE, {"preference": "a"}, {"preference": "b"}),
        (TaskKind.PAIRWISE, {"preference": "tie"}, {"preference": "tie"}),
        (TaskKind.GRADED5, {"grade": -2}, {"grade": 2}),
        (TaskKind.GRADED7, {"grade": 3}, {"grade": -3}),
        (TaskKind.RANKING, {"ranks": [1, 2]}, {"ranks": [2, 1]}),
        (TaskKind.RATING, {"ratings": {"tone": [5, 1]}}, {"ratings": {"tone": [1, 5]}}),
    ],
)
def test_each_kind_of_value_is_turned_with_its_completions(kind, value, wanted):
    said = ItemJudgment(
        annotator="ann", value=value, order=(1, 0), spans=({"completion": 0, "text": "x"}, {"start": 1})
    )
    responses = [Response(text="x", model="m"), Response(text="y", columns={"n": 2})]
    task = Task(id="t", kind=kind, prompt="q", responses=responses, gold=value, columns={"known": value, "margin": 3})
    item = turned(Item(task=task, judgments=(said,)), [1, 0])
    assert item.task.responses == responses[::-1]
    assert (item.task.gold, item.task.columns) == (wanted, {"known": wanted, "margin": 3})
    assert item.judgments == (
        replace(said, value=wanted, order=(0, 1), spans=({"completion": 1, "text": "x"}, {"start": 1})),
    )


def test_three_completions_are_turned_by_their_places_and_not_by_their_inverse():
    # now x y z with ranks 1 2 3, shown as z x y; the new order is z x y, so their ranks are 3 1 2 and the screen shows 0 1 2
    said = ItemJudgment(annotator="ann", value={"ranks": [1, 2, 3]}, order=(2, 0, 1), spans=({"completion": 2},))
    task = Task(id="t", kind=TaskKind.RANKING, prompt="q", responses=[Response(text=text) for text in "xyz"])
    item = turned(Item(task=task, judgments=(said,)), [2, 0, 1])
    assert [response.text for response in item.task.responses] == ["z", "x", "y"]
    assert item.judgments == (replace(said, value={"ranks": [3, 1, 2]}, order=(0, 1, 2), spans=({"completion": 0},)),)
    assert places_of(item.task, task) == [2, 0, 1]


def test_completions_of_the_same_text_are_told_apart_by_their_models():
    def task(*responses):
        return Task(
            id="t", kind=TaskKind.RANKING, prompt="q", responses=[Response(text=t, model=m) for t, m in responses]
        )

    first = task(("x", "m1"), ("x", "m2"), ("y", "m3"))
    assert places_of(first, task(("y", "m3"), ("x", "m2"), ("x", "m1"))) == [2, 1, 0]
    assert places_of(first, task(("y", "m3"), ("x", "m9"), ("x", "m1"))) == [2, 1, 0]
    assert places_of(first, task(("x", "m2"), ("x", "m1"), ("y", "m3"))) == [0, 1, 2], "they stand as they stood"
    assert places_of(first, task(("y", None), ("y", None), ("x", "m1"))) is None


def test_people_who_chose_otherwise_judged_one_task():
    (item,) = read_items([PAIR | {"annotator_id": "ann"}, OPPOSITE | {"annotator_id": "bob"}]).items
    assert [(said.annotator, said.value) for said in item.judgments] == [
        ("ann", {"preference": "a"}),
        ("bob", {"preference": "b"}),
    ]
    assert [response.text for response in item.task.responses] == ["x", "y"]


def test_opposite_gold_answers_are_refused_with_both_rows():
    with pytest.raises(DataError, match=r"'a'.* in row 1 and .*'b'.* in row 2"):
        read_items([PAIR, OPPOSITE], all_gold=True)
    (same,) = read_items(
        [PAIR, {"prompt": "q", "completion_a": "y", "completion_b": "x", "preference": "b"}], all_gold=True
    ).items
    assert same.task.gold == {"preference": "a"}


def test_what_rows_know_differently_is_all_kept():
    (item,) = read_items([PAIR, OPPOSITE, PAIR]).items
    assert item.task.columns["known"] == [{"preference": "a"}, {"preference": "b"}]
    (alike,) = read_items([PAIR, PAIR]).items
    assert alike.task.columns["known"] == {"preference": "a"}


def test_rankings_are_one_task_whichever_completion_stands_first():
    rows = [
        {"prompt": "q", "completions": ["x", "y", "z"], "ranks": [1, 2, 3], "annotator_id": "ann"},
        {"prompt": "q", "completions": ["z", "x", "y"], "ranks": [3, 1, 2], "annotator_id": "bob"},
    ]
    (item,) = read_items(rows).items
    assert [said.value for said in item.judgments] == [{"ranks": [1, 2, 3]}] * 2


def test_a_name_that_an_earlier_version_made_of_the_content_becomes_todays():
    texts = ["y", "x"]
    old = named_before("pairwise", "q", texts)
    (named,) = tasks_of([{"prompt": "q", "chosen": "y", "rejected": "x"}])
    assert named.id != old, "or this test shows nothing"
    task = Task(id=old, kind=TaskKind.PAIRWISE, prompt="q", responses=[Response(text=text) for text in texts])
    assert lasting_id(task) == named.id
    assert lasting_id(replace(task, id=f"{old}#safety")) == f"{named.id}#safety"
    for kept in ("task-7", "t", named.id, old.replace("task-", "task-0")):
        assert lasting_id(replace(task, id=kept)) == kept, "the owner chose it"


def test_samples_are_named_by_their_prompts_id_and_what_they_say():
    def sampled(*texts, name="p1", prompt="q"):
        return tasks_of([{"id": name, "prompt": prompt, "completion": text} for text in texts])[0].id

    first = sampled("x", "y")
    assert first.startswith("p1#")
    assert sampled("y", "x") == first
    assert len({first, sampled("x", "z"), sampled("x", "y", prompt="r"), sampled("x", "y", name="p2")}) == 4
    assert sampled("x", "y", name="p" * 240).startswith("task-"), "a name has 255 characters at most"
