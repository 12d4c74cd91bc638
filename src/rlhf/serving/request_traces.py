"""A span for each completion request, under OpenTelemetry's names for generative AI; sent to a collector where one is named.

Source of the names: https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-spans/. No text is in a span unless it is asked for.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from starlette.requests import Request

from rlhf.errors import MissingExtraError, pip_line
from rlhf.serving.asked_requests import Asked
from rlhf.serving.generation import Accepted, Piece
from rlhf.version import __version__

OPERATIONS: Mapping[str, str] = {"chatcmpl-": "chat", "resp_": "chat", "cmpl-": "text_completion"}
"""Prefix of a completion's id -> ``gen_ai.operation.name``."""
PROVIDER = "rlhf"


class RequestTraces:
    """Makes spans.

    Args:
        provider: An OpenTelemetry ``TracerProvider``.
        with_text: Put prompts and completions into spans.
    """

    def __init__(self, provider: Any, *, with_text: bool = False) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("rlhf.serving", __version__)
        self._trace = _module("opentelemetry.trace")
        self._propagate = _module("opentelemetry.propagate")
        self.with_text = with_text

    def begin(self, asked: Asked, http: Request) -> RequestSpan:
        """A span that began when the request was queued, below that of the client where it named one (``traceparent``)."""
        operation = next(name for prefix, name in OPERATIONS.items() if asked.id.startswith(prefix))
        span = self._tracer.start_span(
            f"{operation} {asked.name}",
            context=self._propagate.extract(dict(http.headers)),
            kind=self._trace.SpanKind.SERVER,
            start_time=asked.queued_ns,
            attributes={
                "gen_ai.operation.name": operation,
                "gen_ai.provider.name": PROVIDER,
                "gen_ai.request.model": asked.name,
                "gen_ai.request.max_tokens": asked.sampling.max_new_tokens,
                "gen_ai.request.temperature": asked.sampling.temperature,
                "gen_ai.request.top_p": asked.sampling.top_p,
                "gen_ai.request.seed": asked.seed,
                "gen_ai.request.choice.count": asked.num_samples,
                "gen_ai.response.id": asked.id,
                "gen_ai.response.model": asked.name,
                "gen_ai.usage.input_tokens": asked.num_prompt_tokens,
                "rlhf.weights": asked.model.fingerprint,
            },
        )
        if self.with_text:
            prompt = str(asked.model.tokenizer.decode(list(asked.prompt)))
            span.set_attribute("gen_ai.input.messages", _messages("user", [(prompt, None)]))
        return RequestSpan(span, asked.num_samples, self._trace, with_text=self.with_text)

    def stop(self) -> None:
        """Send what was not sent yet."""
        self._provider.shutdown()


class RequestSpan:
    """One request that is being answered."""

    def __init__(self, span: Any, num_samples: int, trace: ModuleType, *, with_text: bool) -> None:
        self._span, self._trace, self._with_text = span, trace, with_text
        self._reasons: list[str] = ["error"] * num_samples
        self._texts = [""] * num_samples
        self._tokens = 0

    def see(self, event: Accepted | Piece) -> None:
        """What came of it."""
        if isinstance(event, Accepted):
            self._span.set_attribute("gen_ai.usage.cache_read.input_tokens", event.cached_tokens)
            return
        if not self._tokens:
            self._span.add_event("rlhf.first_token")
        self._tokens += len(event.tokens)
        self._reasons[event.index] = event.finish_reason or self._reasons[event.index]
        if self._with_text:
            self._texts[event.index] += event.text

    def end(self, failure: str | None) -> None:
        """It is over; ``failure`` says why there was no whole answer."""
        span = self._span
        span.set_attribute("gen_ai.usage.output_tokens", self._tokens)
        span.set_attribute("gen_ai.response.finish_reasons", self._reasons)
        if self._with_text:
            said = list(zip(self._texts, self._reasons, strict=True))
            span.set_attribute("gen_ai.output.messages", _messages("assistant", said))
        if failure is not None:
            span.set_attribute("error.type", failure)
            span.set_status(self._trace.StatusCode.ERROR)
        span.end()


def traces_to(collector: str, *, with_text: bool = False) -> RequestTraces:
    """Spans that go to a collector over OTLP and HTTP, in the background.

    Args:
        collector: Its address, such as http://127.0.0.1:4318; ``/v1/traces`` is added.
        with_text: Put prompts and completions into spans.

    Raises:
        MissingExtraError: OpenTelemetry is not installed.
    """
    sdk, export = _module("opentelemetry.sdk.trace"), _module("opentelemetry.sdk.trace.export")
    resources = _module("opentelemetry.sdk.resources")
    otlp = _module("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    resource = resources.Resource.create({"service.name": "rlhf", "service.version": __version__})
    provider = sdk.TracerProvider(resource=resource)
    exporter = otlp.OTLPSpanExporter(endpoint=f"{collector.rstrip('/').removesuffix('/v1/traces')}/v1/traces")
    provider.add_span_processor(export.BatchSpanProcessor(exporter))
    return RequestTraces(provider, with_text=with_text)


def _module(name: str) -> ModuleType:
    """``require`` does not do: ``opentelemetry`` is a name that many packages share, and another one may be installed without this."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as err:
        if not (err.name or "").startswith("opentelemetry"):
            raise
        raise MissingExtraError(f"Traces need the package {err.name!r}. Install it with: {pip_line('track')}") from err


def _messages(role: str, said: Sequence[tuple[str, str | None]]) -> str:
    return json.dumps(
        [
            {"role": role, "parts": [{"type": "text", "content": text}]} | ({"finish_reason": reason} if reason else {})
            for text, reason in said
        ],
        ensure_ascii=False,
    )
