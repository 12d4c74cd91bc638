from __future__ import annotations

from datetime import UTC, datetime

import pytest

from rlhf.errors import DataError
from rlhf.feedback.items import Said, items_of
from rlhf.feedback.store import AssignmentRules, PreferenceStore, Response, Submission, Task, TaskKind
from rlhf.feedback.store.record import Recorded, record_judgements

TASK = Task(id="t", kind=TaskKind.PAIRWISE, prompt="q", responses=[Response(text="x"), Response(text="y")])
SAID = Said(
    annotator="ann", value={"preference": "b"}, order=(1, 0), comment="c", flags=("unsafe",), spans=({"start": 1},), confidence=0.5,
    seconds=2.5, made_at=datetime(2026, 1, 2, tzinfo=UTC),
)  # fmt: skip


@pytest.fixture
def store(tmp_path):
    with PreferenceStore(tmp_path / "s.db", rules=AssignmentRules(overlap=2)) as store:
        store.add_tasks([TASK])
        yield store


def test_a_judgement_from_a_file_is_kept_whole_and_once(store):
    assert record_judgements(store, [("t", SAID)]) == Recorded(num_added=1, num_known=0)
    assert record_judgements(store, [("t", SAID)]) == Recorded(num_added=0, num_known=1)
    (item,) = items_of(store)
    assert item.said == (SAID,)


def test_it_takes_one_of_the_tasks_slots_and_its_author_is_not_asked_again(store):
    record_judgements(store, [("t", SAID)])
    for name in ("bob", "cem"):
        store.add_annotator(name)
    assert store.next_task("ann") is None
    assert store.next_task("bob").task.id == "t"
    assert store.next_task("cem") is None
    assert store.progress().num_done == 1


def test_more_judgements_than_the_overlap_are_all_kept(store):
    said = [("t", Said(annotator=f"p{n}", value={"preference": "a"})) for n in range(5)]
    assert record_judgements(store, said).num_added == 5
    assert len(store.judgements()) == 5


def test_what_somebody_has_open_is_answered_by_the_file_and_what_they_did_by_hand_stays(store):
    store.add_annotator("ann")
    open_one = store.next_task("ann")
    record_judgements(store, [("t", SAID)])
    assert store.next_task("ann") is None
    assert store.undo("ann").number == open_one.number
    store.submit("ann", Submission(assignment=open_one.number, key="k", value={"preference": "a"}))
    assert record_judgements(store, [("t", SAID)]).num_known == 1
    assert [judgement.value for judgement in store.judgements()] == [{"preference": "a"}]


def test_all_or_none(store):
    with pytest.raises(DataError, match="judged the task 'absent', which is not in the store"):
        record_judgements(store, [("t", SAID), ("absent", SAID)])
    with pytest.raises(DataError, match="judgement of task 't' by 'eve'"):
        record_judgements(store, [("t", SAID), ("t", Said(annotator="eve", value={"grade": 1}))])
    with pytest.raises(DataError, match=r"by 'eve': seconds is -1; a time is at least 0"):
        record_judgements(store, [("t", Said(annotator="eve", value={"preference": "a"}, seconds=-1))])
    with pytest.raises(DataError, match="1 to 64 characters"):
        record_judgements(store, [("t", Said(annotator=" ", value={"preference": "a"}))])
    assert store.judgements() == []
