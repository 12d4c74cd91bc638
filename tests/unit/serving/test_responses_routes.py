"""OpenAI's Responses API, asked by OpenAI's own client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient

from rlhf.config.serving import ServingConfig
from rlhf.serving import create_app
from rlhf.serving.model_routes import Source
from rlhf.store import PreferenceStore
from tests.unit.serving.conftest import build_model, client_of

HOW = {"model": "tiny", "max_output_tokens": 9}


@pytest.fixture(scope="module")
def site(tokenizer, tmp_path_factory) -> Iterator[TestClient]:
    folder = tmp_path_factory.mktemp("responses")
    build_model(tokenizer).policy.save_pretrained(folder / "tiny")
    with PreferenceStore(str(folder / "feedback.db")) as store:
        app = create_app(
            models={"tiny": Source(str(folder / "tiny"))}, config=ServingConfig(compiled=False), feedback_store=store
        )
        with TestClient(app) as client:
            yield client


@pytest.fixture(scope="module")
def openai(site):
    return client_of(site)


def test_the_client_reads_an_answer_its_status_and_its_usage(openai, site):
    answer = openai.responses.create(**HOW, input="Once upon a time", temperature=0, extra_body={"ignore_eos": True})
    assert (answer.status, answer.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert answer.usage.output_tokens == 9
    assert answer.usage.total_tokens == answer.usage.input_tokens + 9
    chat = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "Once upon a time"}],
        "max_tokens": 9,
        "temperature": 0,
    }
    same = site.post("/v1/chat/completions", json={**chat, "ignore_eos": True}).json()
    assert answer.output_text == same["choices"][0]["message"]["content"]
    assert answer.usage.input_tokens == same["usage"]["prompt_tokens"]


def test_instructions_and_messages_are_the_conversation(openai, site):
    spoken = [
        {"role": "user", "content": [{"type": "input_text", "text": "Once"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "upon"}]},
        {"role": "user", "content": "a time"},
    ]
    answer = openai.responses.create(**HOW, input=spoken, instructions="Tell a story.", temperature=0)
    messages = [
        {"role": "system", "content": "Tell a story."}, {"role": "user", "content": "Once"},
        {"role": "assistant", "content": "upon"}, {"role": "user", "content": "a time"},
    ]  # fmt: skip
    chat = {"model": "tiny", "messages": messages, "max_tokens": 9, "temperature": 0}
    assert answer.output_text == site.post("/v1/chat/completions", json=chat).json()["choices"][0]["message"]["content"]


def test_the_events_of_a_stream_make_the_whole_answer(openai):
    how: dict[str, Any] = {**HOW, "input": "Once upon a time", "extra_body": {"seed": 5, "ignore_eos": True}}
    whole = openai.responses.create(**how)
    events = list(openai.responses.create(**how, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events if event.type != "response.output_text.delta"]
    assert kinds == [
        "response.created", "response.in_progress", "response.output_item.added", "response.content_part.added",
        "response.output_text.done", "response.content_part.done", "response.output_item.done", "response.incomplete",
    ]  # fmt: skip
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert len(deltas) > 1
    assert "".join(deltas) == whole.output_text == events[-1].response.output_text
    stop = whole.output_text[3:5]
    with openai.responses.stream(**{**how, "extra_body": {**how["extra_body"], "stop": stop}}) as stream:
        ended = stream.get_final_response()
    assert (ended.status, ended.output_text) == ("completed", whole.output_text[: whole.output_text.index(stop)])


def test_an_answer_obeys_its_schema(openai):
    pytest.importorskip("llguidance")
    schema = {
        "type": "object", "properties": {"sure": {"type": "boolean"}}, "required": ["sure"], "additionalProperties": False
    }  # fmt: skip
    form = {"type": "json_schema", "name": "answer", "schema": schema}
    answer = openai.responses.create(model="tiny", max_output_tokens=40, input="Once", text={"format": form})
    assert set(json.loads(answer.output_text)) == {"sure"}


def test_feedback_may_name_a_response(site):
    answer = site.post("/v1/responses", json={**HOW, "input": "Once"}).json()
    event = {"key": "k1", "kind": "thumbs", "completion_id": answer["id"], "up": True}
    assert site.post("/v1/feedback", json=event).status_code == 201


@pytest.mark.parametrize(
    ("keys", "code", "param"),
    [
        ({"previous_response_id": "resp_1"}, "unsupported_parameter", "previous_response_id"),
        ({"tools": [{"type": "web_search"}]}, "unsupported_parameter", "tools"),
        ({"store": True}, "unsupported_parameter", "store"),
        ({"background": True}, "unsupported_parameter", "background"),
        ({"truncation": "auto"}, "unsupported_parameter", "truncation"),
        ({"max_tokens": 4}, "unknown_parameter", "max_tokens"),
        ({"n": 2}, "unsupported_parameter", "n"),
        ({"input": [{"type": "function_call_output", "call_id": "1", "output": ""}]}, "unsupported_parameter", "input.0"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "unsupported_parameter", "input.0.content"),
        ({"input": []}, "invalid_value", "input"),
        ({"input": None}, "missing_required_parameter", "input"),
        ({"inptu": "a"}, "unknown_parameter", "inptu"),
        ({"text": {"format": {"type": "json_schema"}}}, "missing_required_parameter", "response_format"),
    ],
)  # fmt: skip
def test_what_is_not_done_is_refused_by_name(site, keys, code, param):
    answer = site.post("/v1/responses", json={**HOW, "input": "Once", **keys})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, code, param)
