from __future__ import annotations

import re
import shutil
import stat
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa
from fastapi.testclient import TestClient
from itsdangerous import URLSafeTimedSerializer

from rlhf.errors import ConfigError, DataError, StorageError
from rlhf.store import PreferenceStore, access
from rlhf.store.database import reading, writing
from rlhf.store.tables import SettingRow
from rlhf.web import auth, invitation_link
from rlhf.web.server_settings import KEY_BYTES, WebSettings, key_file, signing_key
from tests.fixtures.annotation_site import KEY, PERSON, Site

PASSWORD = "correct horse battery"


def token_of(site, name, **how):
    return invitation_link(site.store, name, key=KEY, **how).partition("token=")[2]


def test_an_invitation_lets_in_once_and_looking_does_not_use_it_up(site):
    token = token_of(site, "dora")
    browser = site.client()
    for _ in range(3):  # a mail scanner, a chat's preview, the person
        page = browser.get(f"/join?token={token}", headers=PERSON)
        assert page.status_code == 200
        assert "Welcome, dora" in page.text
    assert browser.post("/join", data={"token": token}).headers["location"] == "/"
    assert browser.get("/", headers=PERSON).status_code == 200
    again = site.client().post("/join", data={"token": token})
    assert again.status_code == 403
    assert "works once" in again.json()["error"]


def test_a_link_that_was_used_says_so_at_once_and_leads_home_whoever_came_by_it(site):
    token = token_of(site, "dora")
    browser = site.client()
    browser.post("/join", data={"token": token})
    stranger = site.client().get(f"/join?token={token}", headers=PERSON)
    assert stranger.status_code == 403
    assert "This invitation was used, and works once." in stranger.text
    assert "Welcome" not in stranger.text
    assert browser.get(f"/join?token={token}", headers=PERSON).headers["location"] == "/"
    assert site.client("bob").get(f"/join?token={token}", headers=PERSON).status_code == 403, "it is somebody else's"


def test_whoever_looks_too_often_is_told_and_nobody_else_is_shut_out(tmp_path):
    site = Site(tmp_path / "s.db", looks="3/minute")
    ann = site.client("ann")
    answers = [ann.get("/guidelines", headers=PERSON) for _ in range(4)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
    assert 0 < int(answers[3].headers["retry-after"]) <= 60
    assert site.client("bob").get("/guidelines", headers=PERSON).status_code == 200
    stranger = [site.client().get("/healthz").status_code for _ in range(31)]
    assert stranger == [200] * 30 + [429], "many people may sit behind one address"
    site.close()


def test_of_many_who_use_one_invitation_at_once_one_comes_in(site):
    link = auth.invited(site.gate, token_of(site, "ann"))
    secrets, barrier = [], threading.Barrier(8)

    def come_in():
        barrier.wait()
        secrets.append(auth.start_session(site.gate, "ann", link=link))

    threads = [threading.Thread(target=come_in) for _ in range(8)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert sum(secret is not None for secret in secrets) == 1


@pytest.mark.parametrize(
    "change", [lambda t: t[:-2] + ("AA" if t[-2:] != "AA" else "BB"), lambda t: t[5:], lambda t: ""]
)
def test_an_invitation_that_was_tampered_with_is_refused(site, change):
    answer = site.client().post("/join", data={"token": change(token_of(site, "ann")) or "x"})
    assert answer.status_code == 403
    assert "not complete, or not of this server" in answer.json()["error"]


def test_an_invitation_signed_with_another_key_or_for_another_purpose_is_refused(site):
    for key, salt in ((b"o" * 32, auth._SALT), (KEY, "something else")):
        token = URLSafeTimedSerializer(key, salt=salt).dumps({"name": "olga", "nonce": "n"})
        assert site.client().post("/join", data={"token": token}).status_code == 403


def test_an_old_invitation_is_refused(tmp_path):
    site = Site(tmp_path / "s.db", invitation_days=1e-9)
    token = token_of(site, "ann")
    threading.Event().wait(1.1)  # the time in a token counts whole seconds
    answer = site.client().post("/join", data={"token": token})
    site.close()
    assert answer.status_code == 403
    assert "too old" in answer.json()["error"]


def test_an_invitation_changes_nobodys_role_and_brings_nobody_back(site):
    with pytest.raises(ConfigError, match=r"'olga'.*owner"):
        invitation_link(site.store, "olga", key=KEY)
    token = token_of(site, "ann")
    access.set_active(site.store.engine, "ann", False)
    with pytest.raises(ConfigError, match="was shut out"):
        invitation_link(site.store, "ann", key=KEY)
    assert site.client().post("/join", data={"token": token}).status_code == 403
    with pytest.raises(ConfigError, match="1 to 64 printable characters"):
        invitation_link(site.store, "a\x00b", key=KEY)


@pytest.mark.postgres
def test_an_invitation_opens_only_the_store_it_was_made_for_and_only_in_its_role(postgres_server, tmp_path):
    sites = [Site(postgres_server.new_database()) for _ in range(2)]  # served from one folder: one key signs for both
    one, other = sites
    one.store.add_annotator("boss")
    other.store.add_annotator("boss", role="owner")
    token = token_of(one, "boss")
    foreign = other.client().post("/join", data={"token": token})
    cookies = {site.gate.cookie for site in sites}
    one.store.add_annotator("boss", role="owner")
    risen = one.client().post("/join", data={"token": token})
    own = one.client().post("/join", data={"token": token_of(one, "boss", role="owner")})
    [site.close() for site in sites]
    assert foreign.status_code == 403
    assert "not of this server" in foreign.json()["error"]
    assert risen.status_code == 403, "made for an annotator"
    assert own.status_code == 303
    assert len(cookies) == 2, "one host, two stores: neither signs the other's people out"


def test_a_new_link_voids_the_earlier_ones_and_so_does_being_shut_out(site):
    first, second = token_of(site, "ann"), token_of(site, "ann")
    answer = site.client().post("/join", data={"token": first})
    assert answer.status_code == 403
    assert "does not count any more" in answer.json()["error"]
    access.set_active(site.store.engine, "ann", False)
    access.set_active(site.store.engine, "ann", True)
    assert site.client().post("/join", data={"token": second}).status_code == 403
    link = auth.invited(site.gate, token_of(site, "ann"))
    token_of(site, "ann")
    assert auth.start_session(site.gate, "ann", link=link) is None, "voided between looking and coming in"
    assert site.client().post("/join", data={"token": token_of(site, "ann")}).status_code == 303


@pytest.mark.parametrize(("seconds", "status"), [(-30, 200), (-3600, 403), (8 * 86400, 403)])
def test_a_clock_that_goes_back_a_little_refuses_no_fresh_invitation(site, monkeypatch, seconds, status):
    token = token_of(site, "ann")
    now = time.time() + seconds
    monkeypatch.setattr(time, "time", lambda: now)
    assert site.client().get(f"/join?token={token}").status_code == status


def test_a_password_chosen_at_the_door_opens_it_from_another_device(site):
    site.client().post("/join", data={"token": token_of(site, "dora"), "password": PASSWORD})
    kept = access.person(site.store.engine, "dora").secret_hash
    assert kept.startswith("$argon2id$")
    assert PASSWORD not in kept
    other = site.client()
    wrong = other.post("/signin", data={"name": "dora", "password": PASSWORD + "!"}, headers=PERSON)
    assert wrong.status_code == 403
    assert "Wrong name or password" in wrong.text
    assert other.post("/signin", data={"name": "dora", "password": PASSWORD}).status_code == 303
    assert other.get("/", headers=PERSON).status_code == 200


def test_a_password_that_is_too_short_does_not_use_the_invitation_up(site):
    token = token_of(site, "dora")
    answer = site.client().post("/join", data={"token": token, "password": "short"})
    assert answer.status_code == 400
    assert "10 to 200 characters; this one has 5" in answer.json()["error"]
    assert site.client().post("/join", data={"token": token}).status_code == 303


def test_nobody_without_a_password_signs_in_by_one(site):
    for name in ("ann", "nobody", "a\x00b", "\ud800"):
        answer = site.client().post("/signin", content=b"password=&name=" + name.encode("utf-8", "surrogatepass"),
                                    headers={"content-type": "application/x-www-form-urlencoded"})  # fmt: skip
        assert answer.status_code in (403, 422)


def test_a_new_password_ends_the_sessions_of_the_old_one(site):
    browser = site.client("ann")
    access.set_password_hash(site.store.engine, "ann", auth.hash_password(PASSWORD))
    assert browser.get("/", headers=PERSON).status_code == 303


def test_passwords_are_guessed_a_few_times_only(site, monkeypatch):
    monkeypatch.setattr("rlhf.web.sign_in.password_is_right", lambda *_: False)  # it takes its time by design
    answers = [site.client().post("/signin", data={"name": "ann", "password": f"guess {n}"}) for n in range(12)]
    assert [answer.status_code for answer in answers] == [403] * 10 + [429] * 2
    assert 0 < int(answers[-1].headers["retry-after"]) <= 300
    assert site.client().post("/signin", data={"name": "bob", "password": "x"}).status_code == 403, "others still may"
    monkeypatch.setattr("rlhf.web.sign_in.password_is_right", lambda *_: True)
    elsewhere = TestClient(site.app, base_url="http://127.0.0.1", follow_redirects=False, client=("192.0.2.7", 1))
    for _ in range(12):  # ann herself, from where nobody guessed; and who is right is not counted
        assert elsewhere.post("/signin", data={"name": "ann", "password": "right"}).status_code == 303


def test_no_more_passwords_are_hashed_at_once_than_there_is_memory_for(monkeypatch):
    monkeypatch.setattr(auth, "HASHING_SECONDS", 0.01)
    held = [auth._Turn() for _ in range(auth.MAX_HASHING)]
    [turn.__enter__() for turn in held]
    try:
        with pytest.raises(auth.HTTPException) as refused:
            auth.hash_password(PASSWORD)
    finally:
        [turn.__exit__() for turn in held]
    assert refused.value.status_code == 503
    assert refused.value.headers == {"Retry-After": "5"}


def test_the_cookie_is_kept_from_scripts_and_other_sites(site, tmp_path):
    cookie = site.client().post("/join", data={"token": token_of(site, "ann")}).headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie
    assert "Secure" not in cookie, "by http a browser would not send it back"
    public = Site(tmp_path / "other.db", public_url="https://label.example.org")
    cookie = public.client().post("/join", data={"token": token_of(public, "ann")}).headers["set-cookie"]
    public.close()
    assert cookie.startswith("__Host-rlhf_")
    assert "Secure" in cookie


def test_the_secrets_of_sessions_and_tokens_are_not_in_the_store(site):
    secret = auth.start_session(site.gate, "ann")
    token = access.add_api_token(site.store.engine, "chat")
    site.store.close()
    kept = b"".join(file.read_bytes() for file in key_file(site.store.engine).parent.glob("store.db*"))
    assert b"ann" in kept
    assert secret.encode() not in kept
    assert token.encode() not in kept


def test_signing_out_ends_the_session_on_the_server(site):
    browser = site.client("ann")
    cookies = dict(browser.cookies)
    assert browser.post("/signout").headers["location"] == "/signin"
    thief = site.client()
    thief.cookies.update(cookies)
    assert thief.get("/", headers=PERSON).headers["location"] == "/signin"


def test_whoever_is_shut_out_is_out_at_once_and_their_task_goes_back(site):
    browser = site.client("ann")
    mine = browser.post("/api/next", json={}).json()["task"]["assignment"]
    access.set_active(site.store.engine, "ann", False)
    answer = browser.post("/api/judgments", json={"assignment": mine, "key": "k" * 20, "answer": {"preference": "a"}})
    assert answer.status_code == 401
    assert site.store.next_task("bob").task.id == "t0"
    access.set_active(site.store.engine, "ann", True)
    assert browser.get("/", headers=PERSON).status_code == 303, "an old session does not come back with its holder"


def test_the_last_owner_cannot_be_shut_out(site):
    with pytest.raises(DataError, match=r"'olga'.*only owner"):
        access.set_active(site.store.engine, "olga", False)
    with pytest.raises(DataError, match="nobody called 'zoe'"):
        access.set_active(site.store.engine, "zoe", False)


@pytest.mark.postgres
def test_two_owners_who_shut_each_other_out_at_once_leave_one(postgres_server):
    with PreferenceStore(postgres_server.new_database()) as store:
        for name in ("one", "two"):
            store.add_annotator(name, role="owner")
        for _ in range(5):
            barrier = threading.Barrier(2)

            def shut_out(name, barrier=barrier):
                barrier.wait()
                try:
                    access.set_active(store.engine, name, False)
                except DataError:
                    return 1
                return 0

            with ThreadPoolExecutor(2) as pool:
                assert sum(pool.map(shut_out, ("one", "two"))) == 1
            assert sum(access.person(store.engine, name).active for name in ("one", "two")) == 1
            for name in ("one", "two"):
                access.set_active(store.engine, name, True)


def test_a_session_ends_after_its_time(site):
    secret = access.open_session(site.store.engine, "ann", lasts=timedelta(hours=1))
    now = datetime.now(UTC)
    assert access.holder(site.store.engine, secret, now=now + timedelta(minutes=59)).name == "ann"
    assert access.holder(site.store.engine, secret, now=now + timedelta(minutes=61)) is None
    assert access.holder(site.store.engine, "made up") is None


def test_every_post_carries_the_token_of_its_own_session(site):
    body = {"assignment": 1, "key": "k" * 20, "answer": {"preference": "a"}}
    without = site.client("ann", with_token=False)
    for path in ("/api/judgments", "/api/skip", "/api/next", "/api/undo", "/signout"):
        assert without.post(path, json=body).status_code == 403, path
    foreign = site.client("ann", with_token=False)
    foreign.headers["X-CSRF-Token"] = site.client("bob").headers["X-CSRF-Token"]
    assert foreign.post("/api/next", json={}).status_code == 403
    own = site.client("ann")
    assert own.post("/api/next", json={}).status_code == 200
    by_form = site.client("ann", with_token=False)
    token = site.gate.csrf_token(by_form.cookies[site.gate.cookie])
    assert by_form.post("/signout", data={"csrf_token": token}).status_code == 303


@pytest.mark.parametrize(
    "headers", [{"Origin": "http://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}]
)
def test_what_another_site_makes_a_browser_send_is_not_done(site, headers):
    assert site.client("ann").post("/api/next", json={}, headers=headers).status_code == 403
    assert site.client().post("/join", data={"token": token_of(site, "ann")}, headers=headers).status_code == 403
    assert site.client("ann").post("/api/next", json={}, headers={"Origin": "http://127.0.0.1"}).status_code == 200


def test_whoever_sends_too_much_is_told_when_to_go_on(tmp_path):
    site = Site(tmp_path / "s.db", calls="3/minute")
    browser, other = site.client("ann"), site.client("bob")
    statuses = [browser.post("/api/next", json={}).status_code for _ in range(4)]
    last = browser.post("/api/next", json={})
    free = other.post("/api/next", json={}).status_code
    site.close()
    assert statuses == [200, 200, 200, 429]
    assert 0 < int(last.headers["retry-after"]) <= 60
    assert free == 200


def test_the_signing_key_is_its_owners_alone_and_the_same_next_time(tmp_path):
    with PreferenceStore(tmp_path / "s.db") as store:
        key = signing_key(store.engine)
        assert signing_key(store.engine) == key
        file = key_file(store.engine)
        assert file == tmp_path / "s.db.key"
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert len(key) == KEY_BYTES
        assert not list(tmp_path.glob(".*tmp"))
        file.chmod(0o644)  # a copy, say
        assert signing_key(store.engine) == key
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        file.write_bytes(b"short")
        with pytest.raises(StorageError, match="5 bytes"):
            signing_key(store.engine)


@pytest.mark.postgres
def test_another_folders_key_signs_no_link_of_a_store_on_a_server(postgres_server, tmp_path, monkeypatch):
    served, elsewhere = tmp_path / "served", tmp_path / "elsewhere"
    [folder.mkdir() for folder in (served, elsewhere)]
    with PreferenceStore(postgres_server.new_database()) as store:
        monkeypatch.chdir(served)
        key = signing_key(store.engine)
        made_at = re.escape(str(served / "rlhf-annotation.key"))
        monkeypatch.chdir(elsewhere)
        with pytest.raises(ConfigError, match=rf"\S+:{made_at}.*elsewhere"):
            invitation_link(store, "dora")
        assert list(elsewhere.iterdir()) == [], "no second key is made"
        Path("rlhf-annotation.key").write_bytes(bytes(KEY_BYTES))
        with pytest.raises(ConfigError, match=r"elsewhere/rlhf-annotation\.key"):
            invitation_link(store, "dora")
        assert access.person(store.engine, "dora") is None
        shutil.copy(served / "rlhf-annotation.key", elsewhere)
        assert signing_key(store.engine) == key
        with writing(store.engine) as session:  # what the sentence says to do where the key is lost
            session.execute(sa.text(f"DELETE FROM settings WHERE name = '{access.SIGNING_KEY}'"))
        Path("rlhf-annotation.key").unlink()
        assert signing_key(store.engine) != key
        with reading(store.engine) as session:
            kept = str([row.value for row in session.scalars(sa.select(SettingRow))])
        assert signing_key(store.engine).hex() not in kept


def test_settings_that_mean_nothing_are_refused():
    with pytest.raises(ConfigError, match="such as 10/minute"):
        WebSettings(calls="often")
    with pytest.raises(ConfigError, match="only scheme and host"):
        WebSettings(public_url="label.example.org/path")
    assert WebSettings(host="::1", port=7).base_url == "http://[::1]:7"
    assert WebSettings(public_url="https://label.example.org/").base_url == "https://label.example.org"
