"""Who writes waits for whoever is at the same thing: shown by stopping the other one in the middle."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, wait
from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sa

from rlhf.errors import DataError
from rlhf.feedback.items import Said
from rlhf.feedback.store import AssignmentRules, PreferenceStore, Submission
from rlhf.feedback.store.engine import reading, wait_for_turn, writing
from rlhf.feedback.store.record import Recorded, record_judgements
from rlhf.feedback.store.tables import DONE, AssignmentRow, JudgementRow
from tests.fixtures.annotation_site import pair

SAID = Said(annotator="ann", value={"preference": "b"})


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
            coming = pool.submit(record_judgements, store, [("t", SAID)])
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
                JudgementRow(
                    assignment=row.number, task=row.task, annotator=row.annotator, key="k" * 16,
                    value={"preference": "a"}, made_at=datetime.now(UTC),
                )
            )  # fmt: skip
            session.flush()
            coming = pool.submit(record_judgements, store, [("t", SAID)])
            assert wait([coming], timeout=0.5).not_done, "it took an assignment that its author was answering"
        assert coming.result(timeout=30) == Recorded(num_added=0, num_known=1)
        assert [judgement.value for judgement in store.judgements()] == [{"preference": "a"}]


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
        with pytest.raises(DataError, match="took longer than its time"):
            store.submit("ann", Submission(assignment=first.number, key="late" * 4, value={"preference": "b"}))
        assert [judgement.value for judgement in store.judgements()] == [{"preference": "a"}]


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
            session.add(said := JudgementRow(**theirs, key="k" * 16, value={"preference": "a"}))
            session.flush()
            session.add(back := JudgementRow(**theirs, key="u" * 16, value=None, replaces=said.number))
            session.flush()
            coming = pool.submit(record_judgements, store, [("t", SAID)])
            assert wait([coming], timeout=0.5).not_done
            newest = back.number
        assert coming.result(timeout=30) == Recorded(num_added=1, num_known=0)
        with reading(store.engine) as session:
            imported = session.scalar(sa.select(JudgementRow).order_by(JudgementRow.number.desc()).limit(1))
            assert (imported.value, imported.replaces) == ({"preference": "b"}, newest)
