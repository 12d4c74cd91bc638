"""What all routes for completions share: from a request to the engine and back, with an end when the client leaves."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from starlette.requests import Request

from rlhf.config.policy import SamplingConfig
from rlhf.data.contracts import Prompt
from rlhf.data.datasets import GRPODataset
from rlhf.errors import ConfigError, RLHFError
from rlhf.seeds import derive_seed
from rlhf.serving.answer_waiting import refused
from rlhf.serving.api_errors import APIError
from rlhf.serving.api_requests import GenerationBody, biases, joined_text
from rlhf.serving.asked_requests import Asked
from rlhf.serving.constraints import ANY_OBJECT
from rlhf.serving.generation import Accepted, Failed, Failure, FinishReason, GenerationRequest, Piece, TokenLogprobs
from rlhf.serving.inbox import Inbox
from rlhf.serving.model_choice import picked
from rlhf.serving.model_routes import ModelRoutes
from rlhf.serving.prompt_reading import is_surely_too_long
from rlhf.serving.request_traces import RequestTraces
from rlhf.serving.scheduler import ClosedError, QueueFullError, ServingEngine
from rlhf.serving.served_policy import ServedPolicy

STATUS = {Failure.TIMEOUT: 504, Failure.NOT_FINITE: 500, Failure.CRASHED: 500, Failure.CANCELED: 503}


@dataclass(slots=True)
class Completed:
    """One completion, put together."""

    text: str = ""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish_reason: FinishReason | None = None

    def add(self, piece: Piece) -> None:
        """What it grew by."""
        self.text += piece.text
        self.tokens += piece.tokens
        self.logprobs += piece.logprobs
        self.finish_reason = piece.finish_reason or self.finish_reason


class Generation:
    """The way from the routes to the engine.

    Args:
        engine: Samples.
        routes: Names of models.
        inbox: Where the engine's events arrive.
        max_completions: Largest ``n``.
        traces: Makes a span of each request; None for none.
    """

    def __init__(
        self,
        engine: ServingEngine,
        routes: ModelRoutes,
        inbox: Inbox,
        *,
        max_completions: int,
        traces: RequestTraces | None = None,
    ) -> None:
        self.engine, self.routes, self.inbox, self._traces = engine, routes, inbox, traces
        self.max_completions = max_completions

    def model(self, body: GenerationBody, user: str) -> tuple[str, ServedPolicy]:
        """Who answers.

        Raises:
            APIError: 404, for a name that is none; 400, for that of a reward model.
        """
        return picked(self.routes, body.model, user, ServedPolicy)

    def submit(
        self, body: GenerationBody, name: str, model: ServedPolicy, ids: Sequence[int], *, client: str, num_top: int | None,
        prefix: str, number: int = 0,
    ) -> Asked:  # fmt: skip
        """Queue a prompt.

        Args:
            body: The request.
            name: Of the model.
            model: That answers.
            ids: The prompt.
            client: Clients take turns.
            num_top: Likely tokens that are reported; None for no log-probabilities.
            prefix: Of the completion's id.
            number: Of the prompt among those of the request; each has seeds of its own.

        Raises:
            APIError: It does not fit, asks for what there is not, or there is no room in the queue.
        """
        if body.n > self.max_completions:
            raise APIError(
                400,
                f"n is {body.n}; this server gives at most {self.max_completions}.",
                code="invalid_value",
                param="n",
            )
        sampling = sampling_of(body, model, ids)
        seed = body.seed if body.seed is not None else secrets.randbits(63)
        request = GenerationRequest(
            id=f"{prefix}{secrets.token_hex(12)}",
            prompt=ids,
            sampling=sampling,
            seed=derive_seed(seed % 2**63, "prompt", number) if number else seed % 2**63,
            num_samples=body.n,
            logit_bias=biases(body, model.vocabulary),
            top_logprobs=num_top,
            ignore_eos=body.ignore_eos,
            client=client,
            constraint=self._constraint(body, model),
        )
        self.inbox.expect(request.id)
        try:
            self.engine.submit(model, request)
        except (QueueFullError, ClosedError) as err:
            self.inbox.forget(request.id)
            raise refused(err) from None
        return Asked(request.id, name, model, len(ids), body.n, request.sampling, request.seed, prompt=ids)

    async def pieces(self, asked: Asked, http: Request) -> AsyncIterator[Accepted | Piece]:
        """What comes of a request, until all its completions have ended; a request whose client is gone is canceled.

        Raises:
            APIError: It failed.
        """
        watch = asyncio.create_task(self._watch(asked, http))
        left, is_over = asked.num_samples, False
        span = self._traces.begin(asked, http) if self._traces is not None else None
        failure: str | None = Failure.CANCELED.value
        try:
            async for event in self.inbox.events(asked.id):
                if isinstance(event, Failed):
                    is_over = event.failure is not Failure.CANCELED
                    failure = event.failure.value
                    status = STATUS[event.failure]
                    raise APIError(status, event.detail or "The request was canceled.", code=event.failure.value)
                if span is not None:
                    span.see(event)
                if isinstance(event, Piece) and event.finish_reason is not None:
                    left -= 1
                    if not left:
                        is_over, failure = True, None
                yield event
                if is_over:
                    return
        finally:
            if span is not None:
                span.end(failure)
            watch.cancel()
            if not is_over:
                self.engine.cancel(asked.id)
            self.inbox.forget(asked.id)

    async def _watch(self, asked: Asked, http: Request) -> None:
        """End a request whose client hangs up."""
        with contextlib.suppress(asyncio.CancelledError):
            while (await http.receive())["type"] != "http.disconnect":
                pass
            self.inbox.fail(asked.id, Failed(Failure.CANCELED))

    def _constraint(self, body: GenerationBody, model: ServedPolicy) -> Any:
        form = body.response_format
        if form is None or form.type == "text":
            return None
        schema: Any = ANY_OBJECT
        if form.type == "json_schema":
            schema = (form.json_schema or {}).get("schema")
            if not isinstance(schema, dict):
                message = "response_format.json_schema.schema is missing: an object with a JSON schema."
                raise APIError(400, message, code="missing_required_parameter", param="response_format")
        if model.constraints is None:
            message = f"response_format is not supported by this server's engine ({model.how}); leave it out."
            raise APIError(400, message, code="unsupported_parameter", param="response_format")
        try:
            return model.constraints.of_schema(schema)
        except ConfigError as err:
            raise APIError(400, str(err), code="invalid_value", param="response_format") from None
        except RLHFError as err:
            raise APIError(501, str(err), code="unsupported_parameter", param="response_format") from None


def sampling_of(body: GenerationBody, model: ServedPolicy, ids: Sequence[int]) -> SamplingConfig:
    """How a request's completions are drawn.

    Raises:
        APIError: Prompt and completion do not fit the model.
    """
    most = model.context - len(ids)
    wanted = body.most_tokens
    if not ids or most < 1 or (wanted is not None and wanted > most):
        raise _too_long(model, len(ids), wanted)
    sampling = body.sampling(most)
    if complaint := model.complaint(sampling):
        raise APIError(400, f"{complaint}.", code="unsupported_parameter", param=complaint.split()[0])
    return sampling


def prompt_ids(model: ServedPolicy, prompt: str | list[int] | list[dict[str, Any]], *, kwargs: Any = None) -> list[int]:
    """Token ids of a text, of tokens, or of messages in the chat template, as data sets make them.

    Raises:
        APIError: The prompt is empty, holds tokens that the model does not know, or the template refuses it.
    """
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], int):
        tokens = prompt
        wrong = next((token for token in tokens if not 0 <= token < model.vocabulary), None)
        if wrong is not None:
            message = f"prompt holds the token {wrong!r}; the model's are 0 to {model.vocabulary - 1}."
            raise APIError(400, message, code="invalid_value", param="prompt")
        return list(tokens)
    return list(prompt_of(model, cast(str | list[dict[str, Any]], prompt), kwargs=kwargs).ids)


def prompt_of(model: ServedPolicy, prompt: str | list[dict[str, Any]], *, kwargs: Any = None) -> Prompt:
    """A text, or messages, as a prompt.

    A model without a template gets the messages' texts, a line each: those of this project's demo were trained on plain texts.

    Raises:
        APIError: It is empty, or the template refuses it.
    """
    key = "prompt" if isinstance(prompt, str) else "messages"
    row: dict[str, Any] = {"prompt": prompt}
    text = prompt if isinstance(prompt, str) else _lines([_message(each, i) for i, each in enumerate(prompt)])
    if is_surely_too_long(model, text):
        takes = f"This model takes {model.context} tokens of prompt and completion"
        message = f"{takes}; the prompt has more than {2 * model.context}. Shorten the prompt."
        raise APIError(400, message, code="context_length_exceeded")
    if not isinstance(prompt, str):
        messages = [_message(message, number) for number, message in enumerate(prompt)]
        row = {"prompt": messages} | ({"chat_template_kwargs": kwargs} if kwargs else {})
        if not model.tokenizer.chat_template:
            row = {"prompt": _lines(messages)}
    try:
        return next(iter(GRPODataset([row], model.tokenizer)))
    except RLHFError as err:
        raise APIError(400, f"{key} can't be taken: {err}", code="invalid_value", param=key) from None


def _lines(messages: Sequence[Mapping[str, Any]]) -> str:
    """What a model without a chat template is given."""
    return "\n".join(message["content"] for message in messages)


def kept_prompt(model: ServedPolicy, prompt: str | list[int] | list[dict[str, Any]]) -> str | list[dict[str, str]]:
    """A prompt that ``prompt_ids`` took, as a row for training has it."""
    if isinstance(prompt, str):
        return prompt
    if prompt and isinstance(prompt[0], int):
        return str(model.tokenizer.decode(prompt))
    messages = [_message(message, number) for number, message in enumerate(prompt)]  # type: ignore[arg-type]
    if not model.tokenizer.chat_template:
        return _lines(messages)
    return [{"role": message["role"], "content": message["content"]} for message in messages]


def _message(message: dict[str, Any], number: int) -> dict[str, Any]:
    """A message whose content is one text."""
    content = message.get("content")
    if isinstance(content, list):
        kinds = {part.get("type") if isinstance(part, dict) else None for part in content}
        if kinds - {"text"}:
            param = f"messages.{number}.content"
            raise APIError(
                400,
                f"{param} holds parts other than text, which this server does not take.",
                code="invalid_value",
                param=param,
            )
        content = joined_text(content, f"messages.{number}.content")
    if not isinstance(content, str) or not isinstance(message.get("role"), str):
        param = f"messages.{number}"
        raise APIError(400, f"{param} needs a role and a content that is text.", code="invalid_value", param=param)
    return {**message, "content": content}


def _too_long(model: ServedPolicy, length: int, wanted: int | None) -> APIError:
    if not length:
        return APIError(400, "The prompt has no tokens.", code="invalid_value", param="prompt")
    asked = f" and {wanted} tokens of completion were asked for" if wanted is not None else ""
    do = (
        "Shorten the prompt" if wanted is None or length + 1 > model.context else "Shorten the prompt, or ask for fewer"
    )
    message = f"This model takes {model.context} tokens of prompt and completion; the prompt has {length}{asked}. {do}."
    return APIError(400, message, code="context_length_exceeded")
