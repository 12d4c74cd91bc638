"""Who writes waits for whoever is at the same thing: shown by stopping the other one in the middle."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sa

from rlhf.errors import DataError
from rlhf.store import AssignmentRules, PreferenceStore, Submission
from rlhf.store.assign import give_back
from rlhf.store.database import reading, wait_for_turn, writing
from rlhf.store.items import ItemJudgment
from rlhf.store.record import Recorded, record_judgments
from rlhf.store.tables import DONE, OPEN, AssignmentRow, JudgmentRow
from tests.fixtures.annotation_site import pair

SAID = ItemJudgment(annotator="ann", value={"preference": "b"})


def test_who_takes_back_a_skip_waits_for_whoever_is_taking_slots(place):
    with PreferenceStore(place) as store, ThreadPoolExecutor(1) as pool:
        store.add_annotator("ann")
        store.add_tasks([pair("t")])
        given = store.next_task("ann")
        store.skip("ann", given.number)
        with writing(store.engine) as session:
            session.execute(sa.select(AssignmentRow.slot))  # SQLite's turn begins with the first word
            wait_for_turn(session, "slots")
            back = pool.submit(store.unskip, "ann", given.number)
            assert wait([back], timeout=0.5).not_done, "it counted slots while another was taking one"
        assert back.result(timeout=30).number == given.number


def test_a_file_waits_for_whoever_is_taking_slots(place):
    with PreferenceStore(place) as store, ThreadPoolExecutor(1) as pool:
        store.add_tasks([pair("t")])
        with writing(store.engine) as session:
            session.execute(sa.select(AssignmentRow.slot))
            wait_for_turn(session, "slots")
            coming = pool.submit(record_judgments, store, [("t", SAID)])
            assert wait([coming], timeout=0.5).not_done, "it counted slots while another was taking one"
        assert coming.result(timeout=30) == Recorded(num_added=1, num_known=0)


def test_what_its_author_answers_while_a_file_comes_in_is_kept(place):
    with PreferenceStore(place) as store, ThreadPoolExecutor(1) as pool:
        store.add_annotator("ann")
        store.add_tasks([pair("t")])
        given = store.next_task("ann")
        with writing(store.engine) as session:  # what `submit` does, stopped before its end
            row = session.get_one(AssignmentRow, given.number, with_for_update=True)
            row.state = DONE
            session.add(
                JudgmentRow(
                    assignment=row.number, task=row.task, annotator=row.annotator, key="k" * 16,
                    value={"preference": "a"}, made_at=datetime.now(UTC),
                )
            )  # fmt: skip
            session.flush()
            coming = pool.submit(record_judgments, store, [("t", SAID)])
            assert wait([coming], timeout=0.5).not_done, "it took an assignment that its author was answering"
        told = Recorded(num_added=0, num_known=1, other_answers=("task 't' by 'ann'",))
        assert coming.result(timeout=30) == told
        assert [judgment.value for judgment in store.judgments()] == [{"preference": "a"}]


def test_a_late_answer_to_what_its_author_has_judged_anew_is_refused_by_name(place):
    with PreferenceStore(place, rules=AssignmentRules(overlap=2, timeout_minutes=10)) as store:
        store.add_annotator("ann")
        store.add_annotator("bob")
        store.add_tasks([pair("t")])
        early, later = datetime.now(UTC) - timedelta(hours=1), datetime.now(UTC)
        first = store.next_task("ann", now=early)
        bobs = store.next_task("bob", now=later)  # whoever asks ends what ran out of time
        store.skip("bob", bobs.number)
        anew = store.next_task("ann", now=later)
        assert anew.task.id == first.task.id
        assert anew.number != first.number
        store.submit("ann", Submission(assignment=anew.number, key="anew" * 4, value={"preference": "a"}))
        with pytest.raises(DataError, match="longer than its time"):
            store.submit("ann", Submission(assignment=first.number, key="late" * 4, value={"preference": "b"}))
        assert [judgment.value for judgment in store.judgments()] == [{"preference": "a"}]


def test_what_comes_from_a_file_names_what_its_author_took_back_meanwhile(place):
    with PreferenceStore(place) as store, ThreadPoolExecutor(1) as pool:
        store.add_annotator("ann")
        store.add_tasks([pair("t")])
        given = store.next_task("ann")
        with writing(store.engine) as session:  # what `submit` and `undo` do, stopped before their end
            row = session.get_one(AssignmentRow, given.number, with_for_update=True)
            theirs = {
                "assignment": row.number,
                "task": row.task,
                "annotator": row.annotator,
                "made_at": datetime.now(UTC),
            }
            session.add(said := JudgmentRow(**theirs, key="k" * 16, value={"preference": "a"}))
            session.flush()
            session.add(back := JudgmentRow(**theirs, key="u" * 16, value=None, replaces=said.number))
            session.flush()
            coming = pool.submit(record_judgments, store, [("t", SAID)])
            assert wait([coming], timeout=0.5).not_done
            newest = back.number
        assert coming.result(timeout=30) == Recorded(num_added=1, num_known=0)
        with reading(store.engine) as session:
            imported = session.scalar(sa.select(JudgmentRow).order_by(JudgmentRow.number.desc()).limit(1))
            assert (imported.value, imported.replaces) == ({"preference": "b"}, newest)


@contextmanager
def at(engine, start, do):
    """Do something once, right before the first statement on this engine that begins so."""
    done = []

    def hook(_connection, _cursor, statement, *_):
        if statement.startswith(start) and not done:
            done.append(statement)
            do()

    sa.event.listen(engine, "before_cursor_execute", hook)
    yield
    sa.event.remove(engine, "before_cursor_execute", hook)
    assert done, f"no statement began with {start!r}"


def test_who_reads_sees_one_moment_though_somebody_judges_in_the_middle(place):
    with PreferenceStore(place) as store, PreferenceStore(place) as other:
        store.add_annotator("ann")
        store.add_tasks([pair("x"), pair("y")])
        for n, name in enumerate(("first", "second")):
            given = other.next_task("ann")
            answer = Submission(assignment=given.number, key=name * 3, value={"preference": "a"})
            if n == 0:
                other.submit("ann", answer)
        with at(store.engine, "SELECT judgements.number", lambda: other.submit("ann", answer)):
            assert [judgment.task.id for judgment in store.judgments()] == ["x"]
        assert [judgment.task.id for judgment in store.judgments()] == ["x", "y"]


def test_a_page_that_leaves_while_another_shows_its_task_takes_it_from_nobody(place):
    with PreferenceStore(place) as store, PreferenceStore(place) as other, ThreadPoolExecutor(1) as pool:
        store.add_annotator("ann")
        store.add_tasks([pair("x")])
        given, leaving = store.next_task("ann"), []

        def leave():
            leaving.append(pool.submit(other.leave, "ann", {given.number: given.expires_at}))
            assert wait(leaving, timeout=0.5).not_done, "it gave back what a page was being shown"

        with at(store.engine, "UPDATE assignments SET expires_at", leave):
            shown = store.next_task("ann")
        assert leaving[0].result(timeout=30) == 0
        assert (shown.number, state_of(store, shown.number)) == (given.number, OPEN)


def test_a_page_that_comes_while_another_leaves_is_shown_what_it_holds(place):
    with PreferenceStore(place) as store, ThreadPoolExecutor(1) as pool:
        store.add_annotator("ann")
        store.add_tasks([pair("x")])
        given = store.next_task("ann")
        who = store.annotators()[0].number
        with writing(store.engine) as session:
            assert give_back(session, who, {given.number: given.expires_at}) == 1
            session.flush()
            coming = pool.submit(store.next_task, "ann")
            assert wait([coming], timeout=0.5).not_done, "it looked at what the other one was giving back"
        shown = coming.result(timeout=30)
        assert (shown.fresh, state_of(store, shown.number)) == (True, OPEN)


def test_a_task_whose_time_is_over_is_shown_to_its_holder_or_goes_to_another_and_never_both(place):
    with PreferenceStore(place) as store, PreferenceStore(place) as other, ThreadPoolExecutor(1) as pool:
        store.add_annotator("ann")
        store.add_annotator("bob")
        store.add_tasks([pair("x")])
        store.next_task("ann")
        late, asking = datetime.now(UTC) + timedelta(hours=1), []

        def ask():
            asking.append(pool.submit(other.next_task, "bob", now=late))
            wait(asking, timeout=0.5)

        with at(store.engine, "UPDATE assignments SET expires_at", ask):
            shown = store.next_task("ann", now=late)
        assert asking[0].result(timeout=30) is None
        assert state_of(store, shown.number) == OPEN


def test_who_judges_and_asks_at_once_waits_for_no_deadlock(place):
    with PreferenceStore(place) as store, PreferenceStore(place) as other, ThreadPoolExecutor(1) as pool:
        store.add_annotator("ann")
        store.add_tasks([pair("x"), pair("y")])
        given, asking = store.next_task("ann"), []
        answer = Submission(assignment=given.number, key="k" * 16, value={"preference": "a"})

        def ask():
            asking.append(pool.submit(other.next_task, "ann"))
            wait(asking, timeout=0.5)

        lost = []
        for engine in (store.engine, other.engine):
            sa.event.listen(engine, "handle_error", lambda context: lost.append(str(context.original_exception)))
        with at(store.engine, "INSERT INTO judgements", ask):  # the assignment is held here; its author is named now
            store.submit("ann", answer)
        assert asking[0].result(timeout=30).task.id == "y"
        assert lost == []


def state_of(store, assignment):
    with reading(store.engine) as session:
        return session.get_one(AssignmentRow, assignment).state
