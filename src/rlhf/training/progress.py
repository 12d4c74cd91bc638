"""How far a run is, for people."""

from __future__ import annotations

import time
from datetime import timedelta

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from rlhf.errors import printable

PLAIN_SECONDS = 10.0
"""Off a terminal there are no bars; a line is printed this often instead."""
STEPS_FOR_AN_ESTIMATE = 3
"""How many more must be done after the first, which warms up or compiles, before the time left is estimated."""


class ProgressBar:
    """A bar on a terminal, a line every few seconds elsewhere, nothing without a console."""

    def __init__(self, console: Console | None, title: str, total: int, done: int = 0) -> None:
        self.title, self.total, self.done = title, total, done
        self.console = console
        self.bar: Progress | None = None
        self.began = self.last_line = self.first_at = time.monotonic()
        self.first_done: int | None = None
        """How far it was once the first advance was over."""
        if console is not None and console.is_terminal:
            self.bar = Progress(
                TextColumn("  {task.description:<10}"),
                BarColumn(bar_width=28),
                MofNCompleteColumn(),
                TaskProgressColumn(),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.fields[note]}", markup=False),
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
        """Some more done; ``note`` is a few words on how it goes. A last batch may bring more than was wanted."""
        self.done += by
        if self.first_done is None or self.done < self.first_done:
            self.first_done, self.first_at = self.done, time.monotonic()
        shown = min(self.done, self.total)
        if self.bar is not None:
            self.bar.update(self.task, completed=shown, note=printable(note))
        elif self.console is not None and time.monotonic() - self.last_line >= PLAIN_SECONDS:
            self.last_line = time.monotonic()
            line = f"  {time.strftime('%H:%M:%S')} {self.title} {shown}/{self.total} {self._times(shown)} {note}"
            self.console.print(printable(line), highlight=False, markup=False, soft_wrap=True)

    def _times(self, shown: int) -> str:
        """How long it has taken so far, and about how long it still will at the pace since the first advance."""
        seconds, since = self.last_line - self.began, self.last_line - self.first_at
        timed = shown - (self.first_done or 0)
        left = f", {_clock(since / timed * (self.total - shown))} left" if timed >= STEPS_FOR_AN_ESTIMATE else ""
        return f"[{_clock(seconds)}{left}]"


def _clock(seconds: float) -> str:
    """'0:02:05'."""
    return str(timedelta(seconds=round(seconds)))
