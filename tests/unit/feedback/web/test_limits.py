"""How much anybody may send, who is counted together, and what a page sends that is not there any more."""

from __future__ import annotations

import asyncio
import json

import pytest
import sqlalchemy as sa

from rlhf.store.database import reading
from rlhf.store.tables import OPEN, AssignmentRow
from rlhf.web.auth import invitation_link
from tests.fixtures.annotation_site import KEY, PERSON, Site, pair

TOO_LARGE = 10**30
"""No database looks for such a number."""


def num_open(site) -> int:
    with reading(site.store.engine) as session:
        return session.scalar(sa.select(sa.func.count()).where(AssignmentRow.state == OPEN))


def test_as_many_judgments_are_taken_as_the_rate_says_although_each_asks_for_a_task(tmp_path):
    site = Site(tmp_path / "s.db", calls="5/minute")
    ann = site.client("ann")
    for n in range(5):
        task = ann.post("/api/next", json={}).json()["task"]
        body = {"assignment": task["assignment"], "key": f"{n:020d}", "answer": {"preference": "a"}}
        assert ann.post("/api/judgments", json=body).status_code == 200
    refused = ann.post("/api/judgments", json={**body, "key": "another-key-of-twenty"})
    assert refused.status_code == 429
    assert "at most 5 in 1 minute)" in refused.json()["error"]
    assert len(site.store.judgments()) == 5
    site.close()


def test_a_crowd_behind_one_address_comes_in_and_only_bad_links_are_counted(tmp_path):
    site = Site(tmp_path / "s.db", signin_tries="2/5minutes")
    tokens = [invitation_link(site.store, f"p{n}", key=KEY).partition("token=")[2] for n in range(31)]
    for token in tokens[:30]:
        assert site.client().get("/join", params={"token": token}, headers=PERSON).status_code == 200
        assert site.client().post("/join", data={"token": token}).status_code == 303
    answers = [site.client().get("/join", params={"token": "made up"}) for _ in range(21)]
    assert [answer.status_code for answer in answers] == [403] * 20 + [429], "ten times as many as of passwords"
    assert "at most 20 in 5 minutes)" in answers[-1].json()["error"], "the limit that was hit"
    assert site.client().post("/join", data={"token": tokens[30]}).status_code == 303, "a good one always lets in"
    site.close()


@pytest.mark.parametrize("number", [-TOO_LARGE, TOO_LARGE])
def test_a_number_that_no_assignment_can_have_is_refused_in_words(site, number):
    held = [{"assignment": number, "until": "2026-01-01T00:00:00Z"}]
    for path, body in {"next": {"beside": number}, "leave": {"held": held}}.items():
        answer = site.client("ann").post(f"/api/{path}", json=body)
        assert answer.status_code == 422, path
        assert "than or equal to" in answer.json()["error"]


def asked_and_left(site, client) -> None:
    """POST /api/next, and be gone before the answer is."""
    body = json.dumps({}).encode()
    headers = {
        "host": "127.0.0.1", "content-type": "application/json", "x-csrf-token": client.headers["X-CSRF-Token"],
        "cookie": f"{site.gate.cookie}={client.cookies[site.gate.cookie]}",
    }  # fmt: skip
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "path": "/api/next",
        "raw_path": b"/api/next", "query_string": b"", "root_path": "", "scheme": "http", "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80), "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }  # fmt: skip
    messages = iter([{"type": "http.request", "body": body, "more_body": False}])
    sent = []

    async def receive():
        return next(messages, {"type": "http.disconnect"})

    async def send(message):
        sent.append(message)

    asyncio.run(site.app(scope, receive, send))
    assert sent[0]["status"] == 200, sent


def test_a_task_that_came_after_its_page_was_left_goes_back(site):
    ann = site.client("ann")
    asked_and_left(site, ann)
    assert num_open(site) == 0
    assert ann.post("/api/next", json={}).json()["task"]["fresh"]
    asked_and_left(site, ann)
    assert num_open(site) == 1, "another page holds it"


def test_a_page_is_told_whether_it_is_the_first_to_show_a_task(site):
    site.store.add_tasks([pair("more")])
    desk, phone = site.client("ann"), site.client("ann")
    assert "data-fresh" in desk.get("/label", headers=PERSON).text
    assert "data-fresh" not in phone.get("/label", headers=PERSON).text
    number = phone.post("/api/next", json={}).json()["task"]["assignment"]
    assert desk.post("/api/next", json={"beside": number}).json()["task"]["fresh"] is True
    assert phone.post("/api/next", json={"beside": number}).json()["task"]["fresh"] is False
