from __future__ import annotations

import contextlib
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from uuid import uuid4

import pytest

from rlhf.errors import DataError
from rlhf.feedback.statistics import findings_of
from rlhf.store import AssignmentRules, PreferenceStore, Response, Submission, Task, TaskKind
from rlhf.store.items import ItemJudgment, items_of
from rlhf.store.record import Recorded, record_judgments

TASK = Task(id="t", kind=TaskKind.PAIRWISE, prompt="q", responses=[Response(text="x"), Response(text="y")])
SAID = ItemJudgment(
    annotator="ann", value={"preference": "b"}, order=(1, 0), comment="c", flags=("unsafe",), spans=({"start": 1},), label_probability=0.5,
    seconds=2.5, made_at=datetime(2026, 1, 2, tzinfo=UTC),
)  # fmt: skip


@pytest.fixture
def store(tmp_path):
    with PreferenceStore(tmp_path / "s.db", rules=AssignmentRules(overlap=2)) as store:
        store.add_tasks([TASK])
        yield store


def test_a_judgment_from_a_file_is_kept_whole_and_once(store):
    assert record_judgments(store, [("t", SAID)]) == Recorded(num_added=1, num_known=0)
    assert record_judgments(store, [("t", SAID)]) == Recorded(num_added=0, num_known=1)
    (item,) = items_of(store)
    assert item.judgments == (SAID,)


def test_it_takes_one_of_the_tasks_slots_and_its_author_is_not_asked_again(store):
    record_judgments(store, [("t", SAID)])
    for name in ("bob", "cem"):
        store.add_annotator(name)
    assert store.next_task("ann") is None
    assert store.next_task("bob").task.id == "t"
    assert store.next_task("cem") is None
    assert store.progress().num_done == 1


def test_more_judgments_than_the_overlap_are_all_kept(store):
    said = [("t", ItemJudgment(annotator=f"p{n}", value={"preference": "a"})) for n in range(5)]
    assert record_judgments(store, said).num_added == 5
    assert len(store.judgments()) == 5


def test_what_somebody_has_open_is_answered_by_the_file_and_what_they_did_by_hand_stays(store):
    store.add_annotator("ann")
    open_one = store.next_task("ann")
    record_judgments(store, [("t", SAID)])
    assert store.next_task("ann") is None
    assert store.undo("ann").number == open_one.number
    store.submit("ann", Submission(assignment=open_one.number, key="k", value={"preference": "a"}))
    assert record_judgments(store, [("t", SAID)]).num_known == 1
    assert [judgment.value for judgment in store.judgments()] == [{"preference": "a"}]


def test_an_order_that_no_file_tells_is_not_invented(store):
    record_judgments(store, [("t", replace(SAID, order=None))])
    (item,) = items_of(store)
    assert item.judgments == (replace(SAID, order=None),)
    assert findings_of(store).first_frac.reason == "no comparison was decided of which it is known what stood first"
    again = store.undo("ann")
    assert sorted(again.order) == [0, 1], "on a screen it has one"
    store.submit("ann", Submission(assignment=again.number, key="k", value={"preference": "a"}))
    (judgment,) = store.judgments()
    assert judgment.order == again.order


@pytest.mark.parametrize("name", [" ", "x" * 65, "a\x00b", "a\ud800", "a\nb"])
def test_a_name_from_a_file_passes_the_same_check_as_any_other(store, name):
    with pytest.raises(DataError, match=r"'t' by .*1 to 64 printable"):
        record_judgments(store, [("t", replace(SAID, annotator=name))])
    assert [person.name for person in store.annotators()] == []


@pytest.mark.postgres
def test_files_are_imported_while_people_judge_and_nothing_is_counted_twice(postgres_server):
    tasks = [replace(TASK, id=f"t{n}") for n in range(30)]
    place = postgres_server.new_database()
    with PreferenceStore(place, rules=AssignmentRules(overlap=3)) as store:
        with ThreadPoolExecutor(4) as pool:
            assert sum(pool.map(lambda _: store.add_tasks(tasks, on_known="skip"), range(4))) == len(tasks)
        for name in ("ann", "bob"):
            store.add_annotator(name)

        def work(name):
            while (held := store.next_task(name)) is not None:
                with contextlib.suppress(DataError):  # an import was first
                    store.submit(name, Submission(assignment=held.number, key=uuid4().hex, value={"preference": "a"}))

        def bring(name):
            record_judgments(
                store, [(task.id, ItemJudgment(annotator=name, value={"preference": "b"})) for task in tasks]
            )

        with ThreadPoolExecutor(5) as pool:
            done = [
                pool.submit(*job) for job in [(work, "ann"), (work, "bob"), (bring, "ann"), (bring, "c"), (bring, "c")]
            ]
        assert [job.exception() for job in done] == [None] * 5
        made = Counter((judgment.task.id, judgment.annotator) for judgment in store.judgments())
    assert set(made.values()) == {1}
    assert {(task.id, who) for task in tasks for who in ("ann", "c")} <= set(made)


def test_all_or_none(store):
    with pytest.raises(DataError, match="'absent'"):
        record_judgments(store, [("t", SAID), ("absent", SAID)])
    with pytest.raises(DataError, match="'t' by 'eve'"):
        record_judgments(store, [("t", SAID), ("t", ItemJudgment(annotator="eve", value={"grade": 1}))])
    with pytest.raises(DataError, match=r"'eve': seconds is -1"):
        record_judgments(store, [("t", ItemJudgment(annotator="eve", value={"preference": "a"}, seconds=-1))])
    assert store.judgments() == []
