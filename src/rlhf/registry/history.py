"""The log of a registry: a line of JSON for everything that happened to an alias, synced before anything else is changed.

The log decides. An alias is a link that people and programs read, and it is set again from the log where a kill came between the two.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from rlhf.errors import DataError
from rlhf.files import fsync, storage_errors

FILE = "history.jsonl"
Action = Literal["promote", "rollback", "refuse"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One line of the history."""

    time: str
    """UTC, ISO 8601."""
    action: Action
    """``refuse``: a candidate was not promoted; the alias stays."""
    alias: str
    version: int | None
    """What the alias names from now on; None where it names nothing."""
    previous: int | None
    """What it named before."""
    candidate: str = ""
    """Where the model came from that was promoted or refused."""
    reason: str = ""
    evidence: Mapping[str, str] = field(default_factory=dict)
    """``file`` and ``sha256`` of what the decision is based on; empty where nothing was given."""
    by: str = ""
    """Who, as the system knows the user."""

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def read_history(folder: Path) -> list[Event]:
    """All events, oldest first; a last line that a kill cut off is left out.

    Raises:
        DataError: A whole line is not an event; names it.
    """
    path = folder / FILE
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return []
    events = []
    for number, line in enumerate(text[: text.rfind(b"\n") + 1].splitlines(), 1):
        try:
            events.append(Event(**json.loads(line)))
        except (ValueError, TypeError) as err:
            raise DataError(
                f"{path}:{number} is not an event of a registry: {err}. Restore the file from a copy."
            ) from err
    return events


def append_event(folder: Path, event: Event) -> None:
    """Add an event, synced to disk; what a kill left of a line before is removed first. Call it with the registry locked."""
    path = folder / FILE
    with storage_errors(path):
        is_new = not path.exists()
        with path.open("ab+") as file:
            file.seek(0)
            whole = file.read().rfind(b"\n") + 1
            file.truncate(whole)
            file.write(json.dumps(event.to_dict(), ensure_ascii=False).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        if is_new:
            fsync(folder)
