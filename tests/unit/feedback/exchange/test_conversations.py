"""Conversations of five tools: each fixture, made from the documented fields, gives just these rows and these reasons."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from rlhf.errors import DataError
from rlhf.feedback.exchange import detect
from rlhf.feedback.trace_imports import TraceRules, read_traces
from rlhf.store.pseudonyms import pseudonyms
from rlhf.store.values import TaskKind

FILES = Path(__file__).parents[3] / "fixtures" / "traces"
NAMES = {"open-webui": "open-webui.json", "otel-genai": "otel-genai.jsonl", "hf-traces": "hf-traces.jsonl", "atif": "atif.jsonl",
         "langfuse": "langfuse.jsonl"}  # fmt: skip
LABELS = {"hf-traces": "verdict", "atif": "extra.reward"}
WHO = pseudonyms(b"a key")


def read(name, *files, **rules):
    rules = {"label_field": LABELS.get(name, ""), "personal_data": "keep", **rules}
    return read_traces(name, *(files or [FILES / NAMES[name]]), rules=TraceRules(**rules), pseudonym=WHO)


def said(actual, kind):
    """Of each task of a kind: its last question, its completions' last texts, and what was said."""
    rows = []
    for item in actual.items:
        if item.task.kind is kind:
            value = item.judgments[0].value if item.judgments else None
            texts = [response.text[-1]["content"] for response in item.task.responses]
            rows.append((item.task.prompt[-1]["content"], texts, value))
    return rows


def reasons(actual):
    return Counter(row.reason.split(" (")[0] for row in actual.no_rows)


@pytest.mark.parametrize("name", NAMES)
def test_each_format_is_recognized_by_its_first_row(name):
    assert detect(FILES / NAMES[name]) == name


def test_open_webuis_thumbs_arena_votes_and_edits():
    trace_items = read("open-webui")
    assert said(trace_items, TaskKind.BINARY) == [
        ("What does a cow eat?", ["Grass."], {"label": True}),
        ("And when was it printed?", ["Part one in 1808."], {"label": False}),
        ("Name a river in France.", ["The Loire."], {"label": True}),
        ("Two plus two?", ["Five."], {"label": False}),
        ("Two plus two?", ["Four."], {"label": True}),
    ]
    assert said(trace_items, TaskKind.PAIRWISE) == [
        ("What does a cow eat?", ["Grass.", "Meat."], {"preference": "a"}),
        ("Name a river in France.", ["The Loire.", "The Rhine or so."], {"preference": "a"}),
        ("Two plus two?", ["Four.", "Five."], {"preference": "a"}),
    ]
    vote = next(item for item in trace_items.items if item.task.kind is TaskKind.PAIRWISE)
    judgment = vote.judgments[0]
    assert [response.model for response in vote.task.responses] == ["llama3.2:3b", "qwen3:4b"]
    assert judgment.order == (0, 1)
    assert judgment.annotator == WHO("open-webui", "user-ann")
    assert judgment.made_at.isoformat() == "2025-11-24T16:01:41+00:00"
    assert judgment.trace["trace_id"] == "chat-1"
    assert judgment.trace["message_id"] == "a1"
    assert judgment.trace["arena"] is True
    assert vote.task.prompt[0] == {"role": "system", "content": "Answer briefly."}
    assert sum(reasons(trace_items).values()) == 4
    assert not any(
        "user-ann" in json.dumps([one.annotator, one.trace]) for item in trace_items.items for one in item.judgments
    )


def test_reasoning_and_tool_calls_of_open_webui_become_messages():
    trace_items = read("open-webui")
    task = next(
        item.task for item in trace_items.items if item.task.prompt[-1]["content"] == "And when was it printed?"
    )
    assert task.prompt[2] == {
        "role": "assistant",
        "content": "Goethe.",
        "reasoning_content": "The user asks\nfor an author.",
    }
    call, result, answer = task.responses[0].text
    assert call["tool_calls"] == [
        {"id": "call_1", "type": "function", "function": {"name": "search", "arguments": {"query": "Faust"}}}
    ]
    assert result == {"role": "tool", "content": "1808", "tool_call_id": "call_1", "name": "search"}
    assert answer["content"] == "Part one in 1808."


def test_a_bad_rating_in_the_arena_makes_the_sibling_the_better_one(tmp_path):
    row = json.loads((FILES / "open-webui.json").read_text())[0]
    row["data"]["rating"] = -1
    (tmp_path / "one.json").write_text(json.dumps([row]))
    trace_items = read("open-webui", tmp_path / "one.json")
    assert said(trace_items, TaskKind.PAIRWISE) == [("What does a cow eat?", ["Meat.", "Grass."], {"preference": "a"})]
    assert trace_items.items[1].judgments[0].order == (1, 0)


def test_opentelemetrys_evaluations_find_their_answers():
    trace_items = read("otel-genai")
    assert said(trace_items, TaskKind.BINARY) == [
        ("rainy, 57F", ["Rainy."], {"label": True}),
        ("Capital of Peru?", ["Lima."], {"label": True}),
        ("Capital of Peru?", ["Quito."], {"label": False}),
    ]
    assert said(trace_items, TaskKind.PAIRWISE) == [("Capital of Peru?", ["Lima.", "Quito."], {"preference": "a"})]
    first = trace_items.items[0]
    assert first.task.columns["tools"][0]["name"] == "get_weather"
    assert first.task.responses[0].model == "gpt-4o-2024"
    assert first.judgments[0].trace["trace_id"] == "5b8efff798038103d269b633813fc60c"
    assert first.judgments[0].comment == "Just what I asked."
    assert first.judgments[0].annotator == WHO("otel-genai", "ann")
    assert sum(reasons(trace_items).values()) == 3


def test_a_field_of_the_resource_can_tell_of_consent():
    trace_items = read("otel-genai", consent_field="consent")
    assert len(trace_items.items) == 1
    assert reasons(trace_items)["there is no consent field"] == 2


def test_sessions_of_the_hub_with_branches():
    trace_items = read("hf-traces", with_unjudged=True, label_field="")
    assert said(trace_items, TaskKind.PAIRWISE) == [("A word for happy?", ["Sad.", "Glad."], None)]
    task = next(item.task for item in trace_items.items if item.task.kind is TaskKind.BINARY)
    call, result, answer = task.responses[0].text
    assert call["reasoning_content"] == "I should count."
    assert call["tool_calls"][0]["function"]["arguments"] == {"command": "wc notes.txt"}
    assert result == {"role": "tool", "content": "12 notes.txt", "tool_call_id": "c1"}
    assert answer["content"] == "Twelve lines."
    assert task.columns["trace"]["trace_id"] == "session-1"
    assert task.responses[0].model == "qwen3"
    labeled = read("hf-traces")
    assert [value["label"] for _, _, value in said(labeled, TaskKind.BINARY)] == [True, False, False]


def test_a_damaged_line_spoils_its_session_only(tmp_path):
    lines = (FILES / "hf-traces.jsonl").read_text().splitlines()
    lines[3] = lines[3][:40]
    (tmp_path / "t.jsonl").write_text("\n".join(lines))
    traces = read_traces(
        "hf-traces", tmp_path / "t.jsonl", rules=TraceRules(label_field="verdict"), pseudonym=WHO, on_bad_row="skip"
    )
    assert len(traces.left_out) == 1
    assert {one.judgments[0].trace["trace_id"] for one in traces.items} == {"session-2"}
    with pytest.raises(DataError, match=r"t\.jsonl:4"):
        read("hf-traces", tmp_path / "t.jsonl")


def test_trajectories_one_on_each_line_or_one_a_file():
    trace_items = read("atif", FILES / "atif.jsonl", FILES / "trajectory.json")
    assert [value["label"] for _, _, value in said(trace_items, TaskKind.BINARY)] == [True, False, True]
    call, result, _ = trace_items.items[0].task.responses[0].text
    assert call["tool_calls"][0]["id"] == result["tool_call_id"] == "call_price_1"
    assert trace_items.items[0].judgments[0].trace == {"tool": "atif", "trace_id": "traj-1", "message_id": "4"}
    assert trace_items.items[0].judgments[0].annotator == "atif:harbor-agent"
    assert reasons(trace_items) == {
        "'extra.reward' does not say good or bad": 1,
        "the trajectory does not end with an answer of the agent": 1,
    }


def test_langfuses_scores_by_what_their_names_range_over():
    trace_items = read("langfuse")
    assert said(trace_items, TaskKind.RATING) == [
        ("Rate me?", ["Rated."], {"ratings": {"overall": [4]}}), ("Plain question?", ["Plain answer."], {"ratings": {"overall": [2]}})
    ]  # fmt: skip
    assert said(trace_items, TaskKind.PAIRWISE) == [
        ("Plain question?", ["A better answer.", "Plain answer."], {"preference": "a"}),
        ("A rhyme on moon?", ["Soon.", "Sun."], {"preference": "a"}),
    ]
    assert [value["label"] for _, _, value in said(trace_items, TaskKind.BINARY)] == [True, False, True, True]
    correction = next(
        item for item in trace_items.items if item.task.responses[0].text[0]["content"] == "A better answer."
    )
    assert correction.judgments[0].annotator == WHO("langfuse", "reviewer-1")
    assert correction.judgments[0].trace["text_of"] == WHO("langfuse", "dora")
    assert sum(reasons(trace_items).values()) == 5


def test_names_as_the_api_writes_them_are_the_same_rows(tmp_path):
    def camel(name):
        first, *rest = name.split("_")
        return first + "".join(word.title() for word in rest)

    rows = [json.loads(line) for line in (FILES / "langfuse.jsonl").read_text().splitlines()]
    path = tmp_path / "api.jsonl"
    path.write_text("".join(json.dumps({camel(name): value for name, value in row.items()}) + "\n" for row in rows))
    assert [item.task for item in read("langfuse", path).items] == [item.task for item in read("langfuse").items]


def test_consent_is_true_and_nothing_else(tmp_path):
    row = json.loads((FILES / "open-webui.json").read_text())[0]
    for value, number in ((True, 2), ("true", 2), (False, 0), ("yes", 0), (1, 0), (None, 0)):
        row["meta"]["consent"] = value
        (tmp_path / "one.json").write_text(json.dumps([row]))
        if number:
            assert len(read("open-webui", tmp_path / "one.json", consent_field="meta.consent").items) == number
        else:
            with pytest.raises(DataError, match="consent"):
                read("open-webui", tmp_path / "one.json", consent_field="meta.consent")
