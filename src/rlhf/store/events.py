"""What users of a served model did, kept once for each key of the program that sends it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Engine
from sqlalchemy.orm import Session

from rlhf.errors import DataError
from rlhf.store.database import write
from rlhf.store.table_rows import as_json
from rlhf.store.tables import EventRow
from rlhf.store.values import KeyTakenError, check_id

EVENT_KINDS = ("thumbs", "rating", "edit", "regenerate", "vote", "red_team")
"""What users of a served model do."""
OF_THE_ARRIVAL = frozenset({"arrived_at"})
"""Content that differs when the same event is sent again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that a user did."""

    kind: str
    content: Mapping[str, Any]
    key: str
    """Made by the program, once for each event."""
    completion_id: str | None = None
    model: str | None = None


def keep_events(engine: Engine, events: Sequence[Event], *, program: str) -> list[int]:
    """Keep events, all or none; one that is sent again changes nothing and has the number it had.

    Args:
        engine: Of the store.
        events: In the order they are to be kept.
        program: Who sends them. Another program may use the same keys for its own.

    Raises:
        DataError: An event is of no known kind, or holds something that can't be kept.
        KeyTakenError: The program has used a key for another event.
    """
    rows = [_checked(event) for event in events]

    def keep(session: Session) -> list[int]:
        return [_keep(session, row, program) for row in rows]

    return write(engine, keep)


def _checked(event: Event) -> dict[str, Any]:
    """The columns of an event."""
    if event.kind not in EVENT_KINDS:
        raise DataError(f"An event is one of {', '.join(EVENT_KINDS)}; got {event.kind!r}.")
    what = f"The event {event.key[:80]!r}"
    check_id(event.completion_id or "-", f"The completion_id of {what[0].lower()}{what[1:]}")
    check_id(event.model or "-", f"The model of {what[0].lower()}{what[1:]}")
    return {
        "key": event.key, "kind": event.kind, "completion_id": event.completion_id, "model": event.model,
        "content": as_json(dict(event.content), what=what),
    }  # fmt: skip


def _keep(session: Session, columns: Mapping[str, Any], program: str) -> int:
    known = session.scalar(sa.select(EventRow).where(EventRow.program == program, EventRow.key == columns["key"]))
    if known is None:
        row = EventRow(**columns, program=program, made_at=datetime.now(UTC))
        session.add(row)
        session.flush()
        return row.number
    differs = [name for name in ("kind", "completion_id", "model") if getattr(known, name) != columns[name]]
    if differs or _told(known.content) != _told(columns["content"]):
        raise KeyTakenError(
            f"The key {columns['key']!r} was used for another event ({differs[0] if differs else 'its content'} differs), so this "
            "one was not kept; make a key of its own for each event."
        )
    return known.number


def _told(content: Mapping[str, Any]) -> dict[str, Any]:
    """What the program said."""
    return {name: value for name, value in content.items() if name not in OF_THE_ARRIVAL}
