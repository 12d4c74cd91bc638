"""Bodies of requests, as OpenAI's clients send them, and what of them is done here.

Every key of OpenAI's is known. One that nothing is done with is refused by name, unless it says what would happen anyway.
Source: https://platform.openai.com/docs/api-reference/chat/create and .../completions/create; keys beyond those are vLLM's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from rlhf.config.error_messages import shortened
from rlhf.config.policy import SamplingConfig
from rlhf.data.message_text import describe
from rlhf.errors import did_you_mean
from rlhf.serving.api_errors import APIError
from rlhf.serving.search_requests import SearchBody

MOST_STOPS = 16
LEAST_TEMPERATURE = 1e-3
"""Below it the likeliest token is taken: logits that are divided by less overflow."""
MOST_TOP_LOGPROBS = 20
MOST_DIGITS = 19
"""Of a token's number."""
UNSUPPORTED: Mapping[str, tuple[Any, ...]] = {
    "frequency_penalty": (0,), "presence_penalty": (0,), "audio": (), "modalities": (["text"],), "prediction": (),
    "tools": ([],), "tool_choice": ("none",), "functions": ([],), "function_call": ("none",), "web_search_options": (),
    "reasoning_effort": (), "verbosity": (), "moderation": (), "prompt_cache_options": ({},), "prompt_cache_retention": ("in_memory",),
    "store": (False,), "parallel_tool_calls": (True, False), "service_tier": ("auto", "default"),
    "suffix": ("",), "echo": (False,), "best_of": (1,), "stop_token_ids": ([],), "prompt_logprobs": (), "guided_json": (),
}  # fmt: skip
"""Key -> values that ask for nothing."""
NUMBERS = (
    "n", "seed", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_tokens", "max_completion_tokens",
    "max_output_tokens", "top_logprobs",
)  # fmt: skip
"""Keys that take no ``true``, which Python takes for 1."""
TokenId = Annotated[int, Field(strict=True)]
"""``true`` is no token."""


class StreamOptions(BaseModel):
    """What a stream says beyond the completion."""

    model_config = ConfigDict(extra="forbid")
    include_usage: bool = False
    include_obfuscation: Literal[False] | None = None
    continuous_usage_stats: Literal[False] | None = None
    """vLLM's."""


class ResponseFormat(BaseModel):
    """The form of the completion."""

    model_config = ConfigDict(extra="forbid")
    type: Literal["text", "json_object", "json_schema"]
    json_schema: dict[str, Any] | None = None


class GenerationBody(BaseModel):
    """What both kinds of completions take."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, strict=False)

    model: str
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(ge=1)] = 1
    seed: int | None = None
    stop: str | list[str] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: int | None = None
    min_p: Annotated[float, Field(ge=0, lt=1)] | None = None
    repetition_penalty: Annotated[float, Field(ge=0.01, le=100)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = None
    response_format: ResponseFormat | None = None
    ignore_eos: bool = False
    user: str | None = None
    safety_identifier: str | None = None
    """OpenAI's newer name of ``user``."""
    prompt_cache_key: str | None = None
    """Changes nothing: beginnings that prompts have in common are found without it."""
    metadata: dict[str, JsonValue] | None = None
    consent: Annotated[bool, Field(strict=True)] | None = None

    @property
    def person(self) -> str | None:
        """Who asks, of all the users of a client."""
        return self.user or self.safety_identifier

    @property
    def stops(self) -> list[str]:
        """Texts that end a completion."""
        return [self.stop] if isinstance(self.stop, str) else list(self.stop or ())

    @property
    def most_tokens(self) -> int | None:
        """The limit that the request sets."""
        return self.max_tokens

    def sampling(self, most: int) -> SamplingConfig:
        """How its completions are drawn; ``most`` tokens where it sets no limit."""
        wanted = self.most_tokens
        return SamplingConfig(
            max_new_tokens=min(wanted, most) if wanted is not None else most,
            temperature=1.0
            if self.temperature is None
            else self.temperature
            if self.temperature > LEAST_TEMPERATURE
            else 0,
            top_p=1.0 if self.top_p is None else self.top_p,
            top_k=None if self.top_k is None or self.top_k < 1 else self.top_k,
            min_p=0.0 if self.min_p is None else self.min_p,
            repetition_penalty=1.0 if self.repetition_penalty is None else self.repetition_penalty,
            stop=self.stops,
        )


class ChatBody(GenerationBody):
    """``POST /v1/chat/completions``."""

    messages: Annotated[list[dict[str, Any]], Field(min_length=1, max_length=1000)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=MOST_TOP_LOGPROBS)] | None = None
    chat_template_kwargs: dict[str, JsonValue] | None = None
    search: SearchBody | None = None

    @property
    def most_tokens(self) -> int | None:
        """The limit that the request sets."""
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens

    @property
    def num_top(self) -> int | None:
        """How many likely tokens are reported; None for no log-probabilities."""
        return (self.top_logprobs or 0) if self.logprobs else None


class CompletionBody(GenerationBody):
    """``POST /v1/completions``."""

    prompt: str | list[str] | list[TokenId] | list[list[TokenId]]
    logprobs: Annotated[int, Field(ge=0, le=MOST_TOP_LOGPROBS)] | None = None

    @property
    def prompts(self) -> list[str] | list[list[int]]:
        """One or several."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if self.prompt and isinstance(self.prompt[0], int):
            return [self.prompt]
        return cast(list[str] | list[list[int]], self.prompt)


AnyBody = TypeVar("AnyBody", bound=BaseModel)
Body = TypeVar("Body", bound=GenerationBody)


def check_json(sent: Any) -> None:
    """Refuse what is no JSON object.

    Raises:
        APIError: It is none, or the request's type says so.
    """
    if isinstance(sent, bytes):
        message = "The request does not say that it is JSON; send the header `Content-Type: application/json`."
        raise APIError(400, message, code="invalid_json")
    if not isinstance(sent, dict):
        raise APIError(400, f"The request is {describe(sent)}; wanted a JSON object.", code="invalid_json")


def read_body(kind: type[AnyBody], sent: Any, unsupported: Mapping[str, tuple[Any, ...]]) -> AnyBody:
    """A request's body.

    Args:
        kind: Its keys.
        sent: What came.
        unsupported: Key -> values that ask for nothing; other values of it are refused by name.

    Raises:
        APIError: It is none; the first fault is named.
    """
    check_json(sent)
    taken = dict(sent)
    for key, nothing in unsupported.items():
        if key in taken and key not in kind.model_fields:
            value = taken.pop(key)
            if value is not None and value not in nothing:
                raise APIError(
                    400,
                    f"{key} is not supported by this server; leave it out.",
                    code="unsupported_parameter",
                    param=key,
                )
    for key in [key for key, value in taken.items() if value is None]:
        del taken[key]
    try:
        return kind.model_validate(taken)
    except ValidationError as err:
        raise _fault(kind, taken, err) from None


def body_of(kind: type[Body], sent: Any, unsupported: Mapping[str, tuple[Any, ...]] = UNSUPPORTED) -> Body:
    """A request for completions, checked.

    Raises:
        APIError: It is none; the first fault is named.
    """
    check_json(sent)
    bias = sent.get("logit_bias")
    numbers = {key: [sent[key]] for key in NUMBERS if key in sent}
    for key, values in {**numbers, "logit_bias": bias.values() if isinstance(bias, dict) else []}.items():
        if any(isinstance(value, bool) for value in values):
            raise APIError(400, f"{key} holds true or false; wanted a number.", code="invalid_value", param=key)
    body = read_body(kind, sent, unsupported)
    if len(body.stops) > MOST_STOPS or any(not text for text in body.stops):
        raise APIError(
            400, f"stop takes up to {MOST_STOPS} texts, none of them empty.", code="invalid_value", param="stop"
        )
    if any(not is_text(text) for text in body.stops):
        message = "stop holds half of a surrogate pair, which is no character."
        raise APIError(400, message, code="invalid_value", param="stop")
    if isinstance(body, ChatBody) and body.top_logprobs is not None and not body.logprobs:
        raise APIError(400, "top_logprobs needs logprobs: true.", code="invalid_value", param="top_logprobs")
    if body.stream_options is not None and not body.stream:
        raise APIError(400, "stream_options needs stream: true.", code="invalid_value", param="stream_options")
    return body


def joined_text(parts: Sequence[Mapping[str, Any]], where: str) -> str:
    """The text of a message that comes in parts.

    Raises:
        APIError: A part holds none.
    """
    for number, part in enumerate(parts):
        if not isinstance(part.get("text"), str):
            got = describe(part["text"]) if "text" in part else "missing"
            message = f"{where}.{number}.text is {got}; wanted a text."
            raise APIError(400, message, code="invalid_value", param=where)
    return "".join(part["text"] for part in parts)


def is_text(text: str) -> bool:
    """Whether it can be written in UTF-8: JSON may hold half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def biases(body: GenerationBody, vocabulary: int) -> dict[int, float]:
    """Token -> bias.

    Raises:
        APIError: A key is no token of the model's.
    """
    out = {}
    for key, value in (body.logit_bias or {}).items():
        if not key.isascii() or not key.isdecimal() or len(key) > MOST_DIGITS or int(key) >= vocabulary:
            message = f"logit_bias names the token {shortened(key)!r}; the model's are 0 to {vocabulary - 1}."
            raise APIError(400, message, code="invalid_value", param="logit_bias")
        out[int(key)] = value
    return out


def _where(sent: Any, place: Sequence[int | str]) -> str:
    """A fault's place in what was sent; pydantic's place also names the types that it tried."""
    parts, value = [], sent
    for number, part in enumerate(place):
        is_last_key = number == len(place) - 1 and isinstance(part, str) and isinstance(value, dict)
        is_in_list = isinstance(value, list) and isinstance(part, int) and part < len(value)
        if is_in_list or (isinstance(value, dict) and part in value):
            value = value[part]
        elif not is_last_key:  # a type, and no key that is missing
            continue
        parts.append(str(part))
    return ".".join(parts)


def _fault(kind: type[BaseModel], sent: Any, err: ValidationError) -> APIError:
    errors = err.errors(include_url=False)
    of_key = [each for each in errors if each["loc"][:1] == errors[0]["loc"][:1]]
    first = max(
        of_key, key=lambda each: _where(sent, each["loc"]).count(".")
    )  # of the forms that were tried the one that fits best
    where = _where(sent, first["loc"])
    top = str(first["loc"][0]) if first["loc"] else ""
    if first["type"] == "extra_forbidden":
        known: Sequence[str] = list(kind.model_fields)
        return APIError(
            400,
            f"{shortened(where)} is not a key of this request.{did_you_mean(where, known)}",
            code="unknown_parameter",
            param=shortened(where),
        )
    if first["type"] == "missing":
        return APIError(400, f"{where} is missing.", code="missing_required_parameter", param=where)
    got = describe(first["input"])
    if top == "prompt":  # pydantic names each form that it is not of
        message = f"prompt is {got}; wanted a text, token ids, or a list of either."
        return APIError(400, message, code="invalid_value", param=top)
    wanted = "wanted an object" if first["type"] in ("model_type", "dict_type") else first["msg"].lower()
    return APIError(400, f"{where} is {got}: {wanted}.", code="invalid_value", param=top or None)
