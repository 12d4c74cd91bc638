"""OpenTelemetry spans of requests: the conventions' names, no text unless asked for, and one clear error where the packages are missing."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from rlhf.config.serving import ServingConfig
from rlhf.errors import MissingExtraError
from rlhf.serving import create_app
from rlhf.serving.model_routes import Source
from rlhf.serving.request_traces import RequestTraces, traces_to
from tests.unit.serving.conftest import build_model, listening

SECRET = "dog"


@pytest.fixture(scope="module")
def folder(tokenizer, tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("traced") / "tiny"
    build_model(tokenizer).policy.save_pretrained(path)
    return str(path)


@pytest.fixture(params=[False, True], ids=["without text", "with text"])
def traced(folder, request) -> Iterator[tuple[TestClient, Any, bool]]:
    why = "pip install opentelemetry-sdk (the extra `track`)"
    sdk = pytest.importorskip("opentelemetry.sdk.trace", reason=why)
    export = pytest.importorskip("opentelemetry.sdk.trace.export", reason=why)
    memory = pytest.importorskip(
        "opentelemetry.sdk.trace.export.in_memory_span_exporter", reason=why
    ).InMemorySpanExporter()
    provider = sdk.TracerProvider()
    provider.add_span_processor(export.SimpleSpanProcessor(memory))
    traces = RequestTraces(provider, with_text=request.param)
    with TestClient(
        create_app(models={"tiny": Source(folder)}, config=ServingConfig(compiled=False), traces=traces)
    ) as site:
        yield site, memory, request.param


def test_a_request_is_a_span_under_the_conventions_names(traced):
    site, memory, with_text = traced
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": SECRET}],
        "max_tokens": 3,
        "seed": 7,
        "n": 2,
        "ignore_eos": True,
    }
    answer = site.post("/v1/chat/completions", json=body, headers={"traceparent": parent}).json()
    (span,) = memory.get_finished_spans()
    assert span.name == "chat tiny"
    assert f"{span.context.trace_id:032x}" == parent.split("-")[1]
    assert f"{span.parent.span_id:016x}" == parent.split("-")[2]
    told = dict(span.attributes)
    assert told["gen_ai.operation.name"] == "chat"
    assert told["gen_ai.response.id"] == answer["id"]
    assert told["gen_ai.usage.input_tokens"] == answer["usage"]["prompt_tokens"]
    assert told["gen_ai.usage.output_tokens"] == answer["usage"]["completion_tokens"] == 6
    assert told["gen_ai.response.finish_reasons"] == ("length", "length")
    assert told["gen_ai.request.seed"] == 7
    assert span.end_time > span.start_time
    assert [event.name for event in span.events] == ["rlhf.first_token"]
    assert (SECRET in str(told)) is with_text
    assert ("gen_ai.output.messages" in told) is with_text
    if with_text:
        texts = [one["parts"][0]["content"] for one in json.loads(told["gen_ai.output.messages"])]
        assert texts == [choice["message"]["content"] for choice in answer["choices"]]


def test_streams_texts_and_responses_are_spans_too_and_what_is_refused_is_none(traced):
    site, memory, _ = traced
    streamed = {"model": "tiny", "prompt": ["Once", "There"], "max_tokens": 3, "stream": True}
    assert "[DONE]" in site.post("/v1/completions", json=streamed).text
    assert site.post("/v1/responses", json={"model": "tiny", "input": "Once", "max_output_tokens": 3}).is_success
    assert site.post("/v1/completions", json={"model": "other", "prompt": "Once"}).status_code == 404
    names = sorted(span.name for span in memory.get_finished_spans())
    assert names == ["chat tiny", "text_completion tiny", "text_completion tiny"]


def test_a_request_that_fails_says_why(traced, monkeypatch):
    site, memory, _ = traced
    ((model, _),) = site.app.state.routes.models().values()

    def crash() -> Any:
        raise RuntimeError("no memory")

    monkeypatch.setattr(model.batch, "sample", crash)
    assert site.post("/v1/completions", json={"model": "tiny", "prompt": "Once"}).status_code == 500
    (span,) = memory.get_finished_spans()
    assert span.attributes["error.type"] == "crashed"
    assert not span.status.is_ok


def test_spans_reach_a_collector(folder):
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http.trace_exporter", reason="the extra `track`")
    got: list[tuple[str, bytes]] = []

    async def take(request: Request) -> Response:
        got.append((request.headers["content-type"], await request.body()))
        return Response()

    collector = Starlette(routes=[Route("/v1/traces", take, methods=["POST"])])
    with listening(collector) as url:
        app = create_app(models={"tiny": Source(folder)}, config=ServingConfig(compiled=False), traces=traces_to(url))
        with TestClient(app) as site:
            assert site.post("/v1/completions", json={"model": "tiny", "prompt": SECRET, "max_tokens": 2}).is_success
    ((kind, sent),) = got
    assert kind == "application/x-protobuf"
    assert b"gen_ai.request.model" in sent
    assert SECRET.encode() not in sent


def test_without_the_packages_there_is_one_clear_error_and_nobody_else_needs_them(folder, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("opentelemetry.sdk")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk", None)
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(MissingExtraError, match=r"\[track\]"):
        traces_to("http://127.0.0.1:4318")
    create_app(models={"tiny": Source(folder)}, config=ServingConfig(compiled=False))
