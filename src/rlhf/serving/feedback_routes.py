"""``POST /v1/feedback``: what users did with completions of this server, by the completion's id.

    {"key": "8c0f", "kind": "thumbs", "completion_id": "chatcmpl-17", "up": false}

The kinds and rules are those of ``rlhf.web.events``; texts, model, weights and sampling are filled in from what was kept when the
completion was answered, so that nobody can send feedback on a text that was never shown. An event may come late, and a repeated one is
kept once. When this answers, the events are on disk.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Body, Request
from starlette.exceptions import HTTPException

from rlhf.data.message_text import describe
from rlhf.errors import StorageError
from rlhf.serving.api_errors import APIError
from rlhf.serving.client_keys import FeedbackClient
from rlhf.serving.completion_memory import CompletionMemory
from rlhf.store.served_completions import ServedCompletion, served_completion
from rlhf.store.values import KeyTakenError
from rlhf.web.auth import is_of_another_site
from rlhf.web.events import checked_events, kept_event

router = APIRouter()
MAX_INDEX = 2**31 - 1
IDS: Mapping[str, str] = {"completion_id": "index", "completion_id_b": "index_b", "next_completion_id": "next_index"}
"""Key of a completion's id -> key of its place among the completions of its request."""
OTHER: Mapping[str, str] = {"vote": "completion_id_b", "regenerate": "next_completion_id"}
"""Kind -> key of the id of the other completion that it is about."""
FILLED_IN = frozenset(
    {"prompt", "completion", "completion_a", "completion_b", "next_completion", "model", "model_b", "sampling"}
)
"""What the server knows itself."""


@router.post("/v1/feedback", status_code=201)
def feedback(sent: Annotated[Any, Body()], request: Request, client: FeedbackClient) -> dict[str, list[str]]:
    """Keep one event or a list of them, all or none; gives the ids that exported rows carry."""
    memory: CompletionMemory | None = request.app.state.memory
    if memory is None:
        message = "This server keeps no feedback. Its owner turns it on with `rlhf serve MODEL --store feedback.db`."
        raise APIError(404, message, code="feedback_not_kept")
    if is_of_another_site(request, frozenset({request.headers.get("host", "")})):
        raise APIError(403, "This was sent from a page of another site, so it was not kept.", code="cross_site")
    program, arrived_at = memory.program(client), datetime.now(UTC).isoformat()
    given = sent if isinstance(sent, list) else [sent]
    try:
        filled = [_filled(memory, program, one) for one in given]
        checked = checked_events([event for event, _ in filled] if isinstance(sent, list) else filled[0][0])
        events = []
        for event, (_, more) in zip(checked, filled, strict=True):
            user = more.pop("user") if event.user is None else memory.user(program, event.user)
            events.append(kept_event(event, program, arrived_at=arrived_at, **{**more, "user": user}))
        numbers = memory.store.add_events(events, program=program)
    except HTTPException as err:
        raise APIError(400, str(err.detail), code="invalid_value") from None
    except KeyTakenError as err:
        raise APIError(409, str(err), code="key_taken", param="key") from None
    except StorageError as err:
        message = (
            "The feedback can't be kept just now. Send it again in a moment; nothing that was acknowledged is lost."
        )
        raise APIError(503, message, code="store_unavailable", retry_after=2) from err
    for kind, number in Counter(event.kind for event in events).items():
        request.app.state.metrics.feedback.labels(kind=kind).inc(number)
    return {"ids": [f"event-{number}" for number in numbers]}


def _filled(memory: CompletionMemory, program: str, one: Any) -> tuple[Any, dict[str, Any]]:
    """An event with the texts that it is about, and what else is known of its completions.

    Raises:
        APIError: A completion is not known, or the event brings what the server knows itself.
    """
    if not isinstance(one, dict) or not isinstance(one.get("kind"), str):
        return one, {}
    if brought := sorted(FILLED_IN & set(one)):
        message = f"{brought[0]} is filled in by the server, which knows it by completion_id; leave it out."
        raise APIError(400, message, code="unknown_parameter", param=brought[0])
    event = {key: value for key, value in one.items() if key not in IDS.values()}
    first = _known(memory, program, one, "completion_id")
    event |= {"prompt": first.prompt, "model": first.model, "sampling": dict(first.sampling)}
    more = {
        "user": first.user, "weights": first.weights, "version": first.version, "index": first.index,
        "answered_at": first.answered_at.isoformat(), "chat_template_kwargs": dict(first.template_kwargs) or None,
    }  # fmt: skip
    agreed = [first.consent]
    names = ("completion_a", "completion_b") if one["kind"] == "vote" else ("completion", "next_completion")
    event[names[0]] = first.completion
    other = OTHER.get(one["kind"])
    if other is not None and (one["kind"] == "vote" or one.get(other) is not None):
        second = _known(memory, program, one, other)
        if second.prompt != first.prompt:
            raise APIError(
                400, f"completion_id and {other} answer different prompts.", code="invalid_value", param=other
            )
        if (second.completion_id, second.index) == (first.completion_id, first.index):
            message = (
                f"completion_id and {other} are the same completion; {IDS[other]} tells those of one request apart."
            )
            raise APIError(400, message, code="invalid_value", param=other)
        event[names[1]] = second.completion
        more |= {"weights_b": second.weights, "version_b": second.version, IDS[other]: second.index}
        more["answered_at_b"] = second.answered_at.isoformat()
        agreed.append(second.consent)
        if one["kind"] == "vote":
            event["model_b"] = second.model
    if one.get("consent") is None:
        more["consent"] = True if all(agreed) else None
    return event, {key: value for key, value in more.items() if value is not None}


def _known(memory: CompletionMemory, program: str, event: Mapping[str, Any], key: str) -> ServedCompletion:
    name, index = event.get(key), event.get(IDS[key], 0)
    if name is None:
        raise APIError(400, f"{key} is missing.", code="missing_required_parameter", param=key)
    if not isinstance(name, str):
        raise APIError(400, f"{key} is {describe(name)}; wanted a completion's id.", code="invalid_value", param=key)
    if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index <= MAX_INDEX:
        message = f"{IDS[key]} is {describe(index)}; wanted the place of the completion in its request, from 0."
        raise APIError(400, message, code="invalid_value", param=IDS[key])
    try:
        completion = served_completion(memory.store.engine, name, index, program=program)
    except UnicodeEncodeError:  # half a character: no id of ours
        completion = None
    if completion is None:
        message = (
            f"No completion {name[:80]!r} with index {index} is known here: it is too old, another key asked for it, or its request did "
            "not consent to its being kept."
        )
        raise APIError(404, message, code="completion_not_found", param=key)
    return completion
