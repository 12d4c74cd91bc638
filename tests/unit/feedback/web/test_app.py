from __future__ import annotations

import json
import re

import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient
from starlette.routing import Mount

from rlhf.errors import StorageError
from rlhf.store import access
from tests.fixtures.annotation_site import PERSON, Site

JUDGMENT = {"key": "0123456789abcdef", "answer": {"preference": "a"}}


def routes(router):
    """Method, path and function of every route, those of included routers too."""
    for route in router.routes:
        if isinstance(route, APIRoute):
            yield from ((method, route.path, route.endpoint) for method in route.methods)
        elif not isinstance(route, Mount) and hasattr(route, "original_router"):
            yield from routes(route.original_router)


def test_every_answer_carries_the_headers_that_keep_a_browser_safe(site):
    ann = site.client("ann")
    answers = [
        ann.get("/", headers=PERSON),
        ann.get("/static/door.css"),
        ann.get("/nothing", headers=PERSON),
        ann.get("/", headers={"host": "evil.example"}),
        site.client().get("/", headers=PERSON),
        site.client().post("/api/next", json={}),
    ]
    assert [answer.status_code for answer in answers] == [200, 200, 404, 400, 303, 401]
    for answer in answers:
        policy = answer.headers["content-security-policy"]
        assert "default-src 'self'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "same-origin"


def test_what_is_private_is_kept_by_no_cache(site):
    assert site.client("ann").get("/", headers=PERSON).headers["cache-control"] == "no-store"
    assert site.client().get("/static/door.css").headers.get("cache-control") != "no-store"


def test_no_page_names_another_host_or_holds_a_script(site):
    for path in ("/", "/guidelines", "/signin", "/nothing"):
        for who in ("olga", None):
            text = site.client(who).get(path, headers=PERSON).text
            assert not re.search(r"(?:src|href|action)\s*=\s*[\"']?(?:https?:)?//", text), path
            assert not re.search(r"<script(?![^>]*\ssrc=)|<style|\sstyle=|\son[a-z]+=", text), path


@pytest.mark.parametrize(
    ("host", "status"),
    [("127.0.0.1:8000", 200), ("localhost", 200), ("[::1]:8000", 200), ("192.168.7.7", 200), ("LOCALHOST:1", 200),
     ("evil.example", 400), ("127.0.0.1.evil.example", 400), ("localhost.evil.example:8000", 400), ("", 400)],
)  # fmt: skip
def test_a_name_that_another_site_pointed_here_is_not_answered(site, host, status):
    assert site.client().get("/healthz", headers={"host": host}).status_code == status


def test_a_public_name_is_answered_to(tmp_path):
    site = Site(tmp_path / "s.db", public_url="https://label.example.org")
    answer = site.client().get("/healthz", headers={"host": "label.example.org"})
    site.close()
    assert answer.status_code == 200
    assert "max-age" in answer.headers["strict-transport-security"]


def test_what_is_too_large_is_not_read(tmp_path):
    site = Site(tmp_path / "s.db", max_body_bytes=2000)
    ann = site.client("ann")
    told = ann.post("/api/next", content=b"x" * 3000)
    untold = ann.post("/api/next", content=iter([b"x" * 1500, b"x" * 1500]))  # in chunks, without a length
    lied = ann.post("/api/next", content=b"{}", headers={"content-length": "many"})
    site.close()
    assert (told.status_code, untold.status_code, lied.status_code) == (413, 413, 400)
    assert "at most 2,000 bytes" in told.json()["error"]
    assert "at most 2,000 bytes" in untold.json()["error"]


def test_programs_get_json_and_people_a_page(site):
    ann = site.client("ann")
    assert ann.post("/api/next", content=b"not json").json()["error"].startswith("The request was not understood. ")
    assert ann.get("/nothing").json() == {"error": "There is nothing here."}
    page = ann.get("/nothing", headers=PERSON)
    assert page.headers["content-type"].startswith("text/html")
    assert "There is nothing here." in page.text


def test_no_trace_reaches_anybody(site, monkeypatch, caplog):
    def fail(*_, **__):
        raise RuntimeError("secret detail")

    ann = site.client("ann")
    monkeypatch.setattr(site.store, "next_task", fail)
    for headers in (PERSON, {}):
        answer = ann.get("/", headers=headers)
        assert answer.status_code == 500
        assert "secret" not in answer.text
        assert "Traceback" not in answer.text
        assert "content-security-policy" in answer.headers
    assert "secret detail" in caplog.text, "the owner's terminal tells"


def test_a_full_disk_is_a_reason_to_send_again_and_no_secret_is_told(site, monkeypatch, caplog):
    def fail(*_, **__):
        raise StorageError("The store /home/olga/store.db can't be used: disk full.")

    ann = site.client("ann")
    mine = ann.post("/api/next", json={}).json()["task"]["assignment"]
    monkeypatch.setattr(site.store, "submit", fail)
    answer = ann.post("/api/judgments", json={"assignment": mine, **JUDGMENT})
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "2"
    assert "olga" not in answer.text
    assert "disk full" in caplog.text


def test_what_a_user_writes_is_no_html_on_an_error_page(site):
    text = site.client().get("/join?token=<script>alert(1)</script>", headers=PERSON).text
    assert "<script>" not in text
    text = site.client("ann").get("/", headers={**PERSON, "host": "<script>alert(1)</script>"}).text
    assert "<script>" not in text


def test_an_undo_that_is_sent_again_takes_back_one_judgment(site):
    ann = site.client("ann")
    for key in ("a" * 20, "b" * 20):
        mine = ann.post("/api/next", json={}).json()["task"]["assignment"]
        ann.post("/api/judgments", json={"assignment": mine, **JUDGMENT, "key": key})
    before = len(site.store.judgments())
    first, again = (ann.post("/api/undo", json={"key": "u" * 16}).json() for _ in range(2))
    assert first["task"]["assignment"] == again["task"]["assignment"] == mine
    assert len(site.store.judgments()) == before - 1
    assert ann.post("/api/undo", json={"key": "v" * 16}).json()["task"]["assignment"] != mine
    assert len(site.store.judgments()) == before - 2
    for key in ("12", "u" * 60, "u" * 15 + "_", None):
        assert ann.post("/api/undo", json={"key": key}).status_code == 422


def test_an_annotator_has_only_their_own_work(site):
    ann, bob = site.client("ann"), site.client("bob")
    mine = ann.post("/api/next", json={}).json()["task"]["assignment"]
    kept = ann.post("/api/judgments", json={"assignment": mine, **JUDGMENT}).json()["judgment"]
    for path, body in [
        ("/api/judgments", {"assignment": mine, "key": "f" * 20, "answer": {"preference": "b"}}),
        ("/api/judgments", {"assignment": mine, **JUDGMENT}),  # the very key of somebody else's judgment
        ("/api/skip", {"assignment": mine}),
        ("/api/diff", {"assignment": mine}),
        ("/api/undo", {"key": "u" * 16, "skipped": mine}),
    ]:
        answer = bob.post(path, json=body)
        assert answer.status_code == 400, path
        assert "t0" not in answer.text
    assert bob.post("/api/undo", json={"key": "u" * 16}).json()["task"] is None, (
        "there is nothing of bob's to take back"
    )
    (judgment,) = site.store.judgments()
    assert (judgment.number, judgment.annotator) == (kept, "ann")


@pytest.mark.parametrize("number", [0, -1, 10**6, 2**31, 2**63, 10**30])
def test_numbers_of_nothing_are_told(site, number):
    for path, more in (("/api/judgments", JUDGMENT), ("/api/skip", {}), ("/api/diff", {})):
        assert site.client("ann").post(path, json={"assignment": number, **more}).status_code == 400


def test_every_page_but_the_doors_asks_who_is_there(site):
    actual = {(method, path) for method, path, _ in routes(site.app)}
    assert {("GET", "/"), ("GET", "/dashboard"), ("POST", "/api/judgments"), ("POST", "/signout")} < actual
    public = {("GET", "/healthz"), ("GET", "/join"), ("POST", "/join"), ("GET", "/signin"), ("POST", "/signin"),
              ("GET", "/api/events/schema")}  # fmt: skip
    assert public < actual
    for method, path in sorted(actual - public):
        answer = site.client().request(method, path, json={} if method == "POST" else None, headers=PERSON)
        assert answer.status_code in (303, 401), f"{method} {path}: {answer.status_code}"
        assert answer.status_code == 401 or answer.headers["location"] == "/signin"


def test_only_doors_that_check_for_themselves_take_posts_without_a_session(site):
    assert {path for _, path, route in routes(site.app) if getattr(route, "checks_itself", False)} == {
        "/join", "/signin", "/api/events",
    }  # fmt: skip


def test_the_owners_pages_are_the_owners(site):
    assert site.client("olga").get("/dashboard", headers=PERSON).status_code == 200
    answer = site.client("ann").get("/dashboard", headers=PERSON)
    assert answer.status_code == 403
    assert "the owner&#39;s" in answer.text


def test_a_comment_comes_back_as_it_was_sent_or_is_mended(tmp_path, place):
    site = Site(place)
    ann = site.client("ann")
    comments = ["plain", "ünï 🦎", "<b>&amp;", "nul\x00here", "half \ud83d a lizard", "'; DROP TABLE judgments; --"]
    for n, comment in enumerate(comments):
        mine = ann.post("/api/next", json={}).json()["task"]["assignment"]
        body = {
            "assignment": mine,
            "key": f"key-of-comment-{n:04d}",
            "answer": {"preference": "tie"},
            "comment": comment,
        }
        answer = ann.post("/api/judgments", content=json.dumps(body), headers={"content-type": "application/json"})
        assert answer.status_code in (200, 422), answer.text
        assert answer.status_code == 200 or "\ud83d" in comment, "half a character is the one thing that is not text"
        if answer.status_code == 422:
            ann.post("/api/skip", json={"assignment": mine})
    kept = [judgment.comment for judgment in site.store.judgments()]
    site.close()
    assert kept[:4] == ["plain", "ünï 🦎", "<b>&amp;", "nul\N{REPLACEMENT CHARACTER}here"]
    assert kept[-1] == "'; DROP TABLE judgments; --"


def test_the_app_can_stand_in_another_one(site):
    outer = FastAPI()
    outer.mount("/label", site.app)
    browser = TestClient(outer, base_url="http://127.0.0.1", follow_redirects=False)
    assert browser.get("/label/", headers=PERSON).headers["location"] == "/label/signin"
    assert browser.post("/label/api/next", json={}).json()["error"].startswith("You are not signed in")
    assert 'action="/label/signin"' in browser.get("/label/signin", headers=PERSON).text
    assert browser.get("/label/static/door.css").status_code == 200


def test_an_api_token_opens_no_page(site):
    token = access.add_api_token(site.store.engine, "chat")
    headers = {"authorization": f"Bearer {token}"}
    assert site.client().post("/api/next", json={}, headers=headers).status_code == 401
    assert site.client().get("/", headers={**headers, **PERSON}).status_code == 303
