from __future__ import annotations

import json

import pytest

from rlhf.errors import ConfigError
from rlhf.store import access
from rlhf.web import events
from tests.fixtures.annotation_site import Site

MADE = {"prompt": "Hi", "completion_id": "cmpl-1", "model": "m-7", "sampling": {"temperature": 0.7}}
THUMBS = {"key": "e1", "kind": "thumbs", "up": False, "completion": "Hello.", **MADE}
EDIT = {"key": "e2", "kind": "edit", "completion": "Helo.", "edited": "Hello.", **MADE}
REGENERATE = {"key": "e3", "kind": "regenerate", "next_completion_id": "cmpl-2", **MADE}
VOTE = {"key": "e4", "kind": "vote", "completion_a": "Hi.", "completion_b": "Ho.", "preference": "b", "completion_id_b": "cmpl-3",
        "model_b": "m-8", "shown_first": "b", **MADE}  # fmt: skip

RATING = {
    "key": "e5",
    "kind": "rating",
    "completion": "Hello.",
    "scale": [1, 5],
    "rating": 4,
    "comment": "Nearly.",
    "consent": True,
    **MADE,
}
RED_TEAM = {
    "key": "e6",
    "kind": "red_team",
    "completion": "Sure!",
    "harm": 3,
    "category": "hate",
    "better": "No.",
    **MADE,
}


@pytest.fixture
def program(site):
    client = site.client()
    client.headers["authorization"] = f"Bearer {access.add_api_token(site.store.engine, 'chat')}"
    return client


@pytest.mark.parametrize("event", [THUMBS, EDIT, REGENERATE, VOTE, RATING, RED_TEAM], ids=lambda event: event["kind"])
def test_each_kind_is_kept_with_where_it_came_from(site, program, event):
    answer = program.post("/api/events", json=event)
    assert answer.status_code == 201, answer.text
    (row,) = site.store.events()
    assert [row.number] == answer.json()["numbers"]
    assert (row.kind, row.key, row.completion_id, row.model) == (event["kind"], event["key"], "cmpl-1", "m-7")
    own = {name: value for name, value in event.items() if name not in ("kind", "key", "completion_id", "model")}
    assert own.items() <= row.content.items()
    assert row.content["program"] == "chat"


@pytest.mark.parametrize(
    ("event", "change", "named"),
    [
        (RATING, {"rating": 6}, "rating"), (RATING, {"rating": True}, "rating"), (RATING, {"rating": "4"}, "rating"),
        (RATING, {"scale": [5, 1]}, "scale"), (RATING, {"scale": [1]}, "scale"), (RATING, {"scale": None}, "scale"),
        (RED_TEAM, {"harm": 5}, "harm"), (RED_TEAM, {"harm": 1.5}, "harm"), (RED_TEAM, {"category": ""}, "category"),
        (THUMBS, {"consent": "yes"}, "consent"), (THUMBS, {"consent": 1}, "consent"),
    ],
)  # fmt: skip
def test_numbers_are_on_their_scale_and_consent_is_true_or_false(site, program, event, change, named):
    answer = program.post("/api/events", json={**event, **change})
    assert answer.status_code == 422
    assert answer.json()["error"].startswith(f"`{named}` ")
    assert site.store.events() == []


def test_what_is_sent_again_is_kept_once_and_what_comes_late_says_when_it_was(site, program):
    late = {**THUMBS, "happened_at": "2026-01-02T03:04:05+01:00"}
    first, again = (program.post("/api/events", json=late).json() for _ in range(2))
    assert first == again
    (row,) = site.store.events()
    assert row.content["happened_at"] == "2026-01-02T03:04:05+01:00"
    assert row.made_at.year >= 2026


def test_many_come_in_one_request_and_about_completions_nobody_knows(site, program):
    answer = program.post("/api/events", json=[THUMBS, EDIT, {**REGENERATE, "completion_id": "never heard of"}, THUMBS])
    numbers = answer.json()["numbers"]
    assert numbers[0] == numbers[3]
    assert len(site.store.events()) == 3
    thought_better = {**THUMBS, "key": "e9", "up": True}
    program.post("/api/events", json=thought_better)
    assert [
        row.content["up"] for row in site.store.events() if row.completion_id == "cmpl-1" and row.kind == "thumbs"
    ] == [False, True]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"kind": "thumb"}, "`kind` is a string ('thumb'); wanted thumbs, rating, edit, regenerate, vote, red_team. Did you mean 'thumbs'?"),
        ({"kind": None}, "`kind` is null; wanted thumbs, rating, edit, regenerate, vote, red_team."),
        ({"up": "perhaps"}, "`up` is a string ('perhaps'); wanted true or false."),
        ({"promt": "x"}, "'promt' is not a key of 'thumbs'. Did you mean 'prompt'? Known: key, completion_id, "),
        ({"key": ""}, "`key` is a string (''); wanted 1 to 64 printable ASCII characters without spaces."),
        ({"key": "with space"}, "`key` is a string ('with space'); wanted 1 to 64 printable"),
        ({"completion_id": "c" * 256}, "`completion_id` is a text of 256 characters; wanted 1 to 255 characters"),
        ({"completion_id": "a\x00b"}, "`completion_id` is a string ("),
        ({"happened_at": "2026-01-02T03:04:05"}, "`happened_at` is a string ('2026-01-02T03:04:05'); wanted a time with its zone"),
        ({"prompt": []}, "`prompt` is a list ([]); wanted a text of at most 200,000 characters, or a list of 1 to 1,000 messages"),
        ({"prompt": [{"role": "user"}]}, "`prompt` is a list ("),
        ({"up": None, "key": "k" * 65}, "wanted 1 to 64 printable ASCII characters without spaces. `up` is null; wanted true or false."),
    ],
)  # fmt: skip
def test_what_is_no_event_is_refused_by_name_and_nothing_is_kept(site, program, change, words):
    answer = program.post("/api/events", json={**THUMBS, **change})
    assert answer.status_code == 422
    assert words in answer.json()["error"]
    assert not {"Input", "pattern", "constrained", "tag", "literal"} & set(answer.json()["error"].split()), (
        "pydantic's words"
    )
    assert site.store.events() == []


def test_every_fault_of_a_list_is_told_with_its_event_and_what_is_missing_is_named(site, program):
    without = {name: value for name, value in THUMBS.items() if name not in ("up", "key")}
    answer = program.post("/api/events", json=[EDIT, without, 7, {**VOTE, "preference": "c"}])
    assert answer.status_code == 422
    assert answer.json()["error"] == (
        "Event 2: `key` is missing; wanted 1 to 64 printable ASCII characters without spaces. "
        "Event 2: `up` is missing; wanted true or false. "
        "Event 3: it is a number (7); wanted an object with `key` and `kind`. "
        "Event 4: `preference` is a string ('c'); wanted 'a', 'b' or 'tie'."
    )
    assert site.store.events() == []
    answer = program.post("/api/events", json=[{"kind": "thumbs"}] * 30)
    assert answer.json()["error"].endswith(" And 40 more.")


def test_every_key_of_an_event_has_words_for_what_it_holds():
    keys = {name for model in events.KINDS.values() for name in model.model_fields}
    assert keys == set(events.WANTED) | {"kind"}


def test_one_bad_event_of_a_list_keeps_out_all_of_it(site, program):
    assert program.post("/api/events", json=[EDIT, {**THUMBS, "up": None}]).status_code == 422
    assert program.post("/api/events", json=[]).status_code == 422
    assert program.post("/api/events", json=[{**THUMBS, "key": f"k{n}"} for n in range(101)]).status_code == 422
    assert site.store.events() == []


def test_programs_choose_their_keys_without_knowing_of_each_other(site, program):
    other = site.client()
    other.headers["authorization"] = f"Bearer {access.add_api_token(site.store.engine, 'search')}"
    first = program.post("/api/events", json=THUMBS).json()
    second = other.post("/api/events", json={**THUMBS, "up": True}).json()
    assert first != second
    assert [(row.program, row.content["up"]) for row in site.store.events()] == [("chat", False), ("search", True)]


@pytest.mark.parametrize("change", [{"up": True}, {"model": "m-8"}, {"completion_id": "cmpl-2"}])
def test_a_key_used_for_another_event_is_told_and_nothing_of_that_request_is_kept(site, program, change):
    program.post("/api/events", json=THUMBS)
    answer = program.post("/api/events", json=[EDIT, {**THUMBS, **change}])
    assert answer.status_code == 409
    assert "The key 'e1' was used for another event" in answer.json()["error"]
    assert [row.key for row in site.store.events()] == ["e1"]


@pytest.mark.parametrize("sampling", [{"a": "\ud800"}, {"a": [{"b": "x\udfff"}]}])
def test_half_a_character_is_refused_before_it_breaks_every_export(site, program, sampling):
    sent = json.dumps([EDIT, {**THUMBS, "sampling": sampling}])
    answer = program.post("/api/events", content=sent, headers={"content-type": "application/json"})
    assert answer.status_code == 400
    assert "The event 'e1' holds half a character" in answer.json()["error"]
    assert site.store.events() == []


@pytest.mark.parametrize("header", [None, "Bearer", "Bearer ", "Bearer rlhf_made_up", "Basic YTpi", "Bearer \xff"])
def test_without_a_token_nothing_is_kept(site, header):
    headers = {} if header is None else {"authorization": header.encode("latin-1")}
    answer = site.client().post("/api/events", json=THUMBS, headers=headers)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert site.store.events() == []


def test_somebody_signed_in_sends_no_events(site):
    assert site.client("olga").post("/api/events", json=THUMBS).status_code == 401


def test_a_new_token_of_a_name_ends_the_old_one_and_a_revoked_one_ends(site, program):
    engine = site.store.engine
    new = access.add_api_token(engine, "chat")
    assert program.post("/api/events", json=THUMBS).status_code == 401
    program.headers["authorization"] = f"Bearer {new}"
    assert program.post("/api/events", json=THUMBS).status_code == 201
    access.revoke_api_token(engine, "chat")
    assert program.post("/api/events", json=THUMBS).status_code == 401
    assert [(name, works) for name, works, _ in access.api_tokens(engine)] == [("chat", False)]


def test_a_program_that_sends_too_much_is_told_when_to_go_on(tmp_path):
    site = Site(tmp_path / "s.db", events="2/minute")
    headers = {"authorization": f"Bearer {access.add_api_token(site.store.engine, 'chat')}"}
    answers = [site.client().post("/api/events", json={**THUMBS, "key": f"k{n}"}, headers=headers) for n in range(3)]
    site.close()
    assert [answer.status_code for answer in answers] == [201, 201, 429]
    assert 0 < int(answers[2].headers["retry-after"]) <= 60


def test_a_token_that_is_for_something_else_sends_no_events(site):
    for scopes, status in ((["completions"], 403), (["completions", "feedback"], 201)):
        token = access.add_api_token(site.store.engine, "chat", scopes=scopes)
        answer = site.client().post("/api/events", json=THUMBS, headers={"authorization": f"Bearer {token}"})
        assert answer.status_code == status


@pytest.mark.parametrize(
    ("what", "named"), [({"scopes": ["feedbak"]}, "feedback"), ({"requests": "often"}, "60/minute")]
)
def test_scopes_and_limits_that_are_none_are_refused_when_the_token_is_made(site, what, named):
    with pytest.raises(ConfigError, match=named):
        access.add_api_token(site.store.engine, "chat", **what)


def test_any_text_that_is_text_can_be_kept(place):
    site = Site(place)
    headers = {"authorization": f"Bearer {access.add_api_token(site.store.engine, 'chat')}"}
    odd = "nul \x00, ünï 🦎, </script>, '; DROP TABLE events; --"
    turns = [{"role": "user", "content": odd}]
    answer = site.client().post("/api/events", json={**EDIT, "prompt": turns, "edited": odd}, headers=headers)
    kept = [(row.content["prompt"], row.content["edited"]) for row in site.store.events()]
    site.close()
    assert answer.status_code == 201, answer.text
    assert kept == [(turns, odd)]


def test_the_schema_says_what_an_event_is(site):
    schema = site.client().get("/api/events/schema").json()
    assert set(schema["discriminator"]["mapping"]) == set(events.KINDS)
    assert "weak evidence" in schema["$defs"]["Regenerate"]["description"]
    assert "kept once" in schema["$defs"]["Thumbs"]["properties"]["key"]["description"] or "changes nothing" in str(
        schema
    )
