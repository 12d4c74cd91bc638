"""From what users of a served model did to rows for training.

    thumbs       unpaired     label = up; of several by one user on one completion the last counts
    edit         preference   the edited text is better than the one it was made of
    vote         comparison   as it was voted, with what stood first
    regenerate   nothing, unless a confidence is given: then the completion that came instead is better, that surely

Asking again says that somebody was not content, not that the next completion is better: how much it is worth can only be
measured on one's own users, so there is no default. An event that brings no text is joined to another of the same
completion; what still lacks its prompt or its completion is left out and counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlhf.errors import ConfigError
from rlhf.feedback.store.tables import EventRow

TEXTS = (("completion_id", "completion"), ("completion_id", "completion_a"), ("completion_id_b", "completion_b"),
         ("next_completion_id", "next_completion"))  # fmt: skip
"""Which id names which text of an event."""


@dataclass(slots=True)
class FromEvents:
    """What events gave."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    """Reason to number of events."""


def rows_of_events(events: Sequence[EventRow], *, regenerate_confidence: float | None = None) -> FromEvents:
    """Rows for training, in the order the events came.

    Args:
        events: Of a store.
        regenerate_confidence: 0 to 1: makes a preference row of every regeneration of which both texts are known; the
            reward stage's soft label is (1 + confidence) / 2. None leaves them out.

    Raises:
        ConfigError: The confidence is not in 0 to 1.
    """
    if regenerate_confidence is not None and not 0 <= regenerate_confidence <= 1:
        raise ConfigError(f"regenerate_confidence is {regenerate_confidence}; it lies between 0 and 1.")
    found = FromEvents()
    texts, prompts = _known_texts(events)
    last = _last_thumbs(events)
    for event in events:
        content = {**_joined(event, texts, prompts), **event.content}
        if "prompt" not in content:
            found.left_out["no prompt is known"] += 1
            continue
        if event.kind == "thumbs" and event.number not in last:
            found.left_out["the same user thumbed that completion again"] += 1
            continue
        own = _own_columns(event.kind, content, regenerate_confidence)
        if isinstance(own, str):
            found.left_out[own] += 1
        else:
            found.rows.append({"prompt": content["prompt"], **own, **_provenance(event, content)})
    return found


def _known_texts(events: Iterable[EventRow]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Completions and prompts by the completion's id."""
    texts: dict[str, Any] = {}
    prompts: dict[str, Any] = {}
    for event in events:
        ids = {"completion_id": event.completion_id, **event.content}
        for name, column in TEXTS:
            if ids.get(name) and column in event.content:
                texts.setdefault(ids[name], event.content[column])
            if ids.get(name) and "prompt" in event.content:
                prompts.setdefault(ids[name], event.content["prompt"])
    return texts, prompts


def _joined(event: EventRow, texts: Mapping[str, Any], prompts: Mapping[str, Any]) -> dict[str, Any]:
    """What other events tell of this one's completion."""
    own, after = str(event.completion_id), str(event.content.get("next_completion_id"))
    known = {"completion": texts.get(own), "prompt": prompts.get(own), "next_completion": texts.get(after)}
    return {name: text for name, text in known.items() if text is not None}


def _last_thumbs(events: Iterable[EventRow]) -> set[int]:
    """Numbers of the thumbs that count."""
    last: dict[Any, int] = {}
    for event in events:
        if event.kind == "thumbs":
            user = event.content.get("user")
            same = (event.completion_id, user) if event.completion_id and user else event.number
            last[same] = event.number
    return set(last.values())


def _own_columns(kind: str, content: Mapping[str, Any], regenerate_confidence: float | None) -> dict[str, Any] | str:
    """A row's own columns, or why there is none."""
    if kind == "vote":
        own = {name: content[name] for name in ("completion_a", "completion_b", "preference")}
        return {**own, "shown_first": content.get("shown_first", "a")}
    if "completion" not in content:
        return "no completion is known"
    completion = content["completion"]
    if kind == "thumbs":
        return {"completion": completion, "label": content["up"]}
    if kind == "edit":
        edited = content["edited"]
        return "the edit changed nothing" if edited == completion else {"chosen": edited, "rejected": completion}
    if regenerate_confidence is None:
        return "a regeneration alone says little (give it a confidence to use it)"
    if "next_completion" not in content:
        return "no next completion is known"
    return {"chosen": content["next_completion"], "rejected": completion, "confidence": regenerate_confidence}


def _provenance(event: EventRow, content: Mapping[str, Any]) -> dict[str, Any]:
    columns = {
        "id": f"event-{event.number}", "event": event.kind, "completion_id": event.completion_id,
        "annotator_id": f"user:{content['user']}" if content.get("user") else None, "comment": content.get("comment") or None,
        "sampling": content.get("sampling") or None, "made_at": content.get("happened_at") or event.made_at.isoformat(),
    }  # fmt: skip
    names = {"vote": ("model_a", "model_b"), "thumbs": ("model", ""), "edit": ("rejected_model", "")}
    first, second = names.get(event.kind, ("rejected_model", ""))
    columns[first] = event.model
    if second:
        columns[second] = content.get("model_b")
    return {name: value for name, value in columns.items() if value is not None}
