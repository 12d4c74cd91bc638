"""Secrets and personal data are found by kind and place, masked or refused, and their values are never told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlhf.errors import ConfigError, DataError
from rlhf.feedback.personal_data import FINDERS, PersonalData
from rlhf.feedback.trace_imports import ALIKE, TraceRules, read_traces
from rlhf.store.pseudonyms import pseudonyms

FILES = Path(__file__).parents[2] / "fixtures" / "traces"

VALUES = {
    "secret": ["AKIAIOSFODNN7EXAMPLQ", "ghp_" + "wWPw5k4aXcaT4fNP0UcnZwJUVFk6LO0pINUx", "sk_live_" + "ReTllpYQYfIZu2Jnf2lAPFjD",
               'password = "hunter2-hunter2"'],
    "email": ["ann.smith+x@mail.example.org"],
    "phone": ["+49 30 901820", "+1 (212) 555-0123"],
    "card": ["4111 1111 1111 1111", "5500005555555559"],
    "iban": ["DE89 3704 0044 0532 0130 00", "GB82WEST12345698765432"],
    "ssn": ["536-90-4399"],
    "ip": ["8.8.8.8", "2001:4860:4860::8888"],
}  # fmt: skip
HARMLESS = [
    "Order 4711 of 2024-05-06 costs 1,234.56 and 1234567890123456 is no card.", "192.168.0.1 and 10.0.0.1 and 127.0.0.1 are private.",
    "version 1.2.3.4.5 and 12:30:45 o'clock", "a@b, @here, c++ and x = y@z", "The hash is d41d8cd98f00b204e9800998ecf8427e.",
    "call +1 or 110", "000-12-3456 is no number", "See https://example.org/a?b=c#d", "Ännchen: München, 北京", "",
]  # fmt: skip


@pytest.mark.parametrize("kind", FINDERS)
def test_values_of_each_kind_are_masked_and_counted(kind):
    for value in VALUES[kind]:
        guard = PersonalData("mask")
        text = guard.text(f"Before {value} after.\nNext line.", "f:1")
        hidden = value.split('"')[1] if '"' in value else value
        assert hidden not in text, value
        assert f"[{kind}]" in text, value
        assert text.endswith("after.\nNext line."), value
        assert guard.findings.counts[kind] >= 1
        assert guard.findings.places[kind] == ["f:1"]
        assert hidden not in json.dumps([guard.findings.lines(), guard.findings.to_dict()])


@pytest.mark.parametrize("text", HARMLESS)
def test_what_is_harmless_stays(text):
    guard = PersonalData("mask")
    assert guard.text(text, "f:1") == text
    assert not guard.findings.counts


def test_a_private_key_goes_as_a_whole():
    key = "-----BEGIN RSA PRIVATE KEY-----\nMIIEow\nIBAAKC\n-----END RSA PRIVATE KEY-----"
    assert PersonalData("mask").text(f"x\n{key}\ny", "f:1") == "x\n[secret]\ny"


def test_an_unknown_action_is_refused_by_name():
    with pytest.raises(ConfigError, match="shred"):
        PersonalData("shred")


def feedback(path, **message):
    chat = {
        "u": {"id": "u", "parentId": None, "childrenIds": ["a"], "role": "user", "content": "Write to ann@example.org.", **message},
        "a": {"id": "a", "parentId": "u", "childrenIds": [], "role": "assistant", "content": "The key AKIAIOSFODNN7EXAMPLQ.", "model": "m"},
    }  # fmt: skip
    row = {
        "id": "f", "user_id": "ann", "type": "rating", "data": {"rating": 1, "comment": "Or +49 30 901820"},
        "meta": {"message_id": "a", "chat_id": "c"}, "snapshot": {"chat": {"chat": {"history": {"messages": chat}}}}, "updated_at": 1764000000,
    }  # fmt: skip
    path.write_text(json.dumps([row]))
    return path


def test_an_import_is_refused_with_counts_and_places_and_without_values(tmp_path):
    with pytest.raises(DataError) as err:
        read_traces("open-webui", feedback(tmp_path / "f.json"), rules=TraceRules(), pseudonym=pseudonyms(b"k"))
    told = str(err.value)
    assert all(word in told for word in ("email: 1", "secret: 1", "phone: 1", "row 1", "--personal-data mask"))
    assert not any(value in told for value in ("ann@", "AKIA", "901820"))


def test_masking_reaches_prompts_completions_and_comments(tmp_path):
    rules = TraceRules(personal_data="mask")
    traces = read_traces("open-webui", feedback(tmp_path / "f.json"), rules=rules, pseudonym=pseudonyms(b"k"))
    (item,) = traces.items
    assert item.task.prompt[0]["content"] == "Write to [email]."
    assert item.task.responses[0].text[0]["content"] == "The key [secret]."
    assert item.judgments[0].comment == "Or [phone]"
    kept = read_traces(
        "open-webui", tmp_path / "f.json", rules=TraceRules(personal_data="keep"), pseudonym=pseudonyms(b"k")
    )
    assert "ann@example.org" in kept.items[0].task.prompt[0]["content"]
    assert kept.findings.counts.total() == 3


def test_numbers_and_names_of_fields_are_looked_at_too():
    guard = PersonalData("mask")
    assert guard.value({"card": 4111111111111111, "at": 1764000000123, "ok": True}, "f:1") == {
        "card": "[card]", "at": 1764000000123, "ok": True,
    }  # fmt: skip
    assert guard.value({"a@b.org": 1, "c@d.org": 2}, "f:1") == {"[email]": 1, "[email]_": 2}


@pytest.mark.parametrize(
    "arguments",
    [
        '{"card": 4111111111111111, "n": [1, {"mail": "a@b.org"}]}',
        "[4111111111111111]",
        '{"a@b.org": 4111111111111111}',
    ],
)
def test_arguments_of_a_tool_call_stay_json(arguments):
    masked = PersonalData("mask").value({"arguments": arguments}, "f:1")["arguments"]
    assert "4111" not in masked
    assert "a@b" not in masked
    assert "[card]" in str(json.loads(masked))


def test_answers_that_are_alike_once_masked_are_no_pair(tmp_path):
    chat = json.loads((FILES / "open-webui.json").read_text())
    texts = json.dumps(chat).replace('"Grass."', '"Write to a@b.org"').replace('"Meat."', '"Write to c@d.org"')
    path = tmp_path / "chat.json"
    path.write_text(texts)
    how = {"pseudonym": pseudonyms(b"k")}
    kept = read_traces("open-webui", path, rules=TraceRules(personal_data="keep"), **how)
    masked = read_traces("open-webui", path, rules=TraceRules(personal_data="mask"), **how)
    alike = [row for row in masked.no_rows if row.reason == ALIKE]
    assert alike
    assert len(masked.no_rows) == len(kept.no_rows) + len(alike)
