"""One place that everything measured goes to: events.jsonl first, the console for people, trackers when asked for."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any

from rlhf.errors import check_type, look_up, printable
from rlhf.files import fsync, write_text
from rlhf.training.trackers import TRACKERS, Tracker

if TYPE_CHECKING:
    from rich.console import Console

    from rlhf.training.progress import ProgressBar

EVENTS = "events.jsonl"
ROLLOUTS = "rollouts.jsonl"


class TrainingLogger:
    """Events of a run, append-only, one JSON object a line; safe to read while it is written.

    Args:
        folder: Where events.jsonl lies; None keeps events in memory only (``events``).
        console: Where people look; None is silent.
        stage: Name written into each event.
        log_to: Trackers to feed as well, besides those that a trainer's config asks for.
    """

    def __init__(
        self,
        folder: Path | str | None = None,
        *,
        console: Console | None = None,
        stage: str = "",
        log_to: Sequence[str] = (),
    ) -> None:
        check_type(folder, (str, Path, NoneType), name="folder", expected="a folder, or None to keep events in memory")
        check_type(log_to, (list, tuple), name="log_to", expected=f"a list of trackers: {', '.join(TRACKERS)}")
        for name in log_to:
            look_up(TRACKERS, name, kind="tracker")
        self.folder = Path(folder) if folder is not None else None
        self.console = console
        self.stage = stage
        self.events: list[dict[str, Any]] = []
        """Where there is no folder; with one they are on disk and ``read`` finds them."""
        self.log_to = dict.fromkeys(log_to)
        self._trackers: list[Tracker] | None = None
        self._first_step = 0

    def write(self, event: str, *, step: int | None = None, message: str | None = None, **fields: Any) -> None:
        """Append one event. Numbers that are not finite are written as null: JSON has no NaN, and 0 would be a lie."""
        record: dict[str, Any] = {"time": round(time.time(), 3), "stage": self.stage, "event": event}
        if step is not None:
            record["step"] = step
        if message is not None:
            record["message"] = message
        record.update({name: finite(value) for name, value in fields.items()})
        if self.folder is None:
            self.events.append(record)
        else:
            append_jsonl(self.folder / EVENTS, [record])

    def metrics(self, step: int, metrics: Mapping[str, float], *, event: str = "metrics") -> None:
        """The metrics of one step or evaluation."""
        self.write(event, step=step, metrics=dict(metrics))
        if self._trackers is None:  # opened late: a run that fails before its first step leaves nothing with a service
            self._trackers = [TRACKERS[name](self.folder, self.stage, self._first_step) for name in self.log_to]
        for tracker in self._trackers:
            tracker.log(metrics, step)

    def say(self, text: str) -> None:
        """One line for people."""
        if self.console is not None:
            self.console.print(printable(text), highlight=False, soft_wrap=True)

    def alarm(self, text: str, *, step: int | None = None, **fields: Any) -> None:
        """Something a person should see: written, printed, shown in the report."""
        self.write("alarm", step=step, message=text, **fields)
        if self.console is not None:
            self.console.print(
                f"! {printable(text)}", style="bold yellow", markup=False, highlight=False, soft_wrap=True
            )

    @contextmanager
    def progress(self, title: str, total: int, *, done: int = 0) -> Iterator[ProgressBar]:
        """A bar on a terminal, a line every few seconds elsewhere."""
        from rlhf.training.progress import ProgressBar  # here: those who only read a log do without rich

        with ProgressBar(self.console, title, total, done) as bar:
            yield bar

    def rollouts(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Add completions, each with a ``step``, to the stage's rollouts.jsonl."""
        if self.folder is not None:
            append_jsonl(self.folder / self.stage / ROLLOUTS, map(finite, rows))

    def go_back_to(self, step: int, *, keep: Sequence[str] = (), restores: int | None = None) -> None:
        """Forget what this stage wrote after ``step``: it is about to happen again, and must not stand there twice.

        Args:
            step: That stays.
            keep: Kinds of events that stay all the same.
            restores: How often a guard had brought the run back by then; alarms of later times are forgotten.
        """
        self._first_step = step + 1
        if self.folder is None:
            return

        def stays(row: Mapping[str, Any]) -> bool:
            if row.get("stage", self.stage) == self.stage and restores is not None and row.get("restore", 0) > restores:
                return False
            return row.get("stage", self.stage) != self.stage or row.get("step", -1) <= step or row.get("event") in keep

        for path in (self.folder / EVENTS, self.folder / self.stage / ROLLOUTS):
            if path.exists():
                lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in read_jsonl(path) if stays(row)]
                write_text(path, "".join(lines))

    def read(self, event: str) -> list[dict[str, Any]]:
        """This stage's events of one kind, those before a resume included."""
        records = self.events if self.folder is None else read_jsonl(self.folder / EVENTS)
        return [record for record in records if record["stage"] == self.stage and record["event"] == event]

    def for_stage(self, stage: str, *, log_to: Sequence[str] = ()) -> TrainingLogger:
        """The same log, writing under another stage's name."""
        return TrainingLogger(self.folder, console=self.console, stage=stage, log_to=log_to)

    def track(self, names: Sequence[str]) -> None:
        """Feed these trackers too."""
        self.log_to.update(dict.fromkeys(names))

    def sync(self) -> None:
        """Put everything on disk: a checkpoint must not be younger than the events before it."""
        if self.folder is not None:
            for path in (self.folder / EVENTS, self.folder / self.stage / ROLLOUTS):
                if path.exists():
                    fsync(path)

    def close(self) -> None:
        """Flush the trackers; the next metrics would open them again."""
        for tracker in self._trackers or ():
            tracker.close()
        self._trackers = None


def append_jsonl(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Add lines to a file; what a killed process left of a line is ended first, so that it spoils no other."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n" for row in rows)
    with path.open("ab+") as file:
        if file.tell() > 0:
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                text = "\n" + text
        file.write(text.encode("utf-8", "backslashreplace"))  # half of a surrogate pair: JSON's own escape for it


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """The objects in a file, without lines that a killed process left half written; nothing where there is no file."""
    if not path.exists():
        return []
    rows = []
    for line in path.read_bytes().splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            rows.append(row)
    return rows


def finite(value: Any) -> Any:
    """What JSON can hold: NaN and infinities inside become null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value
