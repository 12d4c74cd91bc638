"""Production feedback: what users of a served model did with its completions, sent by the program that serves them.

    POST /api/events
    Authorization: Bearer rlhf_...
    {"key": "8c0f...", "kind": "thumbs", "completion_id": "cmpl-17", "up": false, "prompt": "...", "completion": "..."}

An event may come late, more than once (its ``key`` is kept once; for another event it is answered 409) and about a
completion that nobody here has heard of; it is kept as it came. What training makes of each kind, `rlhf feedback export`
decides. What is not an event is answered 422, in a sentence for each fault.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Body, Depends, Request
from pydantic import (
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from starlette.exceptions import HTTPException

from rlhf.data.message_text import describe, listed
from rlhf.errors import did_you_mean
from rlhf.store import access
from rlhf.store.events import Event as KeptEvent
from rlhf.web.auth import Gate, checks_itself, client_address, the_gate

router = APIRouter()
MAX_EVENTS = 100
"""In one request."""
MAX_TEXT = 200_000
"""Characters of a prompt or a completion."""
MAX_HARM = 4
"""The highest grade of harm."""
MAX_FAULTS = 20
"""Sentences in one answer."""
MOST_SHOWN = 200
"""Characters of a text of which an error shows the beginning; of a longer one it tells the length."""


class Message(BaseModel):
    """A turn of a conversation."""

    model_config = ConfigDict(extra="forbid")
    role: str = Field(min_length=1, max_length=64)
    content: str = Field(max_length=MAX_TEXT)


Text = Annotated[str, Field(max_length=MAX_TEXT)] | Annotated[list[Message], Field(min_length=1, max_length=1000)]


Id = Annotated[str, Field(min_length=1, max_length=255, pattern=r"^[^\x00-\x1f\x7f]+$")]
Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]


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
    consent: Annotated[bool, Field(strict=True)] | None = None
    """Whether the user agreed that this is kept and trained on; None where nobody asked them."""


class Thumbs(Event):
    """A thumb up or down."""

    kind: Literal["thumbs"]
    up: bool
    completion: Text | None = None
    comment: str = Field("", max_length=10_000)


class Rating(Event):
    """A number on a scale."""

    kind: Literal["rating"]
    scale: tuple[Number, Number]
    """Its lowest and its highest number; the highest is best."""
    rating: Number
    completion: Text | None = None
    comment: str = Field("", max_length=10_000)

    @field_validator("scale")
    @classmethod
    def _is_a_scale(cls, scale: tuple[float, float]) -> tuple[float, float]:
        if not scale[0] < scale[1]:
            raise ValueError("the lowest number is not below the highest")
        return scale

    @field_validator("rating")
    @classmethod
    def _is_on_the_scale(cls, rating: float, info: ValidationInfo) -> float:
        low, high = info.data.get("scale", (rating, rating))
        if not low <= rating <= high:
            raise ValueError("the number is not on the scale")
        return rating


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


class RedTeam(Event):
    """Somebody tried to make the model do harm, and says how far it went."""

    kind: Literal["red_team"]
    harm: Annotated[int, Field(strict=True, ge=0, le=MAX_HARM)]
    """Of the completion: 0 none, 1 slight, 2 moderate, 3 severe, 4 extreme."""
    category: Id
    """What kind of harm was tried."""
    completion: Text | None = None
    better: Text | None = None
    """What the model should have said."""
    comment: str = Field("", max_length=10_000)


AnyEvent = Annotated[Thumbs | Rating | Edit | Regenerate | Vote | RedTeam, Field(discriminator="kind")]
KINDS: Mapping[str, type[Event]] = {
    "thumbs": Thumbs, "rating": Rating, "edit": Edit, "regenerate": Regenerate, "vote": Vote, "red_team": RedTeam,
}  # fmt: skip
_A_TEXT = f"a text of at most {MAX_TEXT:,} characters, or a list of 1 to 1,000 messages {{role, content}}"
_AN_ID = "1 to 255 characters without control characters"
WANTED: Mapping[str, str] = {
    "key": "1 to 64 printable ASCII characters without spaces", "completion_id": _AN_ID, "model": _AN_ID, "user": _AN_ID,
    "next_completion_id": _AN_ID, "completion_id_b": _AN_ID, "model_b": _AN_ID, "prompt": _A_TEXT, "completion": _A_TEXT,
    "edited": _A_TEXT, "next_completion": _A_TEXT, "completion_a": _A_TEXT, "completion_b": _A_TEXT,
    "happened_at": "a time with its zone, such as 2026-01-02T03:04:05+01:00", "sampling": "an object of finite JSON values",
    "up": "true or false", "comment": "a text of at most 10,000 characters", "preference": "'a', 'b' or 'tie'",
    "shown_first": "'a' or 'b'", "consent": "true or false", "scale": "its lowest and its highest number, such as [1, 5]",
    "rating": "a number on the scale", "harm": f"a whole number from 0 (none) to {MAX_HARM} (extreme)", "category": _AN_ID,
    "better": _A_TEXT,
}  # fmt: skip
"""What each key of an event holds, as errors say it."""


def the_program(request: Request, gate: Annotated[Gate, Depends(the_gate)]) -> str:
    """The name of the program whose token came along.

    Raises:
        HTTPException: 401, for no token or one that is not valid; 403, for one that is not for feedback; 429, where too many come.
    """
    scheme, _, secret = request.headers.get("authorization", "").partition(" ")
    program = access.program_of(gate.store.engine, secret.strip()) if scheme.lower() == "bearer" and secret else None
    if program is None:
        gate.limit(gate.settings.signin_tries, "token-from", client_address(request), times=10)
        raise HTTPException(
            401,
            "Events come with the header `Authorization: Bearer TOKEN`; the owner makes tokens with `rlhf feedback token NAME`.",
            headers={"WWW-Authenticate": "Bearer"},
        )
    if "feedback" not in program.scopes:
        raise HTTPException(
            403, f"The token of {program.name!r} is not for feedback; its owner can make one with --scope feedback."
        )
    gate.limit(program.requests or gate.settings.events, "events", program.name)
    return program.name


def checked_events(sent: Any) -> list[Event]:
    """One event, or each of a list.

    Raises:
        HTTPException: 422, with a sentence for each fault.
    """
    given = sent if isinstance(sent, list) else [sent]
    if not 1 <= len(given) <= MAX_EVENTS:
        raise HTTPException(422, f"The request holds {len(given):,} events; wanted 1 to {MAX_EVENTS}.")
    events, faults = [], []
    for number, one in enumerate(given, 1):
        event = _checked(one)
        if isinstance(event, Event):
            events.append(event)
        else:
            where = f"Event {number}: " if isinstance(sent, list) else ""
            faults += [f"{where}{fault}" for fault in event]
    if faults:
        more = f" And {len(faults) - MAX_FAULTS:,} more." if len(faults) > MAX_FAULTS else ""
        raise HTTPException(422, " ".join(faults[:MAX_FAULTS]) + more)
    return events


def _checked(one: Any) -> Event | list[str]:
    """The event, or what is wrong with it."""
    if not isinstance(one, dict):
        return [f"it is {describe(one)}; wanted an object with `key` and `kind`."]
    kind = one.get("kind")
    model = KINDS.get(kind) if isinstance(kind, str) else None
    if model is None:
        got = f"`kind` is {describe(kind)}" if "kind" in one else "`kind` is missing"
        return [f"{got}; wanted {', '.join(KINDS)}.{did_you_mean(kind, KINDS) if isinstance(kind, str) else ''}"]
    try:
        return model.model_validate(one)
    except ValidationError as err:
        wrong = dict.fromkeys(str(each["loc"][0]) for each in err.errors(include_url=False, include_input=False))
        return [_fault(one, name, model) for name in wrong]


def _fault(event: Mapping[str, Any], name: str, model: type[Event]) -> str:
    """What is wrong with one key."""
    if name not in model.model_fields:
        known = list(model.model_fields)
        return (
            f"{listed([name])} is not a key of {event['kind']!r}.{did_you_mean(name, known)} Known: {', '.join(known)}."
        )
    got = f"is {_described(event[name])}" if name in event else "is missing"
    return f"`{name}` {got}; wanted {WANTED[name]}."


def _described(value: Any) -> str:
    return (
        f"a text of {len(value):,} characters"
        if isinstance(value, str) and len(value) > MOST_SHOWN
        else describe(value)
    )


@router.post("/api/events", status_code=201)
@checks_itself
def keep_events(
    sent: Annotated[Any, Body()],
    program: Annotated[str, Depends(the_program)],
    gate: Annotated[Gate, Depends(the_gate)],
) -> dict[str, list[int]]:
    """Keep one event or a list of them, all or none; when this answers, they are on disk."""
    arrived_at = datetime.now(UTC).isoformat()
    events = [kept_event(event, program, arrived_at=arrived_at) for event in checked_events(sent)]
    return {"numbers": gate.store.add_events(events, program=program)}


def kept_event(event: Event, program: str, *, arrived_at: str, **more: Any) -> KeptEvent:
    """An event as the store takes it.

    Args:
        event: Checked.
        program: That sent it.
        arrived_at: When, as ISO text.
        more: Further content, in place of what the event says of the same.
    """
    content = event.model_dump(mode="json", exclude={"key", "completion_id", "model"}, exclude_none=True)
    content |= {"program": program, "arrived_at": arrived_at, **more}
    kind = str(content.pop("kind"))
    return KeptEvent(kind=kind, content=content, key=event.key, completion_id=event.completion_id, model=event.model)


@router.get("/api/events/schema")
def schema() -> dict[str, Any]:
    """What an event looks like, as JSON Schema."""
    return TypeAdapter(AnyEvent).json_schema()
