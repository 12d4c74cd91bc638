"""Request and response formats of reward servers.

    rlhf       {"prompts": [...], "completions": [...], columns ...} -> {"scores": [...], "errors": {"2": "why"}} or [...]
    openrlhf   {"query": [...], "prompts": [...], "labels": [...]} -> {"rewards": [...]}
    vllm       {"input": [...]} -> {"data": [{"index": 0, "data": [x]}]}  (/pooling; /classify has "probs")
    sglang     {"text": [...]} -> [{"embedding": [x]}]                    (/classify)

The last three get each prompt and completion as one text, the prompt as the policy saw it (chat template included).
Sources: OpenRLHF, openrlhf/utils/remote_rm_utils.py at 07c34b3; docs.sglang.io, "SGLang Native APIs" (/classify) and
"Classification API" (vLLM's /v1/classify); docs.vllm.ai, "Pooling Models" (/pooling).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlhf.rewards.worker import Odd

SHOWN = 120
"""Characters of an answer that a message repeats."""


class AnswerError(Exception):
    """The service gave an invalid response; a retry would not help."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A service's response for the samples of one request."""

    verdicts: list[float | Odd | None]
    errors: Mapping[int, str]
    """Place -> why there is no verdict, in the service's words."""


@dataclass(frozen=True, slots=True)
class Format:
    """One way of talking."""

    body: Callable[[Mapping[str, Any], Sequence[str]], dict[str, Any]]
    """Of the keyword arguments that a reward function would get, and of prompt and completion as one text each."""
    answer: Callable[[Any], Answer]
    """Of the parsed JSON. Raises AnswerError where it is not of this format."""


def _rlhf_body(arguments: Mapping[str, Any], texts: Sequence[str]) -> dict[str, Any]:
    return dict(arguments)


def _openrlhf_body(arguments: Mapping[str, Any], texts: Sequence[str]) -> dict[str, Any]:
    labels = arguments.get("labels", arguments.get("label", [None] * len(texts)))
    return {"query": list(texts), "prompts": arguments["prompts"], "labels": labels}


def _vllm_body(arguments: Mapping[str, Any], texts: Sequence[str]) -> dict[str, Any]:
    return {"input": list(texts)}


def _sglang_body(arguments: Mapping[str, Any], texts: Sequence[str]) -> dict[str, Any]:
    return {"text": list(texts)}


def _rlhf_answer(document: Any) -> Answer:
    if isinstance(document, list):
        return Answer([_verdict(value) for value in document], {})
    scores = _member(document, "scores", "rewards")
    return Answer([_verdict(value) for value in scores], _errors(document.get("errors")))


def _openrlhf_answer(document: Any) -> Answer:
    return Answer([_verdict(_single(value)) for value in _member(document, "rewards", "scores")], {})


def _vllm_answer(document: Any) -> Answer:
    items = _member(document, "data")
    if all(isinstance(item, Mapping) and isinstance(item.get("index"), int) for item in items):
        items = sorted(items, key=lambda item: item["index"])
    return Answer([_verdict(_single(_first(item, "data", "probs"))) for item in items], {})


def _sglang_answer(document: Any) -> Answer:
    items = document if isinstance(document, list) else [document]
    return Answer([_verdict(_single(_first(item, "embedding"))) for item in items], {})


def _member(document: Any, *names: str) -> list[Any]:
    """The first of these keys that an answer has; it must hold a list."""
    value = _first(document, *names)
    if not isinstance(value, list):
        raise AnswerError(f"has no list of scores under {names[0]!r}, but {shown(value)}")
    return value


def _first(document: Any, *names: str) -> Any:
    if isinstance(document, Mapping):
        for name in names:
            if name in document:
                return document[name]
        raise AnswerError(
            f"has no key {' or '.join(map(repr, names))}; it has {', '.join(map(repr, list(document)[:8])) or 'none'}"
        )
    raise AnswerError(f"is not a JSON object with {' or '.join(map(repr, names))}, but {shown(document)}")


def _single(value: Any) -> Any:
    """The number in [x] or [[x]]."""
    for _ in range(2):
        if isinstance(value, list) and len(value) == 1:
            (value,) = value
    if isinstance(value, list):
        raise AnswerError(
            f"has {len(value)} numbers for one sample ({shown(value)}); a reward model has one output for a sequence"
        )
    return value


def _verdict(value: Any) -> float | Odd | None:
    if value is None:
        return None
    if isinstance(value, int | float):
        try:
            return float(value)
        except OverflowError:
            pass
    return Odd(shown(value))


def _errors(reasons: Any) -> dict[int, str]:
    """Place -> reason, of a mapping with places as keys or of a list with null where all is well."""
    if not reasons:
        return {}
    try:
        pairs = enumerate(reasons) if isinstance(reasons, list) else reasons.items()
        return {int(place): str(reason) for place, reason in pairs if reason}
    except (AttributeError, ValueError):
        raise AnswerError(
            f'has "errors" that are {shown(reasons)}; wanted {{"place": "why"}} or a list with null where all is well'
        ) from None


def shown(value: Any) -> str:
    """The beginning of an answer, on one line."""
    text = " ".join(value.split()) if isinstance(value, str) else repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]} ..."


FORMATS = {
    "rlhf": Format(_rlhf_body, _rlhf_answer),
    "openrlhf": Format(_openrlhf_body, _openrlhf_answer),
    "vllm": Format(_vllm_body, _vllm_answer),
    "sglang": Format(_sglang_body, _sglang_answer),
}
"""Names as in a recipe."""
