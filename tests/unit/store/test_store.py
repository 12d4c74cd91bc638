from __future__ import annotations

import itertools
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sa

from rlhf.errors import DataError
from rlhf.store import PreferenceStore, Task, TaskKind
from rlhf.store.assign import AssignmentRules
from rlhf.store.database import reading, wait_for_turn, writing
from rlhf.store.tables import AssignmentRow, JudgmentRow
from rlhf.store.values import Response, Submission
from tests.fixtures.stored_events import add_event

KEYS = (f"key-{n}" for n in itertools.count())


def pair(name, **how):
    responses = [Response(text=f"{name} A", model="one"), Response(text=f"{name} B", model="two")]
    return Task(id=name, kind=TaskKind.PAIRWISE, prompt=f"Question {name}?", responses=responses, **how)


@pytest.fixture
def store(place):
    with PreferenceStore(place, rules=AssignmentRules(overlap=2)) as store:
        for name in ("ann", "bob", "cem"):
            store.add_annotator(name)
        yield store


def answer(store, who, value="a", **how):
    assignment = store.next_task(who)
    assert assignment is not None
    store.submit(who, Submission(assignment=assignment.number, key=next(KEYS), value={"preference": value}, **how))
    return assignment.task.id


def test_a_task_comes_back_as_it_went_in(store):
    task = pair("x", columns={"source": "serving", "numbers": [1, 2.5]}, priority=2.0, batch="first")
    assert store.add_tasks([task]) == 1
    assert list(store.tasks()) == [task]


def test_each_task_is_judged_as_often_as_wanted_and_never_twice_by_one(store):
    store.add_tasks([pair(name) for name in "xyz"])
    asked = {who: [] for who in ("ann", "bob", "cem")}
    while any(store.next_task(who) for who in asked):
        for who, done in asked.items():
            if store.next_task(who):
                done.append(answer(store, who))
    counts = {name: sum(done.count(name) for done in asked.values()) for name in "xyz"}
    assert counts == {"x": 2, "y": 2, "z": 2}
    assert all(len(done) == len(set(done)) for done in asked.values())
    assert store.progress("ann").num_done == store.progress().num_wanted == 6


def test_what_is_open_is_shown_again_after_a_reload(store):
    store.add_tasks([pair("x"), pair("y")])
    first = store.next_task("ann")
    assert store.next_task("ann").number == first.number
    assert store.next_task("ann").order == first.order


def test_what_is_taken_is_fresh_once_and_held_from_then_on(store):
    store.add_tasks([pair("x"), pair("y")])
    first = store.next_task("ann")
    following = store.next_task("ann", beside=first.number)
    assert (first.fresh, following.fresh) == (True, True)
    shown = [store.next_task("ann"), store.next_task("ann", beside=first.number), store.assignment(first.number)]
    assert [again.fresh for again in shown] == [False, False, False]
    store.leave("ann", {first.number: shown[0].expires_at, following.number: shown[1].expires_at})
    anew = store.next_task("ann")
    assert (anew.fresh, anew.task.id) == (True, "x"), "it was given back, and is taken anew"


def test_the_following_task_can_be_asked_for_early_and_comes_next(store):
    store.add_tasks([pair("x"), pair("y"), pair("z")])
    first = store.next_task("ann")
    following = store.next_task("ann", beside=first.number)
    assert following.number != first.number
    assert store.next_task("ann", beside=first.number).number == following.number  # asked again: no third one is taken
    assert store.next_task("ann").number == first.number
    answer(store, "ann")
    assert store.next_task("ann").number == following.number


def test_a_limit_counts_what_is_open(place):
    with PreferenceStore(place, rules=AssignmentRules(max_judgments=2)) as store:
        store.add_annotator("ann")
        store.add_tasks([pair("x"), pair("y"), pair("z")])
        answer(store, "ann")
        second = store.next_task("ann")
        assert store.next_task("ann", beside=second.number) is None


def test_a_skip_can_be_taken_back_until_somebody_else_has_the_task(store):
    store.add_tasks([pair("x")])
    skipped = store.next_task("ann").number
    store.skip("ann", skipped)
    assert store.unskip("ann", skipped).number == skipped
    assert store.next_task("ann").number == skipped
    store.skip("ann", skipped)
    assert store.next_task("bob")
    assert store.next_task("cem")  # both slots are taken now
    with pytest.raises(DataError, match="somebody else"):
        store.unskip("ann", skipped)


def test_somebody_elses_assignment_is_not_shown(store):
    store.add_tasks([pair("x")])
    number = store.next_task("ann").number
    assert store.assignment(number, annotator="ann").number == number
    with pytest.raises(DataError, match=f"{number} of 'bob'"):
        store.assignment(number, annotator="bob")


def test_urgent_tasks_come_first(store):
    store.add_tasks([pair("x"), pair("y"), pair("z")])
    store.set_priorities({"z": 0.9, "y": 0.5})
    assert [answer(store, "ann") for _ in range(3)] == ["z", "y", "x"]
    with pytest.raises(DataError, match="no task 'q'"):
        store.set_priorities({"q": 1})


def test_the_next_task_is_found_without_sorting_them_all(tmp_path):
    asked = []
    with PreferenceStore(tmp_path / "s.db") as store:
        store.add_annotator("ann")
        store.add_tasks([pair(name) for name in "xyz"])
        sa.event.listen(
            store.engine, "before_cursor_execute", lambda _c, _u, sql, values, *_: asked.append((sql, values))
        )
        assert store.next_task("ann").task.id == "x"
        (sql, values), *_ = [each for each in asked if "priority DESC" in each[0]]
        with store.engine.connect() as connection:
            plan = "\n".join(row.detail for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {sql}", values))
    assert "SCAN tasks USING INDEX tasks_by_priority" in plan
    assert "ORDER BY" not in plan, "SQLite sorts; the index does not have the order of the query"


def test_positions_are_drawn_for_each_annotator_and_kept(store):
    store.add_tasks([pair(f"t{n}") for n in range(24)])
    firsts = {"ann": [], "bob": []}
    for who, shown in firsts.items():
        for _ in range(24):
            shown.append(store.next_task(who).order[0])
            answer(store, who)
    assert 4 < sum(firsts["ann"]) < 20
    assert firsts["ann"] != firsts["bob"]
    kept = {j.task.id: j.order[0] for j in store.judgments("ann")}
    assert [kept[f"t{n}"] for n in range(24)] == firsts["ann"]


def test_gold_items_are_mixed_in_and_everybody_gets_them(place):
    with PreferenceStore(place, rules=AssignmentRules(overlap=1, gold_frac=0.6)) as store:
        store.add_tasks(
            [*(pair(f"t{n}") for n in range(20)), *(pair(f"g{n}", gold={"preference": "a"}) for n in range(5))]
        )
        done = {}
        for who in ("ann", "bob"):
            store.add_annotator(who)
            done[who] = [answer(store, who) for _ in range(13)]
        for asked in done.values():
            assert {name for name in asked if name.startswith("g")} == {f"g{n}" for n in range(5)}
        plain = [name for asked in done.values() for name in asked if name.startswith("t")]
        assert len(plain) == len(set(plain)), "an overlap of 1 holds for the others"


def test_everybody_gets_a_gold_item_before_few_tasks_run_out_at_a_place_that_is_drawn(place):
    rules = AssignmentRules(gold_frac=0.001, overlap=24)
    with PreferenceStore(place, rules=rules) as store:
        store.add_tasks([pair(f"t{n}") for n in range(3)])
        store.add_tasks([pair(f"g{n}", gold={"preference": "a"}) for n in range(2)])
        places = []
        for number in range(24):
            who = f"ann-{number}"
            store.add_annotator(who)
            asked = [answer(store, who)[0] for _ in range(4)]
            assert sorted(asked) == ["g", "t", "t", "t"]
            assert store.next_task(who) is None
            assert store.progress(who).num_done_with_gold <= store.progress(who).num_wanted_with_gold
            places.append(asked.index("g"))
        assert {place: places.count(place) >= 2 for place in range(4)} == dict.fromkeys(range(4), True)
        store.add_annotator("late")
        assert store.next_task("late") is None, "nothing is left that their gold item could speak for"


def test_a_limit_of_judgments_leaves_room_for_a_gold_item(place):
    with PreferenceStore(place, rules=AssignmentRules(gold_frac=0.001, max_judgments=2)) as store:
        store.add_annotator("ann")
        store.add_tasks([*(pair(f"t{n}") for n in range(9)), pair("g", gold={"preference": "a"})])
        assert "g" in {answer(store, "ann"), answer(store, "ann")}


def test_who_leaves_and_comes_again_learns_nothing_of_what_is_gold(place):
    with PreferenceStore(place, rules=AssignmentRules(gold_frac=0.4)) as store:
        store.add_annotator("ann")
        store.add_tasks([pair(f"plain-{n}") for n in range(20)])
        store.add_tasks([pair(f"gold-{n}", gold={"preference": "a"}) for n in range(10)])
        kinds = set()
        for turn in range(12):
            held = both(store)
            names = {task.task.id for task in held}
            leaves = held[:1], held[1:], held
            for left in leaves[turn % 3]:
                assert store.leave("ann", {left.number: store.assignment(left.number).expires_at}) == 1
            assert {task.task.id for task in both(store)} == names, "something else came, whatever it was"
            kinds.add(store.next_task("ann").is_gold)
            answer(store, "ann")
        assert kinds == {True, False}


def both(store):
    """What a page shows, and what it asks for early."""
    first = store.next_task("ann")
    return [first, store.next_task("ann", beside=first.number)]


def test_what_somebody_left_comes_to_them_first_unless_others_have_it_now(store):
    store.add_tasks([pair("x"), pair("y")])
    given = store.next_task("ann")
    store.leave("ann", {given.number: given.expires_at})
    store.add_tasks([pair("urgent", priority=2.0)])
    again = store.next_task("ann")
    assert again.task.id == "x"
    store.leave("ann", {again.number: again.expires_at})
    for who in ("bob", "cem"):
        answer(store, who)  # the urgent one
        answer(store, who)
    assert store.next_task("ann").task.id == "y"


def test_a_lost_task_returns_after_its_time(store):
    store.add_tasks([pair("x")])
    start = datetime(2026, 11, 21, 9, tzinfo=UTC)
    assert store.next_task("ann", now=start) is not None
    assert store.next_task("bob", now=start) is not None
    assert store.next_task("cem", now=start + timedelta(minutes=29)) is None, "both slots are held"
    late = start + timedelta(minutes=31)
    assert store.next_task("cem", now=late).task.id == "x"


def test_who_comes_late_is_told_when_the_slot_is_gone_and_heard_when_not(store):
    store.add_tasks([pair("x")])
    start = datetime(2026, 11, 21, 9, tzinfo=UTC)
    held = {who: store.next_task(who, now=start) for who in ("ann", "bob")}
    late = start + timedelta(minutes=31)
    taken = store.next_task("cem", now=late)  # ann's and bob's time is over; cem has one of the two slots
    say = {who: Submission(assignment=a.number, key=next(KEYS), value={"preference": "a"}) for who, a in held.items()}
    results = []
    for who, sent in say.items():
        try:
            results.append(store.submit(who, sent, now=late))
        except DataError as err:
            results.append(str(err))
    assert sum(isinstance(result, int) for result in results) == 1
    assert any("somebody else has it now" in str(result) for result in results)
    assert taken is not None


def test_a_late_answer_is_kept_while_the_task_still_wants_one(place):
    with PreferenceStore(place, rules=AssignmentRules(overlap=3)) as store:
        for who in ("ann", "bob"):
            store.add_annotator(who)
        store.add_tasks([pair("x")])
        start = datetime(2026, 11, 21, 9, tzinfo=UTC)
        late = store.next_task("ann", now=start)
        now = start + timedelta(minutes=31)
        held = store.next_task("bob", now=now)  # in the slot that was ann's
        for who, mine in (("ann", late), ("bob", held)):
            sent = Submission(assignment=mine.number, key=next(KEYS), value={"preference": "a"})
            store.submit(who, sent, now=now)
        assert [judgment.annotator for judgment in store.judgments()] == ["ann", "bob"]
        with reading(store.engine) as session:
            assert sorted(session.scalars(sa.select(AssignmentRow.slot))) == [0, 1]


def test_a_late_answer_counts_for_what_its_author_was_given_anew(store):
    store.add_tasks([pair("x")])
    start = datetime(2026, 11, 21, 9, tzinfo=UTC)
    late = store.next_task("ann", now=start)
    now = start + timedelta(minutes=31)
    store.next_task("bob", now=now)
    again = store.next_task("ann", now=now)
    assert again.number != late.number
    store.submit("ann", Submission(assignment=late.number, key=next(KEYS), value={"preference": "b"}), now=now)
    with pytest.raises(DataError, match="not needed again"):
        store.submit("ann", Submission(assignment=again.number, key=next(KEYS), value={"preference": "a"}), now=now)
    assert [judgment.value["preference"] for judgment in store.judgments()] == ["b"]


def test_a_correction_is_added_and_nothing_is_changed(store):
    store.add_tasks([pair("x")])
    assignment = store.next_task("ann")
    for value in ("a", "b"):
        store.submit("ann", Submission(assignment=assignment.number, key=next(KEYS), value={"preference": value}))
    assert [j.value["preference"] for j in store.judgments()] == ["b"]
    with writing(store.engine) as session:
        rows = session.execute(sa.select(JudgmentRow.value, JudgmentRow.replaces).order_by(JudgmentRow.number)).all()
    assert [tuple(row) for row in rows] == [({"preference": "a"}, None), ({"preference": "b"}, 1)]


def test_undo_gives_the_last_one_back_and_remembers_it(store):
    store.add_tasks([pair("x"), pair("y")])
    for _ in range(2):
        answer(store, "ann")
    assert store.undo("ann").task.id == "y"
    assert [j.task.id for j in store.judgments()] == ["x"]
    assert store.next_task("ann").task.id == "y"
    assert answer(store, "ann", "b") == "y"
    assert [(j.task.id, j.value["preference"]) for j in store.judgments()] == [("x", "a"), ("y", "b")]
    assert store.undo("bob") is None


def test_an_undo_with_a_key_is_done_once_and_is_nobody_elses(store):
    store.add_tasks([pair("x"), pair("y")])
    for _ in range(2):
        answer(store, "ann")
    key = "undo-of-ann-00001"
    assert [store.undo("ann", key=key).task.id for _ in range(3)] == ["y"] * 3
    assert [j.task.id for j in store.judgments()] == ["x"]
    with pytest.raises(DataError, match="used by somebody else"):
        store.undo("bob", key=key)
    answer(store, "ann")
    assert store.undo("ann", key=key) is None, "a request that comes late changes nothing any more"
    assert [j.task.id for j in store.judgments()] == ["x", "y"]
    with pytest.raises(DataError, match="16 to 59 letters"):
        store.undo("ann", key="2")  # could be the number of a judgment


def test_a_task_that_ran_out_of_time_may_come_to_the_same_person_again(store):
    store.add_tasks([pair("x")])
    late = store.next_task("ann").number
    now = datetime.now(UTC) + timedelta(hours=2)
    held = store.next_task("bob", now=now)
    assert held.task.id == "x"
    store.skip("bob", held.number)
    again = store.next_task("ann", now=now)
    assert again.task.id == "x", "nobody else is left to judge it"
    assert again.number != late
    answer(store, "ann")
    assert [judgment.annotator for judgment in store.judgments()] == ["ann"]
    with pytest.raises(DataError, match="not needed again"):
        store.submit("ann", Submission(assignment=late, key=next(KEYS), value={"preference": "b"}))


def test_who_comes_late_exceeds_no_overlap_that_was_lowered_meanwhile(store):
    store.add_tasks([pair("x")])
    start = datetime.now(UTC)
    given = [store.next_task(name, now=start).number for name in ("ann", "bob")]
    assert store.next_task("cem", now=start + timedelta(hours=1)) is not None, "both times are over"
    store.rules = AssignmentRules(overlap=1)
    for name, number in zip(("ann", "bob"), given, strict=True):
        with pytest.raises(DataError, match="not needed again"):
            store.submit(name, Submission(assignment=number, key=next(KEYS), value={"preference": "a"}))
    store.leave("cem", {held.number: held.expires_at for held in [store.next_task("cem")]})
    store.submit("bob", Submission(assignment=given[1], key=next(KEYS), value={"preference": "a"}))
    with pytest.raises(DataError, match="not needed again"):
        store.submit("ann", Submission(assignment=given[0], key=next(KEYS), value={"preference": "a"}))
    assert (store.progress().num_done, store.progress().num_wanted) == (1, 1)


def test_a_skipped_task_goes_to_somebody_else(store):
    store.add_tasks([pair("x")])
    store.skip("ann", store.next_task("ann").number)
    assert store.next_task("ann") is None
    assert answer(store, "bob") == answer(store, "cem") == "x"


def test_the_same_submission_twice_is_kept_once(store):
    store.add_tasks([pair("x")])
    sent = Submission(assignment=store.next_task("ann").number, key="once", value={"preference": "tie"}, seconds=3.5)
    assert store.submit("ann", sent) == store.submit("ann", sent)
    (kept,) = store.judgments()
    assert (kept.value, kept.seconds) == ({"preference": "tie"}, 3.5)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"value": {"preference": "c"}}, "wanted `a`, `b` or `tie`"),
        ({"value": {"grade": 1}}, "has the keys grade; a pairwise has only `preference`"),
        ({"flags": ["ugly"]}, "no flag 'ugly'"),
        ({"seconds": -1}, "a time is at least 0"),
        ({"comment": "x" * 10_001}, "10,001 characters"),
        ({"label_probability": 2}, "label_probability is 2"),
    ],
)
def test_what_cannot_be_a_judgment_is_refused_and_nothing_is_kept(store, change, words):
    store.add_tasks([pair("x")])
    sent = {"assignment": store.next_task("ann").number, "key": next(KEYS), "value": {"preference": "a"}, **change}
    with pytest.raises(DataError, match=words):
        store.submit("ann", Submission(**sent))
    assert store.judgments() == []


def test_nobody_judges_for_somebody_else(store):
    store.add_tasks([pair("x")])
    number = store.next_task("ann").number
    with pytest.raises(DataError, match="belong to 'bob'"):
        store.submit("bob", Submission(assignment=number, key=next(KEYS), value={"preference": "a"}))
    with pytest.raises(DataError, match="Nobody called 'dan'"):
        store.next_task("dan")


def test_ids_are_their_own(store):
    store.add_tasks([pair("x")])
    with pytest.raises(DataError, match="'x' is there already"):
        store.add_tasks([pair("y"), pair("x")])
    assert [task.id for task in store.tasks()] == ["x"], "all or none"
    assert store.add_tasks([pair("x"), pair("y")], on_known="skip") == 1
    turned = replace(pair("x"), responses=pair("x").responses[::-1])
    assert store.add_tasks([turned], on_known="skip") == 0, "the same texts, the other way round"
    for other in (replace(pair("x"), prompt="another"), replace(pair("x"), responses=pair("z").responses)):
        with pytest.raises(DataError, match=r"'x' .*other texts.*nothing"):
            store.add_tasks([pair("z"), other], on_known="skip")
    with pytest.raises(DataError, match=r"'z' .*other texts"):
        store.add_tasks([pair("z"), replace(pair("z"), prompt="another")], on_known="skip")
    assert [task.id for task in store.tasks()] == ["x", "y"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"id": "i" * 256}, "A task's id has 1 to 255 characters; got 256"),
        ({"id": "i\x00"}, r"A task's id is 'i\\x00'; the character '\\x00' in it can't be kept"),
        ({"id": "i\ud800"}, "can't be kept"),
        ({"batch": "b" * 256}, "The batch of task 'x' has 1 to 255"),
        ({"responses": [Response(text="1", model="m\x00"), Response(text="2")]}, "A model of task 'x' is"),
        ({"priority": float("nan")}, "Task 'x' has the priority nan; wanted a finite number"),
        ({"priority": float("inf")}, "priority inf"),
        ({"prompt": "half \ud800"}, r"Task 'x' holds half a character \('\\ud800'\)"),
        ({"columns": {"\udfff": 1}}, "Task 'x' holds half a character"),
    ],
)
def test_what_no_database_or_page_can_take_is_refused_by_name(tmp_path, change, words):
    with PreferenceStore(tmp_path / "s.db") as store:
        with pytest.raises(DataError, match=words):
            store.add_tasks([pair("good"), replace(pair("x"), **change)])
        assert list(store.tasks()) == []
        with pytest.raises(DataError, match="holds half a character"):
            store.set_setting("x", ["\ud800"])
        store.add_tasks([pair("good")])
        with pytest.raises(DataError, match=r"priority.*'good'.*nan"):
            store.set_priorities({"good": float("nan")})


def test_many_at_once_never_share_a_slot(place):
    with PreferenceStore(place, rules=AssignmentRules(overlap=2)) as store:
        people = [f"p{n}" for n in range(8)]
        for who in people:
            store.add_annotator(who)
        store.add_tasks([pair(f"t{n}") for n in range(12)])

        def work(who):
            done = []
            while store.next_task(who) is not None:
                done.append(answer(store, who))
            return done

        with ThreadPoolExecutor(8) as pool:
            done = [name for part in pool.map(work, people) for name in part]
    assert sorted(done) == sorted(f"t{n}" for n in range(12) for _ in range(2))


def test_who_takes_a_slot_waits_for_whoever_is_at_it(place):
    with PreferenceStore(place) as store, ThreadPoolExecutor(1) as pool:
        store.add_annotator("ann")
        store.add_tasks([pair("t")])
        with writing(store.engine) as session:
            session.execute(sa.select(AssignmentRow.slot))  # SQLite's turn begins with the first word
            wait_for_turn(session, "slots")
            given = pool.submit(store.next_task, "ann")
            assert wait([given], timeout=0.5).not_done, "it counted slots while another was taking one"
        assert given.result(timeout=30) is not None


def test_a_limit_for_each_annotator_ends_their_work(place):
    with PreferenceStore(place, rules=AssignmentRules(max_judgments=2)) as store:
        store.add_annotator("ann")
        store.add_annotator("bob", max_judgments=1)
        store.add_tasks([pair(f"t{n}") for n in range(9)])
        answer(store, "ann"), answer(store, "ann"), answer(store, "bob")
        assert store.next_task("ann") is None
        assert store.next_task("bob") is None


def test_acknowledged_judgments_survive_a_kill(place):
    with PreferenceStore(place) as store:
        store.add_annotator("ann")
        store.add_tasks([pair(f"t{n}") for n in range(400)])
    code = textwrap.dedent(f"""
        import sys
        from rlhf.store import PreferenceStore
        from rlhf.store.store import Submission
        store = PreferenceStore({str(place)!r})
        while True:
            task = store.next_task("ann")
            store.submit("ann", Submission(assignment=task.number, key=task.task.id, value={{"preference": "a"}}))
            print(task.task.id, flush=True)
    """)
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        acknowledged = [next(process.stdout).strip() for _ in range(25)]
        process.kill()
        acknowledged += process.stdout.read().split()
    with PreferenceStore(place) as store:
        kept = [judgment.task.id for judgment in store.judgments()]
    assert kept[: len(acknowledged)] == acknowledged
    assert len(kept) - len(acknowledged) in (0, 1), "one may be on disk whose acknowledgement was never read"


def test_events_are_kept_once(store):
    numbers = [add_event(store, "thumbs", {"up": True}, key="k1", completion_id="c1", model="m") for _ in range(2)]
    assert numbers[0] == numbers[1]
    assert [(row.kind, row.content) for row in store.events()] == [("thumbs", {"up": True})]
    with pytest.raises(DataError, match="one of thumbs"):
        add_event(store, "like", {}, key="k2")
