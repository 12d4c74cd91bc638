"""Bodies of requests for scores, and the samples that they name.

    text_1, text_2 | queries, documents | queries, items | data_1, data_2    vLLM's pairs: prompts and completions
    messages                                                                 conversations that end with the completion
    prompts, completions_a, completions_b                                    comparisons
    prompts, completions, ...                                                what a reward of `kind: service` sends
    query, documents                                                         vLLM's and Jina's rerank

Source of vLLM's keys: https://docs.vllm.ai/en/stable/models/pooling_models/scoring/.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from rlhf.data.contracts import Prompt
from rlhf.data.datasets import GRPODataset
from rlhf.data.message_text import describe
from rlhf.errors import RLHFError
from rlhf.rewards.types import TextCompletion
from rlhf.serving.api_errors import APIError
from rlhf.serving.api_requests import check_json, joined_text, read_body
from rlhf.serving.served_scorer import ServedScorer

UNSUPPORTED: Mapping[str, tuple[Any, ...]] = {
    "use_activation": (False,), "activation": (False,), "softmax": (False,), "truncate_prompt_tokens": (), "truncation_side": (),
    "max_tokens_per_query": (0,), "max_tokens_per_doc": (0,), "instruction": ("",), "mm_processor_kwargs": ({},), "priority": (0,),
    "cache_salt": (), "add_special_tokens": (True,), "request_id": (), "encoding_format": ("float",), "return_documents": (True,),
}  # fmt: skip
"""Key of vLLM's -> values that ask for nothing."""

Input = str | list[dict[str, Any]] | dict[str, Any]
"""A text, messages, or vLLM's ``{"content": [{"type": "text", "text": ...}]}``."""
Inputs = Input | list[Input]


class ScoreBody(BaseModel):
    """What all forms take."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)
    model: str | None = None
    user: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class TextPairs(ScoreBody):
    """vLLM's first form."""

    text_1: Inputs
    text_2: Inputs


class DocumentPairs(ScoreBody):
    """vLLM's second form."""

    queries: Inputs
    documents: Inputs


class ItemPairs(ScoreBody):
    """vLLM's third form."""

    queries: Inputs
    items: Inputs


class DataPairs(ScoreBody):
    """vLLM's fourth form."""

    data_1: Inputs
    data_2: Inputs


class Conversations(ScoreBody):
    """One conversation, or several."""

    messages: Annotated[list[dict[str, Any]] | list[list[dict[str, Any]]], Field(min_length=1)]


class Comparisons(ScoreBody):
    """Two completions of each prompt."""

    prompts: list[Input]
    completions_a: list[Input]
    completions_b: list[Input]


class ServiceCall(ScoreBody):
    """The keyword arguments of a reward function; columns of the rows come along and are not read."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)
    prompts: list[Input]
    completions: list[Input]
    completion_ids: list[list[int]] | None = None
    ended: list[bool] | None = None
    chat_template_kwargs: Any = None
    tools: list[Any] | None = None


class RerankBody(ScoreBody):
    """``POST /v1/rerank``."""

    query: Input
    documents: list[Input]
    top_n: Annotated[int, Field(ge=0)] = 0


PAIRS: Mapping[tuple[str, ...], type[ScoreBody]] = {
    ("text_1", "text_2"): TextPairs,
    ("queries", "documents"): DocumentPairs,
    ("queries", "items"): ItemPairs,
    ("data_1", "data_2"): DataPairs,
}
FORMS: Mapping[tuple[str, ...], type[ScoreBody]] = {
    **PAIRS,
    ("messages",): Conversations,
    ("prompts", "completions_a"): Comparisons,
    ("prompts", "completions_b"): Comparisons,
    ("prompts", "completions"): ServiceCall,
}
"""Keys that tell a form -> the form."""


TEMPLATE_COLUMNS = ("chat_template_kwargs", "tools")
"""Columns of prompt rows that decide what a chat template makes of them."""


@dataclass(frozen=True, slots=True)
class Samples:
    """What is to be scored."""

    prompts: list[Prompt]
    completions: list[TextCompletion]


def score_body(sent: Any) -> ScoreBody:
    """A request's body, of the form that its keys tell.

    Raises:
        APIError: It is of none; the first fault is named.
    """
    check_json(sent)
    for keys, form in FORMS.items():
        if set(keys) <= set(sent):
            return read_body(form, sent, {} if form is ServiceCall else UNSUPPORTED)
    forms = "; ".join(" and ".join(keys) for keys in (*PAIRS, ("messages",), ("prompts", "completions")))
    raise APIError(
        400,
        f"The request names nothing to score. It takes {forms}; or prompts, completions_a and completions_b.",
        code="missing_required_parameter", param="text_1",
    )  # fmt: skip


def samples_of(scorer: ServedScorer, body: ScoreBody) -> Samples:
    """The samples of a request, as the reward model's tokenizer reads them. Comparisons give all of a, then all of b.

    Raises:
        APIError: They can't be read.
    """
    match body:
        case Conversations():
            several = body.messages if isinstance(body.messages[0], list) else [body.messages]
            split = [_split(messages, number) for number, messages in enumerate(several)]
            return _samples(scorer, body, [prompt for prompt, _ in split], [said for _, said in split])
        case Comparisons():
            count = len(body.prompts)
            _check_count("completions_a", len(body.completions_a), count)
            _check_count("completions_b", len(body.completions_b), count)
            return _samples(scorer, body, body.prompts * 2, [*body.completions_a, *body.completions_b])
        case ServiceCall():
            return _service_samples(scorer, body)
        case RerankBody():
            return _samples(scorer, body, [body.query] * len(body.documents), body.documents)
    first, second = next(keys for keys, form in PAIRS.items() if isinstance(body, form))
    prompts, completions = _several(getattr(body, first)), _several(getattr(body, second))
    if len(prompts) == 1:
        prompts = prompts * len(completions)
    _check_count(second, len(completions), len(prompts))
    return _samples(scorer, body, prompts, completions)


def _service_samples(scorer: ServedScorer, body: ServiceCall) -> Samples:
    count = len(body.prompts)
    for key in ("completions", "completion_ids", "ended", *TEMPLATE_COLUMNS):
        value = getattr(body, key)
        if isinstance(value, list):
            _check_count(key, len(value), count)
    columns = {key: value for key in TEMPLATE_COLUMNS if isinstance(value := getattr(body, key), list)}
    samples = _samples(scorer, body, body.prompts, body.completions, columns)
    ids = body.completion_ids or [[]] * count
    ended = body.ended or [True] * count
    completions = [
        replace(said, tokens=own if all(0 <= token < scorer.vocabulary for token in own) else [], truncated=not end)
        for said, own, end in zip(samples.completions, ids, ended, strict=True)
    ]
    return Samples(samples.prompts, completions)


def _samples(
    scorer: ServedScorer,
    body: ScoreBody,
    prompts: Sequence[Input],
    completions: Sequence[Input],
    columns: Mapping[str, Sequence[Any]] | None = None,
) -> Samples:
    said = [input_text(completion, number) for number, completion in enumerate(completions)]
    given = columns if columns is not None else {"chat_template_kwargs": [body.chat_template_kwargs] * len(prompts)}
    rows: list[dict[str, Any]] = []
    for number, prompt in enumerate(prompts):
        read = _prompt(prompt, number)
        more = {key: values[number] for key, values in given.items() if values[number] and isinstance(read, list)}
        rows.append({"prompt": read, **more})
    try:
        asked = list(GRPODataset(rows, scorer.tokenizer)) if rows else []
    except RLHFError as err:
        raise APIError(400, f"The prompts can't be taken: {err}", code="invalid_value") from None
    return Samples([replace(prompt, id=f"number {i}") for i, prompt in enumerate(asked)], said)


def _several(value: Inputs) -> list[Any]:
    """A list of inputs of one or several: a list of messages is one."""
    if isinstance(value, list) and not (value and isinstance(value[0], dict) and "role" in value[0]):
        return value
    return [value]


def _prompt(value: Input, number: int) -> str | list[dict[str, Any]]:
    if isinstance(value, list):
        return [{**message, "content": _content(message, f"prompt {number}")} for message in value]
    return value if isinstance(value, str) else _content(value, f"prompt {number}")


def input_text(value: Input, number: int) -> TextCompletion:
    """A completion, whatever form it came in.

    Raises:
        APIError: It holds something other than text.
    """
    if isinstance(value, list):
        return TextCompletion("\n".join(_content(message, f"completion {number}") for message in value))
    return TextCompletion(value if isinstance(value, str) else _content(value, f"completion {number}"))


def _content(message: Any, where: str) -> str:
    content = message.get("content") if isinstance(message, dict) else None
    if isinstance(content, list) and all(isinstance(part, dict) and part.get("type") == "text" for part in content):
        content = joined_text(content, f"content of {where}")
    if not isinstance(content, str):
        raise APIError(400, f"The content of {where} is {describe(content)}; wanted text.", code="invalid_value")
    return content


def _split(messages: Any, number: int) -> tuple[list[dict[str, Any]], str]:
    """A conversation's beginning, and the completion that ends it."""
    if not isinstance(messages, list) or len(messages) < 2 or messages[-1].get("role") != "assistant":
        message = f"messages of conversation {number} must end with the assistant's, behind at least one other."
        raise APIError(400, message, code="invalid_value", param="messages")
    return messages[:-1], _content(messages[-1], f"conversation {number}")


def _check_count(key: str, count: int, wanted: int) -> None:
    if count != wanted:
        raise APIError(400, f"{key} has {count} entries for {wanted} prompts.", code="invalid_value", param=key)
