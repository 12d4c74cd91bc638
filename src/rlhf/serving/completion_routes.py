"""``/v1/chat/completions``, ``/v1/completions`` and ``/v1/models`` as OpenAI's clients know them.

Source: https://platform.openai.com/docs/api-reference. Every answer names its weights: ``system_fingerprint`` has the first
digits of their hash, the header ``X-Model-Fingerprint`` all of them.
"""

from __future__ import annotations

import asyncio
import json
import time
from abc import ABC, abstractmethod
from codecs import getincrementaldecoder
from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Body, Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from rlhf.data.message_text import shown
from rlhf.serving.api_errors import APIError
from rlhf.serving.api_requests import ChatBody, CompletionBody, GenerationBody, body_of
from rlhf.serving.asked_requests import Asked
from rlhf.serving.client_keys import AnyClient, CompletionsClient
from rlhf.serving.completion_memory import Answer, CompletionMemory
from rlhf.serving.generate_api import Completed, Generation, kept_prompt, prompt_ids, prompt_of
from rlhf.serving.generation import Accepted, Piece, TokenLogprobs
from rlhf.serving.live_traffic import LiveTraffic, SampledAnswer
from rlhf.serving.prompt_reading import beside_streams, size_of
from rlhf.serving.search_answers import SearchedAnswer, searched_answer
from rlhf.serving.token_texts import is_left_out, token_bytes, token_text

router = APIRouter()
FINGERPRINT = "X-Model-Fingerprint"
ENCODER = json.JSONEncoder(ensure_ascii=False)
Sent = Annotated[Any, Body()]


def generation_of(request: Request) -> Generation:
    """The server's way to its engine."""
    generation: Generation = request.app.state.generation
    return generation


@router.get("/v1/models")
def models(request: Request, client: AnyClient) -> dict[str, Any]:
    """What may be asked for."""
    routes = generation_of(request).routes
    of, shares = routes.models(), routes.shares()
    listed = [
        {
            "id": name, "object": "model", "created": request.app.state.started, "owned_by": "rlhf",
            "fingerprint": of[name][0].fingerprint if name in of else None,
            "version": of[name][1] if name in of else None,
            "max_model_len": of[name][0].context if name in of else None,
            "kind": of[name][0].kind if name in of else None, "shares": shares.get(name),
        }
        for name in routes.names()
    ]  # fmt: skip
    return {"object": "list", "data": listed}


@router.get("/v1/models/{name:path}")
def one_model(name: str, request: Request, client: AnyClient) -> dict[str, Any]:
    """One of them."""
    for model in models(request, client)["data"]:
        if model["id"] == name:
            return dict(model)
    raise APIError(404, f"There is no model {shown(name)} here.", code="model_not_found", param="model")


@router.post("/v1/chat/completions")
async def chat_completions(sent: Sent, request: Request, client: CompletionsClient) -> Response:
    """Continue a conversation."""
    body, generation = body_of(ChatBody, sent), generation_of(request)
    name, model = generation.model(body, body.person or client)
    prompt = await beside_streams(
        size_of([body.messages]), lambda: prompt_of(model, body.messages, kwargs=body.chat_template_kwargs)
    )
    searched = None
    if body.search is not None:
        asked, searched = searched_answer(request.app.state, body, body.search, name, model, prompt, client)
    else:
        asked = generation.submit(
            body, name, model, prompt.ids, client=client, num_top=body.num_top, prefix="chatcmpl-"
        )
    answer = kept_answer(request, body, [asked], [body.messages], client)
    return await _answer(request, body, [asked], _Chat(asked), answer, searched)


@router.post("/v1/completions")
async def completions(sent: Sent, request: Request, client: CompletionsClient) -> Response:
    """Continue texts."""
    body, generation = body_of(CompletionBody, sent), generation_of(request)
    name, model = generation.model(body, body.person or client)
    if not body.prompts:
        raise APIError(400, "prompt is an empty list.", code="invalid_value", param="prompt")
    if len(body.prompts) > generation.engine.max_requests:
        message = f"prompt holds {len(body.prompts)} prompts; this server takes {generation.engine.max_requests} requests at once."
        raise APIError(400, message, code="invalid_value", param="prompt")
    if not all(body.prompts):
        raise APIError(400, "prompt holds an empty prompt.", code="invalid_value", param="prompt")
    ids = await beside_streams(size_of(body.prompts), lambda: [prompt_ids(model, prompt) for prompt in body.prompts])
    asked: list[Asked] = []
    try:
        for number, each in enumerate(ids):
            asked.append(
                generation.submit(
                    body, name, model, each, client=client, num_top=body.logprobs, prefix="cmpl-", number=number
                )
            )
    except APIError:
        for one in asked:
            generation.engine.cancel(one.id)
            generation.inbox.forget(one.id)
        raise
    answer = kept_answer(request, body, asked, body.prompts, client)
    return await _answer(request, body, asked, _Text(asked[0], echo_ids=ids), answer)


def kept_answer(
    request: Request, body: GenerationBody, asked: list[Asked], prompts: Sequence[Any], client: str
) -> Answer | SampledAnswer | None:
    """Where completions are kept or sampled; None where they are not."""
    memory: CompletionMemory | None = request.app.state.memory
    live: LiveTraffic | None = request.app.state.live
    if memory is None and live is None:
        return None
    kept = [kept_prompt(asked[0].model, prompt) for prompt in prompts]
    answer = memory.of(body, asked, kept, client) if memory is not None else None
    return answer if live is None or body.consent is False else SampledAnswer(live, answer, asked, kept)


class _Form(ABC):
    """How one kind of answer is written."""

    whole = chunk = ""

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        self.created = int(time.time())

    def head(self, kind: str) -> dict[str, Any]:
        """Keys that every message has."""
        return {
            "id": self.asked.id, "object": kind, "created": self.created, "model": self.asked.name,
            "system_fingerprint": f"fp_{self.asked.model.fingerprint[:10]}",
        }  # fmt: skip

    @abstractmethod
    def choice(self, index: int, completed: Completed) -> dict[str, Any]:
        """A whole completion."""

    def first(self, index: int) -> dict[str, Any] | None:
        """What a stream says of a completion before its first token."""
        return None

    @abstractmethod
    def delta(self, index: int, piece: Piece) -> dict[str, Any]:
        """What a completion grew by."""

    def bytes_of(self, token: int) -> bytes:
        """A token's bytes."""
        return token_bytes(self.asked.model.tokenizer, token)


class _Chat(_Form):
    whole, chunk = "chat.completion", "chat.completion.chunk"

    def choice(self, index: int, completed: Completed) -> dict[str, Any]:
        message = {"role": "assistant", "content": completed.text, "refusal": None}
        logprobs = self._logprobs(completed.tokens, completed.logprobs)
        return {"index": index, "message": message, "logprobs": logprobs, "finish_reason": completed.finish_reason}

    def first(self, index: int) -> dict[str, Any]:
        return {"index": index, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}

    def delta(self, index: int, piece: Piece) -> dict[str, Any]:
        delta = {"content": piece.text} if piece.text else {}
        logprobs = self._logprobs(piece.tokens, piece.logprobs)
        return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": piece.finish_reason}

    def _logprobs(self, tokens: list[int], values: list[TokenLogprobs]) -> dict[str, Any] | None:
        if not values:
            return None
        content = [
            self._entry(token, value.logprob) | {"top_logprobs": [self._entry(t, p) for t, p in value.top]}
            for token, value in zip(tokens, values, strict=True)
        ]
        return {"content": content, "refusal": None}

    def _entry(self, token: int, logprob: float) -> dict[str, Any]:
        data = self.bytes_of(token)
        return {"token": token_text(data), "logprob": logprob, "bytes": list(data)}


class _Text(_Form):
    whole, chunk = "text_completion", "text_completion"

    def __init__(self, asked: Asked, *, echo_ids: list[list[int]]) -> None:
        super().__init__(asked)
        self._offsets: dict[int, int] = {}
        self._decoders: dict[int, Any] = {}
        """Of each completion, for characters of several tokens."""
        self.num_prompts = len(echo_ids)

    def choice(self, index: int, completed: Completed) -> dict[str, Any]:
        logprobs = self._logprobs(index, completed.tokens, completed.logprobs)
        return {"index": index, "text": completed.text, "logprobs": logprobs, "finish_reason": completed.finish_reason}

    def delta(self, index: int, piece: Piece) -> dict[str, Any]:
        logprobs = self._logprobs(index, piece.tokens, piece.logprobs)
        return {"index": index, "text": piece.text, "logprobs": logprobs, "finish_reason": piece.finish_reason}

    def _logprobs(self, index: int, tokens: list[int], values: list[TokenLogprobs]) -> dict[str, Any] | None:
        if not values:
            return None
        decoder = self._decoders.setdefault(index, getincrementaldecoder("utf-8")("replace"))
        offsets = []
        for token in tokens:
            offsets.append(self._offsets.get(index, 0))
            data = b"" if is_left_out(self.asked.model.tokenizer, token) else self.bytes_of(token)
            self._offsets[index] = offsets[-1] + len(decoder.decode(data))
        return {
            "tokens": [self._name(token) for token in tokens],
            "token_logprobs": [value.logprob for value in values],
            "top_logprobs": [{self._name(t): p for t, p in value.top} for value in values],
            "text_offset": offsets,
        }

    def _name(self, token: int) -> str:
        """A token's text; this API marks a part of a character."""
        data = self.bytes_of(token)
        text = token_text(data)
        return text if text.encode("utf-8", "surrogatepass") == data else f"bytes:{text}"


async def _answer(
    request: Request,
    body: GenerationBody,
    asked: list[Asked],
    form: _Form,
    answer: Answer | SampledAnswer | None,
    searched: SearchedAnswer | None = None,
) -> Response:
    headers = {FINGERPRINT: form.asked.model.fingerprint}
    if body.stream:
        stream = _stream(request, body, asked, form, answer, searched)
        first = await anext(stream)  # what is refused before the first word is refused with a status
        return StreamingResponse(chained(first, stream), media_type="text/event-stream", headers=headers)
    completed: dict[int, Completed] = {}
    usage = _Usage()
    async for index, event in _all_pieces(request, asked) if searched is None else searched.events(request):
        if isinstance(event, Accepted):
            usage.cached += event.cached_tokens
        else:
            completed.setdefault(index, Completed()).add(event)
    if answer is not None:
        await answer.keep(dict(sorted(completed.items())))
    usage.prompt = sum(one.num_prompt_tokens for one in asked)
    usage.completion = sum(len(one.tokens) for one in completed.values())
    choices = [form.choice(index, one) for index, one in sorted(completed.items())]
    told = {"choices": choices, "usage": usage.told(searched)} | (
        {"search": searched.told} if searched is not None else {}
    )
    return JSONResponse(form.head(form.whole) | told, headers=headers)


async def _stream(
    request: Request,
    body: GenerationBody,
    asked: list[Asked],
    form: _Form,
    answer: Answer | SampledAnswer | None,
    searched: SearchedAnswer | None,
) -> AsyncIterator[str]:
    """Server-sent events."""
    usage = _Usage(prompt=sum(one.num_prompt_tokens for one in asked))
    with_usage = body.stream_options is not None and body.stream_options.include_usage
    begun: set[int] = set()
    completed: dict[int, Completed] = {}

    head = ENCODER.encode(form.head(form.chunk)).removesuffix("}")

    def said(choices: list[dict[str, Any]], **more: Any) -> str:
        own = {"choices": choices} | ({"usage": None} if with_usage else {}) | more
        return f"data: {head}, {ENCODER.encode(own).removeprefix('{')}\n\n"

    try:
        async for index, event in _all_pieces(request, asked) if searched is None else searched.events(request):
            if isinstance(event, Accepted):
                usage.cached += event.cached_tokens
                continue
            usage.completion += len(event.tokens)
            first = form.first(index) if index not in begun else None
            begun.add(index)
            if first is not None:
                yield said([first])
            if answer is not None:
                completed.setdefault(index, Completed()).add(event)
                if (
                    event.finish_reason is not None
                ):  # before its end is sent: a client that has all of it may give feedback
                    await answer.keep({index: completed.pop(index)})
            if event.text or event.logprobs or event.finish_reason is not None:
                yield said([form.delta(index, event)], **({"search": searched.told} if searched is not None else {}))
    except APIError as err:
        if not begun:
            raise
        yield f"data: {json.dumps(err.body())}\n\n"  # the status is out
        return
    if with_usage:
        yield said([], usage=usage.told(searched))
    yield "data: [DONE]\n\n"


async def _all_pieces(request: Request, asked: list[Asked]) -> AsyncIterator[tuple[int, Accepted | Piece]]:
    """(number of the completion among all, event) of several prompts at once."""
    generation = generation_of(request)
    if len(asked) == 1:
        async for event in generation.pieces(asked[0], request):
            yield (event.index if isinstance(event, Piece) else 0), event
        return
    queue: asyncio.Queue[tuple[int, Accepted | Piece] | APIError | None] = asyncio.Queue()

    async def follow(number: int, one: Asked) -> None:
        try:
            async for event in generation.pieces(one, request):
                await queue.put((number * one.num_samples + (event.index if isinstance(event, Piece) else 0), event))
            await queue.put(None)
        except APIError as err:
            await queue.put(err)

    tasks = [asyncio.create_task(follow(number, one)) for number, one in enumerate(asked)]
    try:
        left = len(tasks)
        while left:
            got = await queue.get()
            if isinstance(got, APIError):
                raise got
            if got is None:
                left -= 1
            else:
                yield got
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def chained(first: str, rest: AsyncIterator[str]) -> AsyncIterator[str]:
    """A stream whose first text was waited for."""
    yield first
    async for text in rest:
        yield text


class _Usage:
    def __init__(self, prompt: int = 0) -> None:
        self.prompt, self.completion, self.cached = prompt, 0, 0

    def told(self, searched: SearchedAnswer | None) -> dict[str, Any]:
        """A search's tokens are all that it sampled, and the whole cost is a field of its own."""
        completion = self.completion if searched is None else searched.cost.policy_tokens
        usage: dict[str, Any] = {
            "prompt_tokens": self.prompt,
            "completion_tokens": completion,
            "total_tokens": self.prompt + completion,
            "prompt_tokens_details": {"cached_tokens": self.cached},
        }
        return usage if searched is None else usage | {"search": searched.cost.to_dict()}
