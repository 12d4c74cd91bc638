from __future__ import annotations

import json
import re

import pytest
from fastapi.testclient import TestClient

from rlhf.feedback.report import report_text
from rlhf.feedback.simulate import SimulatedAnnotator
from rlhf.feedback.web import create_annotation_app, dashboard
from rlhf.feedback.web.dashboard import Desk, percent
from rlhf.store import AssignmentRules, PreferenceStore, Response, Submission, Task, TaskKind, access
from rlhf.store.values import NUM_RESPONSES
from rlhf.web import WebSettings, invitation_link
from tests.fixtures.judged import judge_all, pair_tasks

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>"
PAGE = {"accept": "text/html"}


@pytest.fixture
def store(tmp_path):
    with PreferenceStore(tmp_path / "store.db", rules=AssignmentRules(overlap=2), seed=2) as store:
        yield store


def signed_in(store, name, role):
    """A client whose cookies are somebody's."""
    client = TestClient(create_annotation_app(store), base_url="http://127.0.0.1:8000")
    link = invitation_link(store, name, role=role, settings=WebSettings())
    token = link.partition("token=")[2]
    answer = client.post("/join", data={"token": token}, headers={"origin": "http://127.0.0.1:8000"})
    assert answer.status_code < 400, answer.text
    return client


def judged(store, num=12):
    store.add_tasks(pair_tasks(num))
    judge_all(store, [SimulatedAnnotator(name="good"), SimulatedAnnotator(name="lazy", laziness=0.9)])


def test_only_the_owner_sees_it(store):
    judged(store, 4)
    assert signed_in(store, "boss", "owner").get("/dashboard", headers=PAGE).status_code == 200
    ann = signed_in(store, "ann", "annotator")
    for path in ("/dashboard", "/api/report"):
        refused = ann.get(path, headers=PAGE)
        assert refused.status_code == 403
        assert "lazy" not in refused.text
    stranger = TestClient(create_annotation_app(store), base_url="http://127.0.0.1:8000", follow_redirects=False)
    assert stranger.get("/api/report").status_code == 401


def test_it_says_what_the_report_says(store):
    judged(store, 24)  # with fewer than twenty there is no interval to show
    boss = signed_in(store, "boss", "owner")
    html = boss.get("/dashboard", headers=PAGE).text
    actual = boss.get("/api/report").json()
    (agreement,) = actual["agreement"]
    alpha = agreement["krippendorff_alpha"]
    assert f"{alpha['value']:.2f}</span>" in html
    assert f"{alpha['low']:.2f}–{alpha['high']:.2f}" in html
    for row in actual["annotators"]:
        assert row["annotator"] in html
        assert all(reason in html for reason in row["unqualified_because"])
    for item in agreement["divided"]:
        assert item["task"] in html
    assert "style=" not in html
    assert "<script" not in html, "the content policy forbids both, and the page needs neither"


def test_a_leaning_to_a_position_is_shown_where_it_was_measured_and_not_as_a_missing_qualification(store):
    judged(store, 60)
    html = signed_in(store, "boss", "owner").get("/dashboard", headers=PAGE).text
    (row,) = (part for part in html.split("<tr>") if 'scope="row">lazy<' in part)
    assert row.count("position bias") == 1
    assert "leans" not in row.partition('class="reasons"')[2], "a leaning is not a rule of qualification"
    assert "leans" not in next(part for part in html.split("<tr>") if 'scope="row">good<' in part)


def test_what_people_wrote_stays_text(store):
    responses = [Response(text="one"), Response(text="two")]
    store.add_tasks(
        [Task(id=f"t<u>{n}", kind=TaskKind.PAIRWISE, prompt=HOSTILE, responses=responses) for n in range(2)]
    )
    for who, side in (("ann", "a"), ("bob", "b")):
        store.add_annotator(who)
        while held := store.next_task(who):
            store.submit(
                who,
                Submission(
                    assignment=held.number, key=f"{who}{held.number}", value={"preference": side}, comment=HOSTILE,
                    flags=["unsafe"],
                ),
            )  # fmt: skip
    html = signed_in(store, "<i>boss</i>", "owner").get("/dashboard", headers=PAGE).text
    assert html.count("&lt;script&gt;alert(1)") >= 2 + 4, "prompts of two divided tasks, four comments"
    assert not re.search(r"<(script|img|u>|i>)", html)


def test_it_is_measured_again_only_when_something_changed_and_not_all_the_time(store, monkeypatch):
    judged(store, 2)
    looks, now = [], [0.0]
    real = dashboard._look

    def look(place):
        looks.append(now[0])
        now[0] += 2.0  # measuring takes two seconds
        return real(place)

    monkeypatch.setattr(dashboard, "_look", look)
    desk = Desk(store, clock=lambda: now[0])
    first = desk.view()
    now[0] = 1000.0
    assert desk.view() is first, "nothing changed"
    store.undo("good")
    changed = desk.view()
    assert changed.findings.coverage.num_judgments == first.findings.coverage.num_judgments - 1
    store.undo("good")
    now[0] += 19
    assert desk.view() is changed, "it took 2 s: for 20 s the server does other things"
    now[0] += 2
    assert desk.view() is not changed
    assert len(looks) == 3


def test_the_owner_sees_what_was_skipped_and_what_nobody_is_asked_any_more(store):
    store.add_tasks(pair_tasks(2))
    for who in ("ann", "bob"):
        store.add_annotator(who)
    skipped, other = store.tasks()
    store.skip("ann", store.next_task("ann").number)
    boss = signed_in(store, "boss", "owner")  # was never given a task, so nobody waits for them
    store.set_priorities({other.id: 1})
    held = store.next_task("bob")
    assert held.task.id == other.id
    assert skipped_of(store) == (1, 0, 0, ()), "bob is still to come to it"
    store.submit("bob", Submission(assignment=held.number, key="k", value={"preference": "a"}))
    held = store.next_task("bob")
    assert held.task.id == skipped.id
    store.skip("bob", held.number)
    assert skipped_of(store) == (1, 0, 1, ())
    html = boss.get("/dashboard", headers=PAGE).text
    assert "1 skipped and still open, 1 of them skipped by all" in html
    told = boss.get("/api/report").json()["skipped"]
    assert told == {"num_waiting": 1, "num_left_to_newcomers": 0, "num_left_to_nobody": 1, "newcomers": []}


def skipped_of(store):
    skipped = store.skipped()
    return skipped.num_waiting, skipped.num_left_to_newcomers, skipped.num_left_to_nobody, skipped.newcomers


def test_while_somebody_who_was_invited_has_not_begun_a_skipped_task_waits_for_them(store):
    store.rules = AssignmentRules(overlap=2)
    store.add_tasks(pair_tasks(2))
    for who in ("ann", "bob", "cem"):
        invitation_link(store, who)
    store.add_annotator("from-a-file")  # has neither a link nor a password, so nobody waits for them
    first, second = (store.next_task("ann") for _ in range(2))
    assert first.number == second.number
    store.skip("ann", first.number)
    assert skipped_of(store) == (1, 1, 0, ("bob", "cem"))
    boss = signed_in(store, "boss", "owner")
    html = boss.get("/dashboard", headers=PAGE).text
    assert "will not be finished" not in html, "a false alarm: two people are still to come"
    assert (
        "Left to those who were invited and have not begun (&#39;bob&#39;, &#39;cem&#39;): 1 task, skipped or" in html
    )
    assert "1 skipped and still open, 1 of them left to invited members" in html
    assert "Skipped and still wanting judgments: 1, of which 1 by everybody who has begun." in report_text(store)
    held = store.next_task("bob")
    assert held.task.id == first.task.id
    assert skipped_of(store) == (1, 1, 0, ("cem",)), "two judgments are wanted, and bob makes one"
    store.skip("bob", held.number)
    assert skipped_of(store) == (1, 1, 0, ("cem",))
    access.set_active(store.engine, "cem", False)
    assert skipped_of(store) == (1, 0, 1, ())


def test_who_is_invited_changes_what_the_page_says_though_nobody_judged(store):
    store.add_tasks(pair_tasks(1))
    store.add_annotator("ann")
    store.skip("ann", store.next_task("ann").number)
    now = [0.0]
    desk = Desk(store, clock=lambda: now[0])
    assert desk.view().skipped.num_left_to_nobody == 1
    invitation_link(store, "bob")
    now[0] += 1000
    assert desk.view().skipped.num_left_to_nobody == 0
    access.set_active(store.engine, "bob", False)
    now[0] += 1000
    assert desk.view().skipped.num_left_to_nobody == 1


def test_an_empty_store_has_a_page(store):
    html = signed_in(store, "boss", "owner").get("/dashboard", headers=PAGE).text
    assert "Nothing was judged yet." in html
    assert "No judgments yet." in html


def test_what_was_not_measured_is_a_dash_and_its_reason(store):
    store.add_tasks(pair_tasks(1))
    store.add_annotator("ann")
    held = store.next_task("ann")
    store.submit("ann", Submission(assignment=held.number, key="k", value={"preference": "a"}))
    boss = signed_in(store, "boss", "owner")
    html = boss.get("/dashboard", headers=PAGE).text
    assert "nobody else judged the same items" in html
    assert "nan" not in html.lower()
    assert "NaN" not in json.dumps(boss.get("/api/report").json())
    assert percent(float("nan")) == "–"


def test_what_divides_people_is_shown_with_what_they_chose_from(store):
    grass = Response(text="Grass\nand hay. " + "x" * 200)
    meat = Response(text=[{"role": "assistant", "content": "Meat."}])
    store.add_tasks([Task(id="t", kind=TaskKind.PAIRWISE, prompt="What does a cow eat?", responses=[grass, meat])])
    for who, side in (("ann", "a"), ("bob", "b")):
        store.add_annotator(who)
        held = store.next_task(who)
        store.submit(who, Submission(assignment=held.number, key=who, value={"preference": side}))
    html = signed_in(store, "boss", "owner").get("/dashboard", headers=PAGE).text
    shown = [" ".join(re.sub("<[^>]*>", "", one).split()) for one in re.findall(r'class="judged">(.*?)</span>', html)]
    assert shown == [f"a Grass and hay. {'x' * 144}…", "b Meat."]


@pytest.mark.parametrize(
    ("kind", "part", "shown"),
    [
        (TaskKind.RANKING, (0, 2), [("a", "one"), ("b", "three")]),
        (TaskKind.RATING, ("truth", 1), [("", "two")]),
        (TaskKind.BINARY, (), [("", "one")]),
        (TaskKind.MULTICLASS, (), [("", "one")]),
        (TaskKind.GRADED5, (), [("above 0", "one"), ("below 0", "two")]),
        (TaskKind.GRADED7, (), [("above 0", "one"), ("below 0", "two")]),
        (TaskKind.PAIRWISE, (), [("a", "one"), ("b", "two")]),
    ],
)
def test_answers_of_every_kind_are_shown_beside_what_they_are_about(kind, part, shown):
    texts = ("one", "two", "three")[: NUM_RESPONSES[kind][1]]
    task = Task(id="t", kind=kind, prompt="?", responses=[Response(text=text) for text in texts])
    assert dashboard.judged(task, part) == shown


def test_what_was_not_measured_is_told_from_its_reason(store):
    store.rules = AssignmentRules(overlap=3)
    store.add_tasks(pair_tasks(4))
    judge_all(store, [SimulatedAnnotator(name=name) for name in ("ann", "bob", "cem")])
    store.undo("ann")  # now a task has two judgments and the others three, which Fleiss' kappa can't be taken of
    html = signed_in(store, "boss", "owner").get("/dashboard", headers=PAGE).text
    seen = re.sub("<[^>]*>", "", re.sub('<span class="unseen">.*?</span>', "", html))
    assert "Fleiss’ kappanot measured: items have" in seen.replace("\n", "")
