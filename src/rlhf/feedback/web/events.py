"""Production feedback: what users of a served model did with its completions, sent by the program that serves them.

    POST /api/events
    Authorization: Bearer rlhf_...
    {"key": "8c0f...", "kind": "thumbs", "completion_id": "cmpl-17", "up": false, "prompt": "...", "completion": "..."}

An event may come late, more than once (its ``key`` is kept once; for another event it is answered 409)
and about a completion that nobody here has heard of; it is kept as it came. What training makes of each kind, `rlhf feedback export` decides.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Request
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, JsonValue, TypeAdapter
from starlette.exceptions import HTTPException

from rlhf.feedback.store import access
from rlhf.feedback.store.events import Event as KeptEvent
from rlhf.feedback.web.auth import Gate, checks_itself, client_address, the_gate

router = APIRouter()
MAX_EVENTS = 100
"""In one request."""
MAX_TEXT = 200_000
"""Characters of a prompt or a completion."""


class Message(BaseModel):
    """A turn of a conversation."""

    model_config = ConfigDict(extra="forbid")
    role: str = Field(min_length=1, max_length=64)
    content: str = Field(max_length=MAX_TEXT)


Text = Annotated[str, Field(max_length=MAX_TEXT)] | Annotated[list[Message], Field(min_length=1, max_length=1000)]


Id = Annotated[str, Field(min_length=1, max_length=255, pattern=r"^[^\x00-\x1f\x7f]+$")]


class Event(BaseModel):
    """What all kinds have in common."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)

    key: str = Field(min_length=1, max_length=64, pattern=r"^[\x21-\x7e]+$")
    """Made by the sender, once for each event: one that is sent again changes nothing."""
    completion_id: Id | None = None
    """Which completion it is about, as the server that made it calls it; events of one completion belong together."""
    model: Id | None = None
    """Which model made it."""
    prompt: Text | None = None
    """What the completion answers. Without it an event counts, but nothing can be trained on it."""
    user: Id | None = None
    """Whose feedback it is, under a name that says nothing about them: several events of one user are not independent."""
    happened_at: AwareDatetime | None = None
    """If it is sent late."""
    sampling: dict[str, JsonValue] = Field(default_factory=dict)
    """Temperature, seed and whatever else the completion was sampled with."""


class Thumbs(Event):
    """A thumb up or down."""

    kind: Literal["thumbs"]
    up: bool
    completion: Text | None = None
    comment: str = Field("", max_length=10_000)


class Edit(Event):
    """A user changed a completion before using it: the changed one is better."""

    kind: Literal["edit"]
    completion: Text
    """As it came from the model."""
    edited: Text
    """As the user left it."""


class Regenerate(Event):
    """A user asked again instead of using a completion: weak evidence that it was not good."""

    kind: Literal["regenerate"]
    completion: Text | None = None
    next_completion_id: Id | None = None
    """The one that came instead."""
    next_completion: Text | None = None


class Vote(Event):
    """A user was shown two completions and chose."""

    kind: Literal["vote"]
    completion_a: Text
    completion_b: Text
    completion_id_b: Id | None = None
    """Of the second; ``completion_id`` is the first's."""
    model_b: Id | None = None
    """Of the second."""
    preference: Literal["a", "b", "tie"]
    shown_first: Literal["a", "b"] = "a"
    """Which one stood first on the screen."""


AnyEvent = Annotated[Thumbs | Edit | Regenerate | Vote, Field(discriminator="kind")]
Events = Annotated[list[AnyEvent], Field(min_length=1, max_length=MAX_EVENTS)]


def the_program(request: Request, gate: Annotated[Gate, Depends(the_gate)]) -> str:
    """The name of the program whose token came along.

    Raises:
        HTTPException: 401, for no token or one that is not valid; 429, where too many come.
    """
    scheme, _, secret = request.headers.get("authorization", "").partition(" ")
    name = access.api_token_name(gate.store.engine, secret.strip()) if scheme.lower() == "bearer" and secret else None
    if name is None:
        gate.limit(gate.settings.signin_tries, "token-from", client_address(request), times=10)
        raise HTTPException(
            401,
            "Events come with the header `Authorization: Bearer TOKEN`; the owner makes tokens with `rlhf feedback token NAME`.",
            headers={"WWW-Authenticate": "Bearer"},
        )
    gate.limit(gate.settings.events, "events", name)
    return name


@router.post("/api/events", status_code=201)
@checks_itself
def keep_events(
    sent: AnyEvent | Events, program: Annotated[str, Depends(the_program)], gate: Annotated[Gate, Depends(the_gate)]
) -> dict[str, list[int]]:
    """Keep one event or a list of them, all or none; when this answers, they are on disk."""
    arrived_at = datetime.now(UTC).isoformat()
    events = []
    for event in sent if isinstance(sent, list) else [sent]:
        content = event.model_dump(mode="json", exclude={"key", "kind", "completion_id", "model"}, exclude_none=True)
        content |= {"program": program, "arrived_at": arrived_at}
        events.append(
            KeptEvent(
                kind=event.kind, content=content, key=event.key, completion_id=event.completion_id, model=event.model
            )
        )
    return {"numbers": gate.store.add_events(events, program=program)}


@router.get("/api/events/schema")
def schema() -> dict[str, Any]:
    """What an event looks like, as JSON Schema."""
    return TypeAdapter(AnyEvent).json_schema()
