"""From what users of a served model did to rows for training.

    thumbs       unpaired     label = up; of several by one user on one completion the last counts
    rating       nothing, unless a least difference or thresholds are given: then pairs, or label (``rlhf.feedback.rating_rows``)
    edit         preference   the edited text is better than the one it was made of
    vote         comparison   as it was voted, with what stood first
    regenerate   nothing, unless a probability is given: then the completion that came instead is better, that likely
    red_team     preference   what the model should have said is better than what it said, where somebody wrote it

Asking again says that somebody was not content, not that the next completion is better: how much it is worth can only be
measured on one's own users, so there is no default. An event that brings no text is joined to another of the same
completion, by the id that the program which sent both gave it: programs make ids and names of users without knowing of each
other. What still lacks its prompt or its completion is left out and counted, as is what an id used for several texts leaves open. So is
what a user did not agree to (``consent`` false), and, where only what they agreed to is wanted, what nobody asked them about.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from rlhf.data.expand import text_key
from rlhf.errors import ConfigError
from rlhf.feedback.rating_rows import RatingRules, rows_of_ratings
from rlhf.store.tables import EventRow

TEXTS = (("completion_id", "completion"), ("completion_id", "completion_a"), ("completion_id_b", "completion_b"),
         ("next_completion_id", "next_completion"))  # fmt: skip
"""Which id names which text of an event."""
BY_ID = {"completion": ("completion", "completion_id"), "prompt": ("prompt", "completion_id"),
         "next_completion": ("completion", "next_completion_id")}  # fmt: skip
"""What an event may leave out: text -> what it is of a completion, and the id of that completion."""
WEIGHTS = ("weights", "version")
"""What a server of ours says of the model besides its name: the weights' fingerprint, and their version in the registry."""
COLUMNS_OF_MODELS = {
    "vote": ("{}_a", "{}_b"),
    "thumbs": ("{}", ""),
    "rating": ("{}", ""),
    "regenerate": ("rejected_{}", "chosen_{}"),
}
"""Kind of event -> names of columns on the models of its two completions; other kinds are about a rejected one."""
NO_CONSENT = "the user did not consent"
NO_CONSENT_SAID = "nothing is known of consent"
AGAIN = {
    "thumbs": "the same user thumbed that completion again", "rating": "the same user rated that completion again",
}  # fmt: skip
"""Kinds of which the last event of a user on a completion counts -> why an earlier one is left out."""
_Known = dict[tuple[str, str, str], dict[str, Any]]
"""Program, `completion` or `prompt`, id -> the different texts it means."""


@dataclass(slots=True)
class FromEvents:
    """What events gave."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    """Reason to number of events."""
    num_without_consent: int = 0
    """Rows of events of which nothing is known of consent."""


def rows_of_events(
    events: Sequence[EventRow],
    *,
    regenerate_probability: float | None = None,
    ratings: RatingRules | None = None,
    only_consented: bool = False,
    since: datetime | None = None,
) -> FromEvents:
    """Rows for training, in the order the events came.

    Args:
        events: Of a store.
        regenerate_probability: 0.5 to 1: makes a preference row of every regeneration of which both texts are known, with this
            ``label_probability``. None leaves them out.
        ratings: What ratings become; None leaves them out.
        only_consented: Leave out events whose user was not asked for consent; those whose user refused it are left out anyway.
        since: Only events that arrived then or later, however long ago what they say happened; earlier ones still tell their texts.

    Raises:
        ConfigError: The probability is not in 0.5 to 1, or the rules do not fit the ratings.
    """
    if regenerate_probability is not None and not 0.5 <= regenerate_probability <= 1:
        raise ConfigError(f"regenerate_probability is {regenerate_probability}; wanted 0.5 (a guess) to 1 (certain).")
    result = FromEvents()
    known = _known_texts(events)
    contents = [_joined(event, known) for event in events]
    last = _last_of_users(zip(events, contents, strict=True))
    rated = []
    for event, content in zip(events, contents, strict=True):
        if since is not None and event.made_at < since:
            continue
        why = _why_left_out(event, content, known, last, only_consented)
        if why is None and event.kind == "rating":
            rated.append((event, content))
            continue
        own = why or _own_columns(event, content, known, regenerate_probability)
        if isinstance(own, str):
            result.left_out[own] += 1
        else:
            result.rows.append({"prompt": content["prompt"], **own, **_provenance(event, content)})
    result.rows += rows_of_ratings(rated, ratings or RatingRules(), left_out=result.left_out, provenance=_provenance)
    result.num_without_consent = sum("consent" not in row for row in result.rows)
    return result


def _why_left_out(
    event: EventRow, content: Mapping[str, Any], known: _Known, last: set[int], only_consented: bool
) -> str | None:
    """Why an event of any kind becomes no row; None where it may become one."""
    consent = content.get("consent")
    if consent is False:
        return NO_CONSENT
    if only_consented and consent is None:
        return NO_CONSENT_SAID
    if "prompt" not in content:
        return _why_no("prompt", event, known)
    if event.kind not in AGAIN:
        return None
    if event.number not in last:
        return AGAIN[event.kind]
    return _why_no("completion", event, known) if "completion" not in content else None


def _known_texts(events: Iterable[EventRow]) -> _Known:
    texts: _Known = defaultdict(dict)
    for event in events:
        ids = {"completion_id": event.completion_id, **event.content}
        for name, column in TEXTS:
            if not ids.get(name):
                continue
            for what, source in (("completion", column), ("prompt", "prompt")):
                if source in event.content:
                    text = event.content[source]
                    texts[event.program, what, str(ids[name])][text_key(text)] = text
    return texts


def _joined(event: EventRow, known: _Known) -> dict[str, Any]:
    """An event's content, with what others of its program tell of its completions: texts of which there is one."""
    texts_by_name = {}
    for name in BY_ID:
        texts = known.get(_place(name, event), {})
        if len(texts) == 1:
            texts_by_name[name] = next(iter(texts.values()))
    return {**texts_by_name, **event.content}


def _place(name: str, event: EventRow) -> tuple[str, str, str]:
    """Where a text that an event does not bring would be known."""
    what, column = BY_ID[name]
    given = event.completion_id if column == "completion_id" else event.content.get(column)
    return event.program, what, str(given or "")


def _why_no(name: str, event: EventRow, known: _Known) -> str:
    noun = name.replace("_", " ")
    return f"its id is that of several {noun}s" if known.get(_place(name, event)) else f"no {noun} is known"


def _last_of_users(events: Iterable[tuple[EventRow, Mapping[str, Any]]]) -> set[int]:
    """Numbers of the thumbs and ratings that count. One text is one completion: a program may use an id for several."""
    last: dict[Any, int] = {}
    for event, content in events:
        if event.kind in AGAIN:
            user = content.get("user")
            texts = tuple(text_key(content[name]) if name in content else None for name in ("prompt", "completion"))
            same = (
                (event.kind, event.program, event.completion_id, user, *texts)
                if event.completion_id and user
                else event.number
            )
            last[same] = event.number
    return set(last.values())


def _own_columns(
    event: EventRow, content: Mapping[str, Any], known: _Known, regenerate_probability: float | None
) -> dict[str, Any] | str:
    """A row's own columns, or why there is none."""
    kind = event.kind
    if kind == "vote":
        own = {name: content[name] for name in ("completion_a", "completion_b", "preference")}
        return {**own, "shown_first": content.get("shown_first", "a")}
    if "completion" not in content:
        return _why_no("completion", event, known)
    completion = content["completion"]
    if kind == "thumbs":
        return {"completion": completion, "label": content["up"]}
    if kind == "edit":
        edited = content["edited"]
        if not edited:
            return "the edit left nothing"
        return "the edit changed nothing" if edited == completion else {"chosen": edited, "rejected": completion}
    if kind == "red_team":
        return _red_team_columns(content)
    if regenerate_probability is None:
        return "a regeneration alone says little (give it a probability to use it)"
    if "next_completion" not in content:
        return _why_no("next_completion", event, known)
    return {"chosen": content["next_completion"], "rejected": completion, "label_probability": regenerate_probability}


def _red_team_columns(content: Mapping[str, Any]) -> dict[str, Any] | str:
    better = content.get("better")
    if better is None:
        return "nobody wrote what the model should have said (its prompt is in `rlhf feedback red-team`)"
    if better == content["completion"]:
        return "what the model should have said is what it said"
    return {
        "chosen": better,
        "rejected": content["completion"],
        "harm": content["harm"],
        "category": content["category"],
    }


def _provenance(event: EventRow, content: Mapping[str, Any]) -> dict[str, Any]:
    user = ":".join(("user", *(str(part) for part in (event.program, content.get("user")) if part)))
    columns = {
        "id": f"event-{event.number}", "event": event.kind, "program": event.program or None,
        "completion_id": event.completion_id, "annotator_id": user if content.get("user") else None, "comment": content.get("comment") or None,
        "sampling": content.get("sampling") or None, "made_at": content.get("happened_at") or event.made_at.isoformat(),
        "answered_at": content.get("answered_at"), "index": content.get("index"),
        "chat_template_kwargs": content.get("chat_template_kwargs") or None, "consent": content.get("consent"),
        "answered_at_b": content.get("answered_at_b") if event.kind == "vote" else None,
    }  # fmt: skip
    first, second = COLUMNS_OF_MODELS.get(event.kind, ("rejected_{}", ""))
    for name, value in (("model", event.model), *((name, content.get(name)) for name in WEIGHTS)):
        columns[first.format(name)] = value
        if second:
            columns[second.format(name)] = content.get(f"{name}_b")
    return {name: value for name, value in columns.items() if value is not None}
