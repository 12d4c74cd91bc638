"""How far a run is, for people."""

from __future__ import annotations

import time

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

PLAIN_SECONDS = 10.0
"""Off a terminal there are no bars; a line is printed this often instead."""


class ProgressBar:
    """A bar on a terminal, a line every few seconds elsewhere, nothing without a console."""

    def __init__(self, console: Console | None, title: str, total: int, done: int = 0) -> None:
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
        shown = min(self.done, self.total)
        if self.bar is not None:
            self.bar.update(self.task, completed=shown, note=note)
        elif self.console is not None and time.monotonic() - self.last_line >= PLAIN_SECONDS:
            self.last_line = time.monotonic()
            self.console.print(f"  {self.title} {shown}/{self.total} {note}", highlight=False, markup=False)
