"""OpenAI's API, asked by OpenAI's own client and by hand."""

from __future__ import annotations

import inspect
import json
import threading
import time
from collections.abc import Iterator
from operator import attrgetter
from typing import Any

import pytest
from fastapi.testclient import TestClient

from rlhf.config.serving import ServingConfig
from rlhf.serving import create_app
from rlhf.serving.api_requests import UNSUPPORTED, ChatBody, CompletionBody
from rlhf.serving.model_routes import Source
from rlhf.serving.responses_requests import UNSUPPORTED as RESPONSES_UNSUPPORTED
from rlhf.serving.responses_requests import ResponsesBody
from tests.unit.serving.conftest import build_model, client_of

CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "Once upon a time"}]


@pytest.fixture(scope="module")
def folder(tokenizer, tmp_path_factory) -> str:
    """A model folder."""
    path = tmp_path_factory.mktemp("served") / "tiny"
    build_model(tokenizer).policy.save_pretrained(path)
    return str(path)


@pytest.fixture(scope="module")
def site(folder) -> Iterator[TestClient]:
    config = ServingConfig(compiled=False, max_completions=4, request_timeout_seconds=60)
    with TestClient(create_app(models={"tiny": Source(folder)}, config=config)) as client:
        yield client


@pytest.fixture(scope="module")
def openai(site):
    return client_of(site)


def ask(site: TestClient, path: str = CHAT, **keys: Any) -> Any:
    body = {"model": "tiny", "max_tokens": 6, "seed": 1}
    body |= {"messages": MESSAGES} if path == CHAT else {"prompt": "Once upon"}
    return site.post(path, json={key: value for key, value in {**body, **keys}.items() if value is not ...})


def test_the_client_reads_a_completion_its_usage_and_its_weights(openai, site):
    answer = openai.chat.completions.create(
        model="tiny", messages=MESSAGES, max_tokens=6, seed=1, logprobs=True, top_logprobs=2, n=2
    )
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert answer.usage.completion_tokens == sum(len(choice.logprobs.content) for choice in answer.choices)
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert all(len(token.top_logprobs) == 2 for token in answer.choices[0].logprobs.content)
    weights = site.get("/v1/models").json()["data"][0]["fingerprint"]
    assert answer.system_fingerprint == f"fp_{weights[:10]}"
    assert ask(site).headers["X-Model-Fingerprint"] == weights


def test_a_stream_says_what_the_whole_answer_says_and_its_usage_last(openai):
    how = {"model": "tiny", "messages": MESSAGES, "max_tokens": 9, "seed": 4, "n": 2}
    whole = openai.chat.completions.create(**how)
    chunks = list(openai.chat.completions.create(**how, stream=True, stream_options={"include_usage": True}))
    texts = ["", ""]
    for chunk in chunks[:-1]:
        texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert texts == [choice.message.content for choice in whole.choices]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert all(chunk.usage is None for chunk in chunks[:-1])
    reasons = [chunk.choices[0].finish_reason for chunk in chunks[:-1] if chunk.choices[0].finish_reason]
    assert sorted(reasons) == sorted(choice.finish_reason for choice in whole.choices)


def test_texts_and_tokens_are_completed_each_by_itself(openai, tokenizer):
    texts = ["Once upon", "There was"]
    together = openai.completions.create(model="tiny", prompt=texts, max_tokens=5, temperature=0, n=2, logprobs=1)
    assert [choice.index for choice in together.choices] == [0, 1, 2, 3]
    alone = openai.completions.create(
        model="tiny", prompt=tokenizer(texts[1])["input_ids"], max_tokens=5, temperature=0
    )
    assert together.choices[2].text == together.choices[3].text == alone.choices[0].text
    logprobs = together.choices[0].logprobs
    assert (
        len(logprobs.tokens) == len(logprobs.token_logprobs) == len(logprobs.text_offset) == len(logprobs.top_logprobs)
    )


def test_the_same_seed_gives_the_same_answer_and_none_gives_others(site):
    first, second = (ask(site, max_tokens=20).json()["choices"] for _ in range(2))
    assert first == second
    texts = {ask(site, seed=None, max_tokens=20).json()["choices"][0]["message"]["content"] for _ in range(4)}
    assert len(texts) > 1


def test_a_stop_text_ends_a_completion_and_is_left_out(site):
    whole = ask(site, "/v1/completions", temperature=0, max_tokens=20, ignore_eos=True).json()["choices"][0]["text"]
    stop = whole[5:8]
    cut = ask(site, "/v1/completions", temperature=0, max_tokens=20, ignore_eos=True, stop=stop).json()["choices"][0]
    assert (cut["text"], cut["finish_reason"]) == (whole[: whole.index(stop)], "stop")


def test_a_bias_decides_the_token(site, tokenizer):
    token = tokenizer("dog", add_special_tokens=False)["input_ids"][0]
    answer = ask(
        site, "/v1/completions", logit_bias={str(token): 100}, max_tokens=3, ignore_eos=True, logprobs=0
    ).json()
    assert answer["choices"][0]["logprobs"]["tokens"] == [tokenizer.decode([token])] * 3


def test_json_follows_its_schema(site):
    pytest.importorskip("llguidance")
    schema = {
        "type": "object", "properties": {"mood": {"enum": ["good", "bad"]}, "sure": {"type": "boolean"}},
        "required": ["mood", "sure"], "additionalProperties": False,
    }  # fmt: skip
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    for seed in range(3):
        choice = ask(site, response_format=form, max_tokens=60, seed=seed).json()["choices"][0]
        read = json.loads(choice["message"]["content"])
        assert set(read) == {"mood", "sure"}
        assert read["mood"] in ("good", "bad")
        assert choice["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("keys", "status", "code", "param"),
    [
        ({"model": "tinny"}, 404, "model_not_found", "model"),
        ({"model": ...}, 400, "missing_required_parameter", "model"),
        ({"messages": ...}, 400, "missing_required_parameter", "messages"),
        ({"messages": []}, 400, "invalid_value", "messages"),
        ({"messages": [{"role": "user"}]}, 400, "invalid_value", "messages.0"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "invalid_value", "messages.0.content"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]}, 400, "invalid_value", "messages.0.content"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, 400, "invalid_value", "messages.0.content"),
        ({"prompt_cache_retention": "24h"}, 400, "unsupported_parameter", "prompt_cache_retention"),
        ({"moderation": {"model": "omni"}}, 400, "unsupported_parameter", "moderation"),
        ({"tools": [{"type": "function"}]}, 400, "unsupported_parameter", "tools"),
        ({"frequency_penalty": 0.5}, 400, "unsupported_parameter", "frequency_penalty"),
        ({"temprature": 1}, 400, "unknown_parameter", "temprature"),
        ({"temperature": 3}, 400, "invalid_value", "temperature"),
        ({"n": 5}, 400, "invalid_value", "n"),
        ({"n": 0}, 400, "invalid_value", "n"),
        ({"max_tokens": 100_000}, 400, "context_length_exceeded", None),
        ({"stop": ["a"] * 17}, 400, "invalid_value", "stop"),
        ({"stop": ""}, 400, "invalid_value", "stop"),
        ({"logit_bias": {"999999": 1}}, 400, "invalid_value", "logit_bias"),
        ({"top_logprobs": 2}, 400, "invalid_value", "top_logprobs"),
        ({"stream_options": {"include_usage": True}}, 400, "invalid_value", "stream_options"),
        ({"stream": True, "stream_options": {"include_obfuscation": True}}, 400, "invalid_value", "stream_options"),
        ({"stream": True, "stream_options": {"every": 2}}, 400, "unknown_parameter", "stream_options.every"),
        ({"response_format": {"type": "json_schema"}}, 400, "missing_required_parameter", "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "nothing"}}}}, 400, "invalid_value", "response_format"),
    ],
)  # fmt: skip
def test_what_is_not_done_is_refused_by_name(site, keys, status, code, param):
    answer = ask(site, **keys)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (status, code, param)
    assert error["message"].endswith((".", "?"))


@pytest.mark.parametrize("prompt", [[], [""], [[]], ["a", ""], ["a"] * 101])
def test_prompts_that_can_not_be_taken_are_refused_by_their_key(site, prompt):
    answer = ask(site, "/v1/completions", prompt=prompt)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "prompt")


@pytest.mark.parametrize(
    "keys", [{"temperature": 1e-300}, {"seed": -(10**30)}, {"top_p": 1e-12, "repetition_penalty": 100}]
)
def test_settings_at_the_ends_of_what_is_allowed_give_answers(site, keys):
    answer = ask(site, **keys)
    assert answer.status_code == 200, answer.text
    again = ask(site, **keys)
    assert again.json()["choices"] == answer.json()["choices"]


def test_keys_that_ask_for_nothing_are_taken(site):
    nothing = {
        "frequency_penalty": 0,
        "presence_penalty": 0.0,
        "tools": [],
        "user": "u",
        "store": False,
        "top_p": None,
        "echo": None,
    }
    assert ask(site, **nothing).status_code == 200


@pytest.mark.parametrize("sent", [b"{", b"[]", b'"x"', b"\xff\xfe", b""])
def test_a_body_that_is_no_object_is_refused(site, sent: bytes):
    answer = site.post(CHAT, content=sent, headers={"content-type": "application/json"})
    assert answer.status_code == 400
    assert "message" in answer.json()["error"]


@pytest.mark.parametrize(
    "headers", [{}, {"content-type": "text/plain"}, {"content-type": "text/plain; a=application/json"}]
)
def test_json_that_is_not_called_json_is_refused_as_any_page_can_send_it(site, headers):
    answer = site.post(CHAT, content=b"{}", headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_json")
    assert "Content-Type: application/json" in answer.json()["error"]["message"]


@pytest.mark.parametrize("keys", [{"model": "a" * 2_000_000}, {"a" * 2_000_000: 1}])
def test_names_of_megabytes_are_refused_at_once_and_not_sent_back(site, keys):
    began = time.process_time()
    answer = ask(site, **keys)
    assert answer.status_code in (400, 404)
    assert len(answer.content) < 2000
    assert time.process_time() - began < 0.5  # they were compared with the known ones for seconds


def test_an_error_of_the_client_is_never_called_one_of_the_server(site):
    answer = site.get(CHAT)
    assert (answer.status_code, answer.json()["error"]["type"]) == (405, "invalid_request_error")


def test_other_addresses_and_other_names_of_the_server_are_refused_in_the_same_form(site):
    assert site.get("/v1/nothing").json()["error"]["code"] == "unknown_url"
    answer = site.get("/v1/models", headers={"host": "evil.example"})
    assert (answer.status_code, list(answer.json())) == (400, ["error"])
    assert site.get("/v1/models/tiny").json()["id"] == "tiny"
    assert site.get("/v1/models/other").status_code == 404


def test_a_prompt_as_long_as_the_context_is_refused_before_it_is_queued(site):
    answer = ask(site, "/v1/completions", prompt=[5] * 128, max_tokens=None)
    assert answer.json()["error"]["code"] == "context_length_exceeded"


def test_prometheus_reads_the_fields_names(site):
    ask(site)
    text = site.get("/metrics").text
    for name in (
        "num_requests_running", "num_requests_waiting", "time_to_first_token_seconds_bucket", "inter_token_latency_seconds_count",
        "e2e_request_latency_seconds_sum", "prompt_tokens_total", "generation_tokens_total", "request_success_total",
        "kv_cache_usage_perc", "prefix_cache_hits_total",
    ):  # fmt: skip
        assert f"rlhf:{name}" in text
    assert site.get("/health").json() == {"status": "ok"}


def test_who_is_too_many_is_told_when_to_come_again(folder):
    config = ServingConfig(compiled=False, max_concurrent_requests=1, max_batch_size=1)
    with TestClient(create_app(models={"tiny": Source(folder)}, config=config)) as site:
        answers: list[Any] = []
        several = [
            threading.Thread(target=lambda: answers.append(ask(site, max_tokens=100, ignore_eos=True)))
            for _ in range(8)
        ]
        for one in several:
            one.start()
        for one in several:
            one.join()
    codes = sorted(answer.status_code for answer in answers)
    assert codes[0] == 200
    refused = [answer for answer in answers if answer.status_code == 429]
    assert refused
    assert all(int(answer.headers["Retry-After"]) >= 1 for answer in refused)
    assert {answer.json()["error"]["code"] for answer in refused} == {"queue_full"}


def test_a_client_that_hangs_up_is_not_answered_any_more(folder):
    config = ServingConfig(compiled=False)
    app = create_app(models={"tiny": Source(folder)}, config=config)
    with TestClient(app) as site:
        with site.stream(
            "POST", CHAT, json={"model": "tiny", "messages": MESSAGES, "stream": True, "ignore_eos": True}
        ) as answer:
            next(answer.iter_lines())
        limit = time.monotonic() + 20
        while app.state.engine.num_running and time.monotonic() < limit:
            time.sleep(0.02)
        assert app.state.engine.num_running == 0


def test_parts_of_characters_have_bytes_and_names_of_their_own(site, tokenizer):
    hand = tokenizer("👋", add_special_tokens=False)["input_ids"]
    assert len(hand) > 1, "the tokenizer has no token for it"
    biases = {str(token): 100 for token in hand}
    how = {"logit_bias": biases, "max_tokens": 4, "ignore_eos": True}
    (choice,) = ask(site, **how, logprobs=True, top_logprobs=3).json()["choices"]
    content = choice["logprobs"]["content"]
    assert {bytes(each["bytes"]) for each in content} <= {bytes([byte]) for byte in "👋".encode()}
    assert all(each["token"] == "".join(f"\\x{byte:02x}" for byte in each["bytes"]) for each in content)
    (choice,) = ask(site, "/v1/completions", **how, logprobs=4).json()["choices"]
    assert all(name.startswith("bytes:\\x") for name in choice["logprobs"]["tokens"])
    assert all(len(top) == 4 for top in choice["logprobs"]["top_logprobs"]), "each has a name of its own"


@pytest.mark.parametrize("prompt", [[True, 2], [[1, 2], [False]], [1.0, 2], {"a": 1}])
def test_what_is_no_prompt_is_refused_by_name(site, prompt):
    answer = ask(site, "/v1/completions", prompt=prompt)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, "invalid_value", "prompt")


def test_half_a_character_in_a_stop_text_is_refused(site):
    body = json.dumps({"model": "tiny", "prompt": "Once", "max_tokens": 2, "stop": ["a", "\ud83d"]})
    answer = site.post("/v1/completions", content=body, headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "stop")


@pytest.mark.parametrize(
    ("content", "status", "code"),
    [
        ("[" * 100_000 + "]" * 100_000, 400, "invalid_json"),
        ('{"model": "tiny", "prompt": "a", "metadata": ' + '{"a":' * 3000 + "1" + "}" * 3001, 400, "invalid_json"),
        ("x" * 5_000_000, 413, "request_too_large"),
    ],
)
def test_every_refusal_has_a_code(site, content, status, code):
    answer = site.post("/v1/completions", content=content, headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert site.get("/v1/completions").json()["error"]["code"] == "method_not_allowed"


@pytest.mark.parametrize("token", ["1" * 5000, "\u0663", "\u00b2", "-1", "1.0", "", "320"])
def test_a_bias_of_what_is_no_token_is_refused(site, token):
    answer = ask(site, logit_bias={token: 1})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "logit_bias")
    assert len(answer.text) < 500


def test_offsets_are_places_of_the_text_which_leaves_special_tokens_out(site, tokenizer):
    end, dog = tokenizer.eos_token_id, tokenizer("dog", add_special_tokens=False)["input_ids"]
    biases = {str(token): 100 for token in (end, *dog)}
    how = {"logit_bias": biases, "ignore_eos": True, "max_tokens": 24, "logprobs": 0}
    (choice,) = ask(site, "/v1/completions", **how).json()["choices"]
    tokens, offsets = choice["logprobs"]["tokens"], choice["logprobs"]["text_offset"]
    assert tokenizer.eos_token in tokens[:-1]
    shown = [(token, first) for token, first in zip(tokens, offsets, strict=True) if token != tokenizer.eos_token]
    assert shown
    assert all(choice["text"][first:].startswith(token) for token, first in shown)


@pytest.mark.parametrize("key", ["n", "seed", "temperature", "top_k", "max_tokens", "logit_bias"])
def test_true_is_no_number(site, key):
    answer = ask(site, **{key: {"3": True} if key == "logit_bias" else True})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, key)


def test_room_for_prompts_that_memory_does_not_have_is_done_without(folder, caplog):
    config = ServingConfig(compiled=False, prefix_cache_tokens=10**13)
    with TestClient(create_app(models={"tiny": Source(folder)}, config=config)) as site:
        answers = [ask(site) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200] * 3
    assert len({answer.json()["choices"][0]["message"]["content"] for answer in answers}) == 1
    assert "more memory than there is" in caplog.text


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"stop": [1]}, "stop.0 is a number"),
        ({"response_format": "json_object"}, "response_format is a string ('json_object'): wanted an object."),
        ({"search": 5}, "search is a number (5): wanted an object."),
        ({"logit_bias": [1]}, "logit_bias is a list ([1]): wanted an object."),
        ({"logit_bias": {"5": "x"}}, "logit_bias.5 is a string ('x')"),
        ({"messages": [None]}, "messages.0 is null"),
    ],
)
def test_a_fault_is_told_by_its_place_in_the_request_without_names_of_types(site, keys, said):
    assert said in ask(site, **keys).json()["error"]["message"]


OPENAI_BODIES = {
    "chat.completions": (ChatBody, UNSUPPORTED),
    "completions": (CompletionBody, UNSUPPORTED),
    "responses": (ResponsesBody, RESPONSES_UNSUPPORTED),
}


@pytest.mark.parametrize("route", OPENAI_BODIES)
def test_every_key_that_the_client_can_send_is_known(openai, route):
    body, unsupported = OPENAI_BODIES[route]
    sent = inspect.signature(attrgetter(route)(openai).create).parameters
    of_client = {"extra_headers", "extra_query", "extra_body", "timeout"}
    assert set(sent) - of_client - set(body.model_fields) - set(unsupported) == set()
