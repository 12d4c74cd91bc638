"""What a stage made before it was changed, kept aside in the run folder until the new result is there, and a while longer.

<run>/.previous/<stage>-<key>-<number>/

Nothing is deleted before something newer is finished. Every step is one rename, so a killed process leaves either the old
place or the new one; what belongs to it, and is not yet done, is done by ``settle`` at the next start.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf.files import fsync, remove_leftovers, write_jsonl, write_text
from rlhf.pipeline.artifacts import Artifact, Started
from rlhf.training.log import EVENTS, read_jsonl

FOLDER = ".previous"
OWN_EVENTS = ".events.jsonl"
"""Inside a folder that was moved aside: what events.jsonl said of this attempt."""
GONE = ".gone-"
"""Begins the name of a folder that is being deleted."""
ENTRY = re.compile(r"^(?P<stage>[A-Za-z0-9_-]+)-(?P<key>[0-9a-f]{16})-(?P<number>\d+)$")
NO_KEY = "0" * 16
"""Of a folder without a record, such as one from an older version."""


@dataclass(frozen=True, slots=True)
class Previous:
    """A folder that was moved aside."""

    stage: str
    key: str
    number: int
    """Higher is newer."""
    folder: Path

    @property
    def finished(self) -> bool:
        """Whether the stage had come to its end."""
        return Artifact.read(self.folder) is not None


def previous_of(run_dir: Path, stage: str | None = None) -> list[Previous]:
    """What was moved aside, newest first; of one stage or of all."""
    attempts = []
    for folder in (run_dir / FOLDER).glob("*"):
        if match := ENTRY.match(folder.name):
            attempts.append(Previous(match["stage"], match["key"], int(match["number"]), folder))
    return sorted((p for p in attempts if stage in (None, p.stage)), key=lambda p: p.number, reverse=True)


def move_aside(run_dir: Path, stage: str, *, keep: Previous | None = None) -> Previous | None:
    """Move a stage's folder to ``.previous``; None where there is none.

    Afterwards the stage has at most one finished and one unfinished predecessor, the newest of each, and ``keep``.
    """
    folder = run_dir / stage
    if not folder.is_dir():
        return None
    write_jsonl(folder / OWN_EVENTS, events_of(read_jsonl(run_dir / EVENTS), stage))
    artifact, started = Artifact.read(folder), Started.read(folder)
    key = artifact.key if artifact is not None else started.made_from.key if started is not None else NO_KEY
    number = 1 + max((p.number for p in previous_of(run_dir)), default=0)
    target = run_dir / FOLDER / f"{stage}-{key}-{number}"
    target.parent.mkdir(exist_ok=True)
    _rename(folder, target)
    for finished in (True, False):
        older = [p for p in previous_of(run_dir, stage) if p.finished is finished][1:]
        remove(p.folder for p in older if keep is None or p.folder != keep.folder)
    return Previous(stage, key, number, target)


def bring_back(run_dir: Path, previous: Previous) -> None:
    """Put a folder into its old place; what is there now is moved aside."""
    move_aside(run_dir, previous.stage, keep=previous)
    _rename(previous.folder, run_dir / previous.stage)
    settle(run_dir)


def settle(run_dir: Path) -> None:
    """Finish what a killed process left half done: events of a stage that came back, writes, deletions."""
    for folder in (run_dir, *(path for path in list(run_dir.rglob("*")) if path.is_dir())):
        remove_leftovers(folder)
    for own in sorted(run_dir.glob(f"*/{OWN_EVENTS}")):
        _restore_events(run_dir, own)
    remove((run_dir / FOLDER).glob(f"{GONE}*"))


def forget_unfinished(run_dir: Path, stage: str) -> None:
    """A finished stage needs its unfinished predecessors no more."""
    remove(p.folder for p in previous_of(run_dir, stage) if not p.finished)


def events_of(events: Iterable[Mapping[str, Any]], stage: str) -> list[Mapping[str, Any]]:
    """A stage's events since it was last started from nothing, that is with another key."""
    own: list[Mapping[str, Any]] = []
    key = None
    for event in events:
        if event.get("stage") != stage:
            continue
        if event.get("event") == "stage_start" and event.get("key") != key:
            own, key = [], event.get("key")
        own.append(event)
    return own


def remove(folders: Iterable[Path]) -> None:
    """Delete folders; each is renamed first, so that half of one is never taken for the whole."""
    for folder in list(folders):
        gone = folder if folder.name.startswith(GONE) else folder.with_name(f"{GONE}{folder.name}")
        if gone != folder:
            _rename(folder, gone)
        shutil.rmtree(gone)


def _restore_events(run_dir: Path, own: Path) -> None:
    stage, path = own.parent.name, run_dir / EVENTS
    saved, events = read_jsonl(own), read_jsonl(path)
    if events_of(events, stage) != saved:
        # The attempt between kept its own copy when it was moved aside.
        others = [e for e in events if e.get("stage") != stage or "step" not in e]
        lines = [json.dumps(event, ensure_ascii=False) + "\n" for event in (*others, *saved)]
        write_text(path, "".join(lines))
    own.unlink()


def _rename(folder: Path, target: Path) -> None:
    os.replace(folder, target)
    for parent in {folder.parent, target.parent}:
        fsync(parent)
