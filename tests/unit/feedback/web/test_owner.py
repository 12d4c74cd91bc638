"""Who takes a task out of the queue, and when it goes back: an owner who looks takes none, and who leaves keeps what was begun."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from rlhf.store import AssignmentRules, PreferenceStore
from rlhf.store.tables import OPEN
from tests.fixtures.annotation_site import PERSON, pair


def num_open(store):
    import sqlalchemy as sa

    from rlhf.store.database import reading
    from rlhf.store.tables import AssignmentRow

    with reading(store.engine) as session:
        return session.scalar(sa.select(sa.func.count()).where(AssignmentRow.state == OPEN))


def test_an_owner_who_comes_in_sees_the_dashboard_and_holds_up_no_task(site):
    olga = site.client("olga")
    assert olga.get("/", headers=PERSON).headers["location"] == "/dashboard"
    board = olga.get("/dashboard", headers=PERSON)
    assert 'href="/label"' in board.text
    olga.get("/people", headers=PERSON)
    assert num_open(site.store) == 0


def test_an_owner_may_judge_when_they_choose_to(site):
    page = site.client("olga").get("/label", headers=PERSON)
    assert 'class="task"' in page.text
    assert num_open(site.store) == 1
    assert 'href="/label"' not in site.client("ann").get("/", headers=PERSON).text, "an annotator is there already"


@pytest.mark.parametrize("header", ["sec-purpose", "purpose"])
def test_a_browser_that_only_guesses_takes_no_task(site, header):
    ann = site.client("ann")
    assert ann.get("/", headers={**PERSON, header: "prefetch;prerender"}).status_code == 503
    assert num_open(site.store) == 0
    assert ann.get("/", headers=PERSON).status_code == 200


def test_what_a_page_held_and_nobody_began_is_anybodys_at_once(site):
    ann = site.client("ann")
    first = ann.post("/api/next", json={}).json()["task"]
    second = ann.post("/api/next", json={"beside": first["assignment"]}).json()["task"]
    assert num_open(site.store) == 2
    held = [{"assignment": task["assignment"], "until": task["until"]} for task in (first, second)]
    assert ann.post("/api/leave", json={"held": held}).json() == {"left": 2}
    assert num_open(site.store) == 0
    assert "t0" in site.client("bob").post("/api/next", json={}).json()["task"]["html"], (
        "the most urgent one is free again"
    )


def test_a_reload_that_overtakes_the_leave_keeps_its_tasks(site):
    ann = site.client("ann")
    before = ann.post("/api/next", json={}).json()["task"]
    after = ann.post("/api/next", json={}).json()["task"]  # the page that was loaded again
    assert after["assignment"] == before["assignment"]
    sent = {"held": [{"assignment": before["assignment"], "until": before["until"]}]}
    assert ann.post("/api/leave", json=sent).json() == {"left": 0}
    assert ann.post("/api/next", json={}).json()["task"]["assignment"] == after["assignment"]


def test_nobody_gives_back_what_is_somebody_elses_or_judged(site):
    ann, bob = site.client("ann"), site.client("bob")
    task = ann.post("/api/next", json={}).json()["task"]
    held = {"held": [{"assignment": task["assignment"], "until": task["until"]}]}
    assert bob.post("/api/leave", json=held).json() == {"left": 0}
    body = {"assignment": task["assignment"], "key": "k" * 20, "answer": {"preference": "a"}}
    assert ann.post("/api/judgments", json=body).status_code == 200
    assert ann.post("/api/leave", json=held).json() == {"left": 0}
    assert len(site.store.judgments()) == 1
    three = {"held": held["held"] * 3}
    assert ann.post("/api/leave", json=three).status_code == 422


def test_what_was_left_may_come_to_the_same_person_again(place):
    with PreferenceStore(place, rules=AssignmentRules()) as store:
        store.add_annotator("ann")
        store.add_tasks([pair("t0")])
        given = store.next_task("ann")
        wrong = given.expires_at + timedelta(seconds=1)
        assert store.leave("ann", {given.number: wrong}) == 0
        assert store.leave("ann", {given.number: given.expires_at}) == 1
        again = store.next_task("ann", now=datetime.now(UTC))
        assert again.task.id == "t0"
        assert again.order == given.order
