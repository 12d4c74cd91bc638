"""Bodies of ``POST /v1/responses``, OpenAI's newer form of a chat completion, and what of them is done here.

Source: https://platform.openai.com/docs/api-reference/responses/create.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue, model_validator

from rlhf.serving.api_errors import APIError
from rlhf.serving.api_requests import GenerationBody, ResponseFormat, body_of, joined_text

UNSUPPORTED: Mapping[str, tuple[Any, ...]] = {
    "previous_response_id": (), "conversation": (), "store": (False,), "background": (False,), "include": ([],), "tools": ([],),
    "tool_choice": ("none", "auto"), "parallel_tool_calls": (True, False), "max_tool_calls": (), "reasoning": ({},), "prompt": (),
    "truncation": ("disabled",), "service_tier": ("auto", "default"), "top_logprobs": (0,), "context_management": ([],),
    "access_programs": (), "background_options": (), "image": (), "moderation": (), "prompt_cache_options": ({},),
    "prompt_cache_retention": ("in_memory",),
}  # fmt: skip
"""Key -> values that ask for nothing. Nothing is stored here, so ``store: true`` is refused."""
OTHER_NAMES = {"max_tokens": "max_output_tokens", "response_format": "text.format", "messages": "input"}
"""Key of chat completions -> its name here."""
TEXT_PARTS = frozenset({"input_text", "output_text", "text"})
ROLES = {"developer": "system"}
"""Role -> the one that chat templates know."""


class TextFormat(BaseModel):
    """The form of the answer."""

    model_config = ConfigDict(extra="forbid")
    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class TextSettings(BaseModel):
    """The field ``text``."""

    model_config = ConfigDict(extra="forbid")
    format: TextFormat | None = None


class ResponsesBody(GenerationBody):
    """``POST /v1/responses``."""

    input: Annotated[str | list[dict[str, Any]], Field(min_length=1)]
    instructions: str | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    text: TextSettings | None = None
    chat_template_kwargs: dict[str, JsonValue] | None = None

    @model_validator(mode="after")
    def _format(self) -> Self:
        form = self.text.format if self.text is not None else None
        if form is not None:
            schema = {"schema": form.schema_} if form.schema_ is not None else None
            self.response_format = ResponseFormat(type=form.type, json_schema=schema)
        return self

    @property
    def most_tokens(self) -> int | None:
        """The limit that the request sets."""
        return self.max_output_tokens

    def messages(self) -> list[dict[str, Any]]:
        """The input as messages of a chat, the instructions first.

        Raises:
            APIError: It holds something other than text.
        """
        first = [{"role": "system", "content": self.instructions}] if self.instructions is not None else []
        if isinstance(self.input, str):
            return [*first, {"role": "user", "content": self.input}]
        return [*first, *(_message(item, number) for number, item in enumerate(self.input))]


def responses_body(sent: Any) -> ResponsesBody:
    """A request's body, checked.

    Raises:
        APIError: It is none; the first fault is named.
    """
    for key, name in OTHER_NAMES.items():
        if isinstance(sent, dict) and sent.get(key) is not None:
            raise APIError(400, f"{key} is called {name} here.", code="unknown_parameter", param=key)
    body = body_of(ResponsesBody, sent, UNSUPPORTED)
    if body.n > 1:
        raise APIError(400, "n is not supported by this route; leave it out.", code="unsupported_parameter", param="n")
    return body


def _message(item: dict[str, Any], number: int) -> dict[str, Any]:
    kind, param = item.get("type", "message"), f"input.{number}"
    if kind != "message":
        message = f"{param} is of the type {kind!r}; this server takes messages only."
        raise APIError(400, message, code="unsupported_parameter", param=param)
    content = item.get("content")
    if isinstance(content, list):
        kinds = [part.get("type") if isinstance(part, dict) else None for part in content]
        if other := [each for each in kinds if each not in TEXT_PARTS]:
            message = f"{param}.content holds a part of the type {other[0]!r}; this server takes text only."
            raise APIError(400, message, code="unsupported_parameter", param=f"{param}.content")
        content = joined_text(content, f"{param}.content")
    role = item.get("role")
    return {"role": ROLES.get(str(role), role), "content": content}
