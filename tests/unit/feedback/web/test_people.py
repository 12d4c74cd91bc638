"""The owner's page of people: who may use it, what it does, and that a link is shown once."""

from __future__ import annotations

import html
import re

import pytest

from rlhf.store import Submission, access
from tests.fixtures.annotation_site import PERSON, Site

HOSTILE = "<script>alert(1)</script>"


def link_on(answer):
    matched = re.search(r'class="link" readonly value="([^"]+)"', answer.text)
    return html.unescape(matched[1]) if matched else None


def invite(client, name, **more):
    return client.post("/people/invite", data={"name": name, **more}, headers=PERSON)


def come_in(site, link):
    token = link.partition("token=")[2]
    return site.client().post("/join", data={"token": token}, headers={"origin": "http://127.0.0.1"})


def test_an_annotator_and_a_stranger_are_refused_whatever_they_try(site):
    ann, stranger = site.client("ann"), site.client()
    assert ann.get("/people", headers=PERSON).status_code == 403
    assert "bob" not in ann.get("/people", headers=PERSON).text
    assert stranger.get("/people", headers=PERSON).headers["location"] == "/signin"
    for path, data in [
        ("/people/invite", {"name": "eve", "role": "owner"}),
        ("/people/invite", {"name": "ann", "role": "owner"}),
        ("/people/revoke", {"name": "bob"}),
        ("/people/restore-access", {"name": "bob"}),
    ]:
        assert ann.post(path, data=data, headers=PERSON).status_code == 403, path
        assert stranger.post(path, data=data, headers=PERSON).status_code in (401, 403), path
        assert site.client("olga").get(path, headers=PERSON).status_code == 405, "nothing is changed by looking"
    assert access.person(site.store.engine, "eve") is None
    assert access.person(site.store.engine, "ann").role == "annotator"
    assert access.person(site.store.engine, "bob").active


def test_the_owners_own_forms_need_the_token_of_their_session(site):
    without = site.client("olga", with_token=False)
    assert invite(without, "eve").status_code == 403
    assert access.person(site.store.engine, "eve") is None
    page = without.get("/people", headers=PERSON).text
    token = re.search(r'name="csrf_token" value="([^"]+)"', page)[1]
    assert invite(without, "eve", csrf_token=token).status_code == 200
    from_elsewhere = {**PERSON, "origin": "https://evil.example", "sec-fetch-site": "cross-site"}
    answer = without.post("/people/revoke", data={"name": "ann", "csrf_token": token}, headers=from_elsewhere)
    assert answer.status_code == 403
    assert access.person(site.store.engine, "ann").active


def test_a_link_is_shown_once_works_once_and_is_kept_by_no_browser(site):
    olga = site.client("olga")
    answer = invite(olga, "  dora ")
    link = link_on(answer)
    assert link.startswith("http://127.0.0.1/join?token=")
    assert answer.headers["cache-control"] == "no-store"
    assert "token=" not in olga.get("/people", headers=PERSON).text
    assert ">not joined yet<" in olga.get("/people", headers=PERSON).text
    assert come_in(site, link).status_code == 303
    assert come_in(site, link).status_code == 403
    assert access.person(site.store.engine, "dora").role == "annotator"
    again = link_on(invite(olga, "dora"))
    assert again != link
    assert come_in(site, again).status_code == 303, "somebody who lost their session gets a new link"


def test_a_link_leads_to_the_address_that_people_know(tmp_path):
    site = Site(tmp_path / "s.db", public_url="https://label.example.org")
    assert link_on(invite(site.client("olga"), "dora")).startswith("https://label.example.org/join?token=")
    site.close()
    site = Site(tmp_path / "t.db", host="0.0.0.0")
    olga = site.client("olga")
    olga.base_url = "http://192.168.1.5:8000"
    assert link_on(invite(olga, "dora")).startswith("http://192.168.1.5:8000/join?token=")
    site.close()


def test_who_is_shut_out_is_gone_at_once_and_can_come_again(site):
    olga, ann = site.client("olga"), site.client("ann")
    held = site.store.next_task("ann")
    site.store.submit("ann", Submission(assignment=held.number, key="k1", value={"preference": "a"}))
    site.store.next_task("ann")
    link = link_on(invite(olga, "ann"))
    assert olga.post("/people/revoke", data={"name": "ann"}, headers=PERSON).headers["location"] == "/people"
    assert ann.get("/", headers=PERSON).headers["location"] == "/signin"
    assert come_in(site, link).status_code == 403
    shown = olga.get("/people", headers=PERSON).text
    assert "access removed" in shown
    assert "Restore access: ann" in shown
    refused = invite(olga, "ann")
    assert refused.status_code == 400
    assert "was shut out; let them in again first" in refused.text
    assert olga.post("/people/restore-access", data={"name": "ann"}, headers=PERSON).status_code == 303
    assert come_in(site, link_on(invite(olga, "ann"))).status_code == 303
    assert len(site.store.judgments("ann")) == 1, "what was judged stays"


@pytest.mark.parametrize(
    ("path", "data", "message"),
    [
        ("/people/invite", {"name": "x" * 65}, "1 to 64 printable characters"),
        ("/people/invite", {"name": "a\u0000b"}, "1 to 64 printable characters"),
        ("/people/invite", {"name": "ann", "role": "owner"}, "is known as annotator, not as owner"),
        ("/people/invite", {"name": "eve", "role": "god"}, "A role is `annotator` or `owner`"),
        ("/people/revoke", {"name": "nobody"}, "There is nobody called"),
        ("/people/revoke", {"name": "olga"}, "shut yourself out"),
        ("/people/revoke", {"name": HOSTILE}, "There is nobody called"),
    ],
)
def test_what_can_not_be_done_is_said_on_the_page(path, data, message, site):
    answer = site.client("olga").post(path, data=data, headers=PERSON)
    assert answer.status_code == 400
    assert message in html.unescape(answer.text)
    assert "<h1>Members</h1>" in answer.text
    assert "<script" not in answer.text
    assert link_on(answer) is None


def test_names_are_text_and_the_page_needs_neither_script_nor_style(site):
    olga = site.client("olga")
    text = invite(olga, HOSTILE).text
    assert "&lt;script&gt;" in text
    assert "<script" not in text
    assert "style=" not in text
    assert olga.get("/label", headers=PERSON).text.count('href="/people"') == 1
    assert 'href="/people"' not in site.client("ann").get("/", headers=PERSON).text
    assert site.client("ann").get("/", headers=PERSON).text.count('href="/dashboard"') == 0
    assert olga.get("/label", headers=PERSON).text.count('href="/dashboard"') == 1
