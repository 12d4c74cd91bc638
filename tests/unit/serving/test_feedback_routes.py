"""Feedback that names only a completion's id, from the answer to rows for training."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from fastapi.testclient import TestClient

from rlhf.config.serving import ServingConfig
from rlhf.data.read import read_rows
from rlhf.errors import StorageError
from rlhf.feedback.forget import forget
from rlhf.feedback.production import rows_of_events
from rlhf.feedback.rating_rows import RatingRules
from rlhf.serving import create_app
from rlhf.serving.model_routes import Source
from rlhf.store import PreferenceStore, access
from rlhf.store.served_completions import drop_old, programs_served, served_completion
from tests.fixtures.tiny import build_tokenizer
from tests.unit.serving.conftest import build_model

CHAT, FEEDBACK = "/v1/chat/completions", "/v1/feedback"
MESSAGES = [{"role": "user", "content": "Once upon a time"}]


@pytest.fixture(scope="module")
def folder(tokenizer, tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("served") / "tiny"
    build_model(tokenizer).policy.save_pretrained(path)
    return str(path)


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> Iterator[PreferenceStore]:
    with PreferenceStore(tmp_path_factory.mktemp("kept") / "feedback.db") as opened:
        yield opened


@pytest.fixture(scope="module")
def site(folder, store) -> Iterator[TestClient]:
    app = create_app(models={"tiny": Source(folder)}, config=ServingConfig(compiled=False), feedback_store=store)
    with TestClient(app) as client:
        yield client


def ask(site: TestClient, **keys: Any) -> Any:
    body = {"model": "tiny", "max_tokens": 5, "seed": 1, "messages": MESSAGES, "ignore_eos": True, **keys}
    return site.post(CHAT, json=body)


def answer(site: TestClient, **keys: Any) -> dict[str, Any]:
    sent = ask(site, **keys)
    assert sent.status_code == 200, sent.text
    return sent.json()


def say(site: TestClient, key: str, kind: str, completion_id: str | None, **more: Any) -> Any:
    return site.post(FEEDBACK, json={"key": key, "kind": kind, "completion_id": completion_id, **more})


def event_of(store: PreferenceStore, sent: Any) -> Any:
    assert sent.status_code == 201, sent.text
    (name,) = sent.json()["ids"]
    return next(event for event in store.events() if f"event-{event.number}" == name)


def test_a_thumb_by_id_becomes_a_row_with_texts_weights_and_sampling(site, store):
    given = answer(site, temperature=0.7, user="ann")
    weights = site.get("/v1/models").json()["data"][0]["fingerprint"]
    event = event_of(store, say(site, "t1", "thumbs", given["id"], up=True, comment="good"))
    (row,) = rows_of_events([event]).rows
    assert (row["prompt"], row["completion"]) == (MESSAGES, given["choices"][0]["message"]["content"])
    assert (row["label"], row["model"], row["weights"], row["index"]) == (True, "tiny", weights, 0)
    assert (row["sampling"]["temperature"], row["sampling"]["seed"], row["sampling"]["max_new_tokens"]) == (0.7, 1, 5)
    assert row["annotator_id"].startswith("user:serve:user-")
    assert "ann" not in json.dumps(event.content).replace("annotator", "")
    assert datetime.fromisoformat(row["answered_at"]) <= datetime.now(UTC)
    assert [one.kind for one in read_rows([row])] == ["unpaired"]


def test_a_streamed_completion_is_kept_before_its_end_is_told(site, store):
    seen: list[Any] = []
    with site.stream(
        "POST", CHAT, json={"model": "tiny", "messages": MESSAGES, "max_tokens": 4, "stream": True}
    ) as stream:
        for line in stream.iter_lines():
            if line.startswith("data: {"):
                chunk = json.loads(line[6:])
                if chunk["choices"][0]["finish_reason"]:
                    seen.append(served_completion(store.engine, chunk["id"], 0, program="serve"))
    assert len(seen) == 1
    assert seen[0] is not None


def test_several_completions_of_a_request_are_told_apart_and_voted_on(site, store):
    given = answer(site, n=2, seed=3)
    vote = {"completion_id_b": given["id"], "index_b": 1, "preference": "b", "shown_first": "b"}
    event = event_of(store, say(site, "v1", "vote", given["id"], **vote))
    (row,) = rows_of_events([event]).rows
    texts = [choice["message"]["content"] for choice in given["choices"]]
    assert [row["completion_a"], row["completion_b"]] == texts
    assert (row["preference"], row["shown_first"], row["weights_a"]) == ("b", "b", row["weights_b"])
    assert event.content["index_b"] == 1
    same = say(site, "v2", "vote", given["id"], completion_id_b=given["id"], preference="a")
    assert (same.status_code, same.json()["error"]["param"]) == (400, "completion_id_b")


def test_an_edit_and_a_regeneration_become_pairs(site, store):
    first, second = answer(site, seed=5), answer(site, seed=6)
    edit = event_of(store, say(site, "e1", "edit", first["id"], edited="A better end."))
    again = event_of(store, say(site, "r1", "regenerate", first["id"], next_completion_id=second["id"]))
    rows = rows_of_events([edit, again], regenerate_probability=0.6).rows
    text = [one["choices"][0]["message"]["content"] for one in (first, second)]
    assert [(row["chosen"], row["rejected"]) for row in rows] == [("A better end.", text[0]), (text[1], text[0])]
    assert all(row["rejected_weights"] for row in rows)
    other = answer(site, messages=[{"role": "user", "content": "Another"}])
    refused = say(site, "r2", "regenerate", first["id"], next_completion_id=other["id"])
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_value")


def test_a_repeated_event_is_kept_once_and_a_corrected_one_counts(site, store):
    given = answer(site, seed=8)
    first = say(site, "k1", "thumbs", given["id"], up=True)
    assert say(site, "k1", "thumbs", given["id"], up=True).json() == first.json()
    taken = say(site, "k1", "thumbs", given["id"], up=False)
    assert (taken.status_code, taken.json()["error"]["code"]) == (409, "key_taken")
    assert taken.json()["error"]["type"] == "invalid_request_error"
    say(site, "k2", "thumbs", given["id"], up=False)
    mine = [event for event in store.events() if event.completion_id == given["id"]]
    assert [row["label"] for row in rows_of_events(mine).rows] == [False]


def test_events_of_a_list_are_kept_all_or_none_and_counted(site, store):
    given, before = answer(site), len(store.events())
    one = {"kind": "thumbs", "completion_id": given["id"], "up": True}
    wrong = site.post(FEEDBACK, json=[{**one, "key": "l1"}, {**one, "key": "l2", "completion_id": "nobody"}])
    assert (wrong.status_code, len(store.events())) == (404, before)
    assert len(site.post(FEEDBACK, json=[{**one, "key": "l1"}, {**one, "key": "l2"}]).json()["ids"]) == 2
    number = [
        line for line in site.get("/metrics").text.splitlines() if line.startswith('rlhf:feedback_total{kind="thumbs"}')
    ]
    assert float(number[0].split()[-1]) >= 2


@pytest.mark.parametrize(
    ("sent", "status", "code", "param"),
    [
        ({"completion_id": "chatcmpl-x"}, 404, "completion_not_found", "completion_id"),
        ({"completion_id": "\ud800"}, 404, "completion_not_found", "completion_id"),
        ({"completion_id": None}, 400, "missing_required_parameter", "completion_id"),
        ({"completion_id": 7}, 400, "invalid_value", "completion_id"),
        ({"index": -1}, 400, "invalid_value", "index"),
        ({"index": 1}, 404, "completion_not_found", "completion_id"),
        ({"index": 10**30}, 400, "invalid_value", "index"),
        ({"completion": "mine"}, 400, "unknown_parameter", "completion"),
        ({"up": "yes, please"}, 400, "invalid_value", None),
        ({"kind": "thumb"}, 400, "invalid_value", None),
        ({"kind": ["thumbs"]}, 400, "invalid_value", None),
        ({"key": ""}, 400, "invalid_value", None),
        ({"stars": 5}, 400, "invalid_value", None),
    ],
)  # fmt: skip
def test_what_is_wrong_is_refused_in_the_apis_form_and_not_kept(site, store, sent, status, code, param):
    given, before = answer(site), len(store.events())
    body = {"key": "w", "kind": "thumbs", "completion_id": given["id"], "up": True, **sent}
    refused = site.post(FEEDBACK, content=json.dumps(body), headers={"Content-Type": "application/json"})
    error = refused.json()["error"]
    assert (refused.status_code, error["code"], error["param"]) == (status, code, param)
    assert len(store.events()) == before


@pytest.mark.parametrize("sent", ["[]", '"thumbs"', "null", "[1]"])
def test_what_is_no_event_is_refused(site, sent):
    assert site.post(FEEDBACK, content=sent, headers={"Content-Type": "application/json"}).status_code == 400


def test_a_page_of_another_site_can_send_none(site):
    given = answer(site)
    body = {"key": "x", "kind": "thumbs", "completion_id": given["id"], "up": True}
    for header in ({"Sec-Fetch-Site": "cross-site"}, {"Origin": "https://evil.example"}):
        assert site.post(FEEDBACK, json=body, headers=header).json()["error"]["code"] == "cross_site"
    assert site.post(FEEDBACK, json=body, headers={"Origin": "http://testserver"}).status_code == 201


def test_a_store_that_fails_answers_503_and_completions_go_on(site, store, monkeypatch):
    given = answer(site)

    def fail(*_: Any, **__: Any) -> None:
        raise StorageError("the disk is full")

    monkeypatch.setattr(store, "add_events", fail)
    refused = say(site, "f", "thumbs", given["id"], up=True)
    assert (refused.status_code, refused.headers["Retry-After"]) == (503, "2")
    monkeypatch.setattr("rlhf.serving.completion_memory.keep_completions", fail)
    assert say(site, "f", "thumbs", answer(site)["id"], up=True).status_code == 404
    assert "rlhf:completions_not_kept_total 1.0" in site.get("/metrics").text


@pytest.mark.parametrize("key", ["user", "safety_identifier"])
def test_forgetting_a_user_takes_their_completions_and_all_that_was_said_of_them(site, store, key):
    mine, other = answer(site, **{key: "cem"}), answer(site, **{key: "dana"})
    first, second = f"{key}-1", f"{key}-2"
    event_of(store, say(site, first, "thumbs", mine["id"], up=True))
    event_of(store, say(site, second, "thumbs", mine["id"], up=False, user="somebody"))  # it carries cem's texts, too
    kept = event_of(store, say(site, f"{key}-3", "thumbs", other["id"], up=True))
    found = forget(store, "cem")
    assert (len(found.held.completions), len(found.held.events)) == (1, 2)
    assert served_completion(store.engine, mine["id"], 0, program="serve") is None
    assert kept.number in {event.number for event in store.events()}
    assert not {first, second} & {event.key for event in store.events()}


def test_completions_that_are_too_old_are_deleted_and_their_events_stay(site, store):
    given = answer(site)
    event = event_of(store, say(site, "old", "thumbs", given["id"], up=True))
    assert drop_old(store.engine, days=1) == 0
    assert drop_old(store.engine, days=1, now=datetime.now(UTC) + timedelta(days=2)) >= 1
    assert not programs_served(store.engine)
    assert say(site, "old2", "thumbs", given["id"], up=True).status_code == 404
    assert len(rows_of_events([event]).rows) == 1


def test_without_a_store_nothing_is_kept_and_feedback_is_refused(folder):
    with TestClient(create_app(models={"tiny": Source(folder)}, config=ServingConfig(compiled=False))) as bare:
        refused = say(bare, "n", "thumbs", answer(bare)["id"], up=True)
        assert (refused.status_code, refused.json()["error"]["code"]) == (404, "feedback_not_kept")


def test_a_key_speaks_of_its_own_completions_only(folder, store):
    keys = {name: {"Authorization": f"Bearer {access.add_api_token(store.engine, name)}"} for name in ("one", "two")}
    app = create_app(
        models={"tiny": Source(folder)}, config=ServingConfig(compiled=False), feedback_store=store, key_store=store
    )
    with TestClient(app) as site:
        body = {"model": "tiny", "messages": MESSAGES, "max_tokens": 3}
        given = site.post(CHAT, json=body, headers=keys["one"]).json()
        event = {"key": "p", "kind": "thumbs", "completion_id": given["id"], "up": True}
        assert [site.post(FEEDBACK, json=event, headers=keys[name]).status_code for name in ("two", "one")] == [
            404,
            201,
        ]
        assert site.post(FEEDBACK, json=event).status_code == 401


def test_template_arguments_stay_with_the_messages(site, store):
    given = answer(site, chat_template_kwargs={"short": True})
    (row,) = rows_of_events([event_of(store, say(site, "m1", "thumbs", given["id"], up=True))]).rows
    assert (row["prompt"], row["chat_template_kwargs"]) == (MESSAGES, {"short": True})


def test_a_model_without_a_chat_template_keeps_the_text_that_it_was_given(tmp_path, store):
    model = build_model(build_tokenizer())
    model.tokenizer.chat_template = None
    model.policy.save_pretrained(tmp_path / "plain")
    app = create_app(
        models={"tiny": Source(str(tmp_path / "plain"))}, config=ServingConfig(compiled=False), feedback_store=store
    )
    with TestClient(app) as site:
        given = answer(site, messages=[*MESSAGES, {"role": "user", "content": "there was"}])
        (row,) = rows_of_events([event_of(store, say(site, "m2", "thumbs", given["id"], up=True))]).rows
    assert row["prompt"] == "Once upon a time\nthere was"
    assert [one.kind for one in read_rows([row])] == ["unpaired"]


def test_a_rating_by_id_and_an_attempt_become_rows(site, store):
    first, second = answer(site, seed=11, user="eve"), answer(site, seed=12, user="eve")
    rated = [
        event_of(store, say(site, f"q{n}", "rating", one["id"], scale=[1, 5], rating=n, comment="words"))
        for n, one in ((1, first), (4, second))
    ]
    (pair,) = rows_of_events(rated, ratings=RatingRules(min_difference=2)).rows
    assert pair["chosen"] == second["choices"][0]["message"]["content"]
    assert pair["rejected_weights"] == pair["chosen_weights"] != ""
    attempt = event_of(store, say(site, "q5", "red_team", first["id"], harm=4, category="hate", better="No."))
    (row,) = rows_of_events([attempt]).rows
    assert (row["chosen"], row["rejected"]) == ("No.", first["choices"][0]["message"]["content"])
    forget(store, "eve")
    assert not {one.number for one in (*rated, attempt)} & {event.number for event in store.events()}


def test_consent_of_a_request_is_in_its_rows_and_what_is_refused_is_not_kept(site, store):
    agreed, silent, refused = answer(site, consent=True), answer(site), answer(site, consent=False)
    assert say(site, "c0", "thumbs", refused["id"], up=True).json()["error"]["code"] == "completion_not_found"
    events = [
        event_of(store, say(site, f"c{n}", "thumbs", one["id"], up=True)) for n, one in ((1, agreed), (2, silent))
    ]
    assert [row.get("consent") for row in rows_of_events(events).rows] == [True, None]
    both = event_of(store, say(site, "c3", "vote", agreed["id"], completion_id_b=silent["id"], preference="a"))
    assert "consent" not in both.content, "one of two agreed"
    back = event_of(store, say(site, "c4", "thumbs", agreed["id"], up=True, consent=False))
    assert rows_of_events([back]).rows == []
    assert ask(site, consent="yes").json()["error"]["param"] == "consent"


def test_a_server_that_needs_consent_keeps_what_was_agreed_to_only(folder, store):
    config = ServingConfig(compiled=False, consent="required")
    with TestClient(create_app(models={"tiny": Source(folder)}, config=config, feedback_store=store)) as site:
        given = [answer(site), answer(site, consent=True)]
        codes = [say(site, f"n{n}", "thumbs", one["id"], up=True).status_code for n, one in enumerate(given)]
    assert codes == [404, 201]
