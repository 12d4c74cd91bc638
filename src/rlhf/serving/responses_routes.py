"""``/v1/responses``: OpenAI's newer form of a chat completion, whole or as events. Nothing is stored: a conversation is sent whole each time.

Source: https://platform.openai.com/docs/api-reference/responses and .../responses-streaming.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from rlhf.serving.api_errors import APIError
from rlhf.serving.asked_requests import Asked
from rlhf.serving.client_keys import CompletionsClient
from rlhf.serving.completion_memory import Answer
from rlhf.serving.completion_routes import FINGERPRINT, Sent, chained, generation_of, kept_answer
from rlhf.serving.generate_api import Completed, prompt_ids
from rlhf.serving.generation import Accepted
from rlhf.serving.live_traffic import SampledAnswer
from rlhf.serving.prompt_reading import beside_streams, size_of
from rlhf.serving.responses_requests import ResponsesBody, responses_body

router = APIRouter()


@router.post("/v1/responses")
async def responses(sent: Sent, request: Request, client: CompletionsClient) -> Response:
    """Answer a text, or a conversation."""
    body, generation = responses_body(sent), generation_of(request)
    name, model = generation.model(body, body.person or client)
    messages = body.messages()
    ids = await beside_streams(
        size_of([messages]), lambda: prompt_ids(model, messages, kwargs=body.chat_template_kwargs)
    )
    asked = generation.submit(body, name, model, ids, client=client, num_top=None, prefix="resp_")
    answer = kept_answer(request, body, [asked], [messages], client)
    form, headers = _Form(body, asked), {FINGERPRINT: model.fingerprint}
    if body.stream:
        stream = _events(request, asked, form, answer)
        first = await anext(stream)  # what is refused before the first word is refused with a status
        return StreamingResponse(chained(first, stream), media_type="text/event-stream", headers=headers)
    completed, cached = Completed(), 0
    async for event in generation.pieces(asked, request):
        if isinstance(event, Accepted):
            cached = event.cached_tokens
        else:
            completed.add(event)
    if answer is not None:
        await answer.keep({0: completed})
    return JSONResponse(form.whole(completed, cached), headers=headers)


class _Form:
    """How an answer is written."""

    def __init__(self, body: ResponsesBody, asked: Asked) -> None:
        self.body, self.asked = body, asked
        self.created = time.time()
        self.item_id = f"msg_{secrets.token_hex(12)}"

    def response(self, status: str, output: list[dict[str, Any]], usage: dict[str, Any] | None) -> dict[str, Any]:
        """The object ``response``."""
        body = self.body
        form = body.text.format if body.text is not None and body.text.format is not None else None
        text = form.model_dump(by_alias=True, exclude_none=True) if form is not None else {"type": "text"}
        incomplete = {"reason": "max_output_tokens"} if status == "incomplete" else None
        return {
            "id": self.asked.id, "object": "response", "created_at": self.created, "status": status, "error": None,
            "incomplete_details": incomplete, "instructions": body.instructions, "max_output_tokens": body.max_output_tokens,
            "model": self.asked.name, "system_fingerprint": f"fp_{self.asked.model.fingerprint[:10]}", "output": output,
            "parallel_tool_calls": False, "previous_response_id": None, "store": False, "temperature": self.asked.sampling.temperature,
            "top_p": self.asked.sampling.top_p, "text": {"format": text}, "tool_choice": "none", "tools": [], "truncation": "disabled",
            "usage": usage, "user": body.user, "safety_identifier": body.safety_identifier, "metadata": body.metadata or {},
        }  # fmt: skip

    def part(self, text: str) -> dict[str, Any]:
        """The text of the answer."""
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}

    def item(self, status: str, content: list[dict[str, Any]]) -> dict[str, Any]:
        """The message of the answer."""
        return {"id": self.item_id, "type": "message", "role": "assistant", "status": status, "content": content}

    def whole(self, completed: Completed, cached: int) -> dict[str, Any]:
        """The answer when it is over."""
        status = "incomplete" if completed.finish_reason == "length" else "completed"
        prompt, sampled = self.asked.num_prompt_tokens, len(completed.tokens)
        usage = {
            "input_tokens": prompt, "input_tokens_details": {"cached_tokens": cached}, "output_tokens": sampled,
            "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": prompt + sampled,
        }  # fmt: skip
        return self.response(status, [self.item(status, [self.part(completed.text)])], usage)


async def _events(
    request: Request, asked: Asked, form: _Form, answer: Answer | SampledAnswer | None
) -> AsyncIterator[str]:
    """Server-sent events, numbered."""
    number = -1

    def said(kind: str, **keys: Any) -> str:
        nonlocal number
        number += 1
        message = {"type": kind, "sequence_number": number, **keys}
        return f"event: {kind}\ndata: {json.dumps(message, ensure_ascii=False)}\n\n"

    place = {"item_id": form.item_id, "output_index": 0, "content_index": 0}
    completed, cached, has_begun = Completed(), 0, False
    try:
        async for event in generation_of(request).pieces(asked, request):
            if isinstance(event, Accepted):
                cached, has_begun = event.cached_tokens, True
                yield said("response.created", response=form.response("in_progress", [], None))
                yield said("response.in_progress", response=form.response("in_progress", [], None))
                yield said("response.output_item.added", output_index=0, item=form.item("in_progress", []))
                yield said("response.content_part.added", **place, part=form.part(""))
                continue
            completed.add(event)
            if event.text:
                yield said("response.output_text.delta", **place, delta=event.text, logprobs=[])
    except APIError as err:
        if not has_begun:
            raise
        failed = form.response("failed", [], None) | {
            "error": {"code": err.code or "server_error", "message": err.message}
        }
        yield said("response.failed", response=failed)  # the status is out
        return
    if answer is not None:  # before its end is sent: a client that has all of it may give feedback
        await answer.keep({0: completed})
    whole = form.whole(completed, cached)
    yield said("response.output_text.done", **place, text=completed.text, logprobs=[])
    yield said("response.content_part.done", **place, part=form.part(completed.text))
    yield said("response.output_item.done", output_index=0, item=whole["output"][0])
    yield said(f"response.{whole['status']}", response=whole)
