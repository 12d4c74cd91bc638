"""What the page shows of a run: its state, alarms, newest samples and curves, from the files that the run writes."""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf.pipeline.lock import is_locked
from rlhf.pipeline.report.alarms import SHOWN, Witness, alarm_views, witness
from rlhf.pipeline.report.page import FILE_NAME, environment
from rlhf.pipeline.report.plots import reuse_plots_of
from rlhf.pipeline.report.run_data import read_run
from rlhf.pipeline.report.views import stage_curves
from rlhf.pipeline.report.words import headline
from rlhf.training.log import EVENTS, ROLLOUTS

MIN_AGE_SECONDS = 2.0
"""What is younger is shown again though something was written since."""
REST = 20.0
"""And what is younger than so many times what making it took: a page takes at most a twentieth of a core from the run."""
TAIL_BYTES = 2**20
"""Of the end of a file of rollouts, in which the newest are looked for."""
MAX_SAMPLES = 8
SHOWN_OF_A_SAMPLE = ("prompt", "completion", "ended", "score", "kl", "turns", "environment_reward")
"""Columns of a row of rollouts; the report's alarms show others, too."""


@dataclass(frozen=True, slots=True)
class NewestSamples:
    """Completions of the newest step of the stage that sampled last, the first of the step: not selected by outcome."""

    stage: str
    step: int | None
    samples: list[Witness]


class WatchedRun:
    """Keeps the last view of a run folder; one request makes it, others wait for it.

    Args:
        folder: Of the run; it may be empty yet.
        clock: Seconds.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self.folder, self._clock = folder, clock
        self._lock = threading.Lock()
        self._stamp: tuple[object, ...] | None = None
        self._fresh_until = 0.0
        self._page = ""

    @property
    def report(self) -> Path | None:
        """Its report, where it has one."""
        path = self.folder / FILE_NAME
        return path if path.is_file() else None

    def view(self) -> tuple[str, str]:
        """The part of the page that changes, as HTML, and its hash: the last one where it is true or young, a new one else."""
        with self._lock:
            began = self._clock()
            stamp = self._state()
            if self._stamp is None or (stamp != self._stamp and began >= self._fresh_until):
                with reuse_plots_of(self._page):
                    self._page = self._render()
                self._stamp = stamp
                self._fresh_until = self._clock() + max(MIN_AGE_SECONDS, REST * (self._clock() - began))
            return self._page, hashlib.sha256(self._page.encode("utf-8", "backslashreplace")).hexdigest()[:20]

    def _state(self) -> tuple[object, ...]:
        """Differs once a file that is shown was written, or the run began or ended."""
        shown = (
            EVENTS,
            f"*/{ROLLOUTS}",
            "recipe.yaml",
            "manifest.json",
            "summary.json",
            "*/evaluation.json",
            FILE_NAME,
        )
        stats = []
        for pattern in shown:
            for path in sorted(self.folder.glob(pattern)):
                with suppress(OSError):  # gone between listing and looking
                    stat = path.stat()
                    stats.append((str(path), stat.st_mtime_ns, stat.st_size))
        return is_locked(self.folder, by_others=True) if self.folder.is_dir() else None, *stats

    def _render(self) -> str:
        run = read_run(self.folder)
        stages = list(run.stages.values())
        curves = [stage_curves(stage) for stage in reversed(stages) if stage.curves]
        return environment().get_template("watch.jinja").render(
            run=run, has_events=EVENTS not in run.missing, headline=headline(run), alarms=list(reversed(alarm_views(run))),
            shown=SHOWN, newest=newest_samples(self.folder), curves=curves, report=self.report is not None,
            notes=[(stage, note) for stage in stages for note in stage.notes],
        )  # fmt: skip


def newest_samples(folder: Path) -> NewestSamples | None:
    """Of a run folder; None where nothing was sampled yet."""
    files = sorted(folder.glob(f"*/{ROLLOUTS}"), key=lambda path: path.stat().st_mtime_ns)
    for path in reversed(files):
        rows = _last_rows(path)
        if rows:
            step = rows[-1].get("step")
            newest = [row for row in rows if row.get("step") == step]
            shown = [{name: row[name] for name in SHOWN_OF_A_SAMPLE if name in row} for row in newest[:MAX_SAMPLES]]
            return NewestSamples(path.parent.name, step, [witness(row) for row in shown])
    return None


def _last_rows(path: Path) -> list[dict[str, Any]]:
    """Whole rows at the end of a file that may be written to just now."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - TAIL_BYTES))
        lines = file.read().split(b"\n")
    if size > TAIL_BYTES:
        lines = lines[1:]
    rows = []
    for line in lines:
        with suppress(ValueError):
            row = json.loads(line)
            if isinstance(row, dict):
                rows.append(row)
    return rows
