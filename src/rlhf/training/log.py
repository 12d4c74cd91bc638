"""One place that everything measured goes to: events.jsonl first, the console for people, trackers when asked for."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from rlhf.errors import require
from rlhf.files import write_text

PLAIN_SECONDS = 10.0
"""Off a terminal there are no bars; a line is printed this often instead."""


class Tracker(Protocol):
    """Somewhere else that metrics go."""

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Take the metrics of one step."""
        ...

    def close(self) -> None:
        """Flush."""
        ...


class RunLog:
    """Events of a run, append-only, one JSON object a line; safe to read while it is written.

    Args:
        folder: Where events.jsonl lies; None keeps events in memory only (``events``).
        console: Where people look; None is silent.
        stage: Name written into each event.
        log_to: Trackers to feed as well.
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        console: Console | None = None,
        stage: str = "",
        log_to: Sequence[str] = (),
    ) -> None:
        self.folder = folder
        self.console = console
        self.stage = stage
        self.events: list[dict[str, Any]] = []
        self.trackers: list[Tracker] = [TRACKERS[name](folder, stage) for name in log_to]

    def write(self, event: str, *, step: int | None = None, message: str | None = None, **fields: Any) -> None:
        """Append one event. Numbers that are not finite are written as null: JSON has no NaN, and 0 would be a lie."""
        record: dict[str, Any] = {"time": round(time.time(), 3), "stage": self.stage, "event": event}
        if step is not None:
            record["step"] = step
        if message is not None:
            record["message"] = message
        record.update({name: _finite(value) for name, value in fields.items()})
        self.events.append(record)
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            with (self.folder / "events.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n")

    def metrics(self, step: int, metrics: Mapping[str, float], *, event: str = "metrics") -> None:
        """The metrics of one step or evaluation."""
        self.write(event, step=step, metrics=dict(metrics))
        for tracker in self.trackers:
            tracker.log(metrics, step)

    def say(self, text: str) -> None:
        """One line for people."""
        if self.console is not None:
            self.console.print(text, highlight=False, soft_wrap=True)

    def alarm(self, text: str, *, step: int | None = None, **fields: Any) -> None:
        """Something a person should see: written, printed, shown in the report."""
        self.write("alarm", step=step, message=text, **fields)
        self.say(f"[bold yellow]! {text}[/]")

    @contextmanager
    def progress(self, title: str, total: int, *, done: int = 0) -> Iterator[ProgressBar]:
        """A bar on a terminal, a line every few seconds elsewhere."""
        bar = ProgressBar(self.console, title, total, done)
        with bar:
            yield bar

    def append(self, name: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Add rows, each with a ``step``, to a JSONL file of the stage's own folder."""
        if self.folder is None:
            return
        path = self.folder / self.stage / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(_finite(row), ensure_ascii=False, allow_nan=False) + "\n" for row in rows)

    def truncate_after(self, step: int) -> None:
        """Forget what this stage wrote after ``step``: it is about to happen again, and a log must not repeat itself."""
        if self.folder is None:
            return
        _keep_lines(self.folder / "events.jsonl", lambda row: row.get("stage") != self.stage or row.get("step", -1) <= step)
        for path in (self.folder / self.stage).glob("*.jsonl"):
            _keep_lines(path, lambda row: row.get("step", -1) <= step)

    def read(self, event: str) -> list[dict[str, Any]]:
        """This stage's events of one kind, from disk where they are on disk: a resumed run has only part in memory."""
        if self.folder is None or not (path := self.folder / "events.jsonl").exists():
            return [record for record in self.events if record["event"] == event]
        records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.endswith("}")]
        return [r for r in records if r["stage"] == self.stage and r["event"] == event]

    def for_stage(self, stage: str, *, log_to: Sequence[str] = ()) -> RunLog:
        """The same log, writing under another stage's name."""
        return RunLog(self.folder, console=self.console, stage=stage, log_to=log_to)

    def close(self) -> None:
        """Flush the trackers."""
        for tracker in self.trackers:
            tracker.close()


class ProgressBar:
    """What ``RunLog.progress`` gives."""

    def __init__(self, console: Console | None, title: str, total: int, done: int) -> None:
        self.title, self.total, self.done = title, total, done
        self.console = console
        self.bar: Progress | None = None
        self.last_line = time.monotonic()
        if console is not None and console.is_terminal:
            self.bar = Progress(
                TextColumn("  {task.description:<10}"),
                BarColumn(bar_width=28),
                MofNCompleteColumn(),
                TaskProgressColumn(),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.fields[note]}"),
                console=console,
                transient=True,
            )
            self.task = self.bar.add_task(title, total=total, completed=done, note="")

    def __enter__(self) -> ProgressBar:
        if self.bar is not None:
            self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.stop()

    def advance(self, note: str = "", *, by: int = 1) -> None:
        """One more done; ``note`` is a few words on how it goes."""
        self.done += by
        if self.bar is not None:
            self.bar.update(self.task, completed=self.done, note=note)
        elif self.console is not None and time.monotonic() - self.last_line >= PLAIN_SECONDS:
            self.last_line = time.monotonic()
            self.console.print(f"  {self.title} {self.done}/{self.total} {note}", highlight=False)


class TensorBoardTracker:
    """Scalars to ``<run>/tensorboard/<stage>``."""

    def __init__(self, folder: Path | None, stage: str) -> None:
        require("tensorboard", extra="track", needed_for="Logging to TensorBoard")
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str((folder or Path()) / "tensorboard" / stage))  # type: ignore[no-untyped-call]

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """See ``Tracker``."""
        for name, value in metrics.items():
            self.writer.add_scalar(name, value, step)  # type: ignore[no-untyped-call]

    def close(self) -> None:
        """See ``Tracker``."""
        self.writer.close()  # type: ignore[no-untyped-call]


class ServiceTracker:
    """Weights & Biases, or trackio, which has the same three calls."""

    def __init__(self, package: str, folder: Path | None, stage: str) -> None:
        self.module = require(package, extra="track", needed_for=f"Logging to {package}")
        run = folder.name if folder else "run"
        self.run = self.module.init(project="rlhf", name=f"{run}/{stage}")

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """See ``Tracker``."""
        self.module.log(dict(metrics), step=step)

    def close(self) -> None:
        """See ``Tracker``."""
        self.module.finish()


TRACKERS: dict[str, Any] = {
    "tensorboard": TensorBoardTracker,
    "wandb": lambda folder, stage: ServiceTracker("wandb", folder, stage),
    "trackio": lambda folder, stage: ServiceTracker("trackio", folder, stage),
}


def _keep_lines(path: Path, keep: Callable[[Any], bool]) -> None:
    if not path.exists():
        return
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            if keep(json.loads(line)):
                kept.append(line + "\n")
        except json.JSONDecodeError:
            continue  # the last line of a killed process may be half written
    write_text(path, "".join(kept))


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
