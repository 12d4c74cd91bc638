"""Where the time of a training run goes: ``--profile`` measures every activity of the loop, and traces a few of its steps.

Each moment belongs to exactly one activity (see ``rlhf.activity``): one that begins inside another interrupts it. So they add up to
the time of the loop; what none claims is ``other``. What an evaluation or a checkpoint does counts as theirs,
whatever it is. Nothing here draws a random number or touches a tensor: a run with ``--profile`` gives the same bits as without.
"""

from __future__ import annotations

import gzip
import shutil
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch.profiler import ProfilerActivity, record_function

from rlhf.activity import ACTIVITIES, Activity, heard_by
from rlhf.files import write_aside, write_json
from rlhf.formatting import percentage

PROFILE_FILE = "profile.json"
TRACE_FILE = "profile_trace.json.gz"
WHOLE: tuple[Activity, ...] = ("evaluation", "checkpoint")
"""Phases that nothing inside interrupts."""
TRACED_STEPS = 3
"""Optimizer steps that are traced at least, in whole phases: a rollout is traced with the steps that learn from it."""
FIRST_TRACED_PHASE = 2
"""Counted from 0; the first phases build what later ones reuse."""
MAX_TRACE_SECONDS = 20.0
"""Of wall time, after which a trace ends in the middle of its phase: a viewer can't open gigabytes."""


@dataclass(slots=True)
class Spent:
    """What went into an activity."""

    cpu_seconds: float = 0.0
    """Of all threads of this process."""
    wall_seconds: float = 0.0
    count: int = 0
    """How often it was entered."""
    tokens: int = 0


class Profile:
    """Listens to one training stage; see ``rlhf.activity.Listener``.

    Args:
        folder: Gets ``profile.json`` and the trace; None keeps the figures in memory and traces nothing.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self.spent: dict[Activity, Spent] = defaultdict(Spent)
        self.traced = Spent()
        """Inside the trace, which costs time of its own: in no activity."""
        self.name = ""
        self.steps = 0
        """Measured; those that were traced are not."""
        self.phases: list[dict[Activity, float]] = []
        """Processor seconds by activity of each whole phase of the loop that was measured."""
        self.steps_of_phase: list[int] = []
        self._stack: list[Activity] = []
        self._now = (0.0, 0.0)
        self._trace: torch.profiler.profile | None = None
        self._trace_began = 0.0
        self._traced_until: int | None = None
        self._at_phase: tuple[int, dict[Activity, float]] | None = None
        self._on_gpu = torch.cuda.is_available()

    @contextmanager
    def loop(self, name: str) -> Iterator[None]:
        """A training loop runs while this is entered. Time counts from here to the loop's end."""
        self.name = name
        self._stack = ["other"]
        self._now = self._clocks()
        try:
            yield
        finally:
            self._charge()
            self._end_phase()
            self._stop_trace()
            self._stack = []
            self.write()

    def doing(self, what: Activity, tokens: int) -> _Inside:
        """The activity while entered; nested in another activity, it interrupts that one."""
        return _Inside(self, what, tokens)

    def count(self, what: Activity, tokens: int) -> None:
        """Additional tokens, if their number is known only afterwards."""
        if self._stack and self._stack[-1] not in WHOLE and self._trace is None:
            self.spent[what].tokens += tokens

    def before_phase(self, number: int, num_phases: int) -> None:
        """The loop starts to collect its next training data: the rows of a step, or a rollout for several steps. Ends the phase
        before, begins or ends the trace."""
        self._charge()
        self._end_phase()
        first = min(FIRST_TRACED_PHASE, num_phases - 1)
        if self._traced_until is None and number >= first and self.folder is not None and num_phases > 1:
            steps = statistics.median(self.steps_of_phase) if self.steps_of_phase else 1
            self._traced_until = number + max(1, round(TRACED_STEPS / max(1.0, steps)))
            self._start_trace()
        elif self._trace is not None and self._traced_until is not None and number >= self._traced_until:
            self._stop_trace()
        if self._trace is None:
            self._at_phase = (self.steps, self._seconds())

    def step(self) -> None:
        """An optimizer step is over."""
        if self._trace is None:
            self.steps += 1

    @property
    def cpu_seconds(self) -> float:
        """Processor seconds of the loop, without what was traced."""
        return sum(spent.cpu_seconds for spent in self.spent.values())

    def enter(self, what: Activity, tokens: int) -> None:
        """An activity begins."""
        if (
            not self._stack
        ):  # outside the loop: a trainer that is still being made, or a reward model that sets its scale
            return
        self._charge()
        inside = self._stack[-1]
        if inside in WHOLE:
            what = inside
        elif self._trace is None:
            spent = self.spent[what]
            spent.count += 1
            spent.tokens += tokens
        self._stack.append(what)

    def leave(self) -> None:
        """An activity ends."""
        if not self._stack:
            return
        self._charge()
        self._stack.pop()
        if self._trace is not None and self._now[1] - self._trace_began > MAX_TRACE_SECONDS:
            self._stop_trace()

    def as_dict(self) -> dict[str, Any]:
        """What ``profile.json`` says."""
        total = self.cpu_seconds
        whole = [sum(parts.values()) / steps for parts, steps in self._whole_phases()]
        return {
            "loop": self.name,
            "steps": self.steps,
            "cpu_seconds": total,
            "wall_seconds": sum(spent.wall_seconds for spent in self.spent.values()),
            "cpu_seconds_per_step": statistics.median(whole) if whole else None,
            "threads": torch.get_num_threads(),
            "clock_of_rates": "wall" if self._on_gpu else "processor",
            "activities": {
                name: {
                    "cpu_seconds": spent.cpu_seconds,
                    "wall_seconds": spent.wall_seconds,
                    "share": spent.cpu_seconds / total if total else 0.0,
                    "count": spent.count,
                    "tokens": spent.tokens or None,
                    "tokens_per_second": self._rate(spent),
                    "cpu_seconds_per_step": self._median_of(name),
                }
                for name in ACTIVITIES
                if (spent := self.spent.get(name)) is not None
            },
            "traced": {"cpu_seconds": self.traced.cpu_seconds, "wall_seconds": self.traced.wall_seconds},
        }

    def write(self) -> None:
        """Write ``profile.json``."""
        if self.folder is not None:
            write_json(self.folder / PROFILE_FILE, self.as_dict())

    def _rate(self, spent: Spent) -> float | None:
        seconds = spent.wall_seconds if self._on_gpu else spent.cpu_seconds
        return spent.tokens / seconds if spent.tokens and seconds > 0 else None

    def _whole_phases(self) -> list[tuple[dict[Activity, float], int]]:
        """Phases that took steps; without the first, where there are others: it builds what later ones reuse."""
        whole = [(parts, steps) for parts, steps in zip(self.phases, self.steps_of_phase, strict=True) if steps]
        return whole[1:] or whole

    def _median_of(self, what: Activity) -> float | None:
        """Processor seconds of an activity per optimizer step, in the middle one of the phases."""
        seconds = [parts.get(what, 0.0) / steps for parts, steps in self._whole_phases()]
        return statistics.median(seconds) if seconds else None

    def _seconds(self) -> dict[Activity, float]:
        return {name: spent.cpu_seconds for name, spent in self.spent.items()}

    def _end_phase(self) -> None:
        if self._at_phase is None or self._trace is not None:
            return
        steps, before = self._at_phase
        self._at_phase = None
        self.phases.append({name: seconds - before.get(name, 0.0) for name, seconds in self._seconds().items()})
        self.steps_of_phase.append(self.steps - steps)

    def _clocks(self) -> tuple[float, float]:
        if self._on_gpu:
            torch.cuda.synchronize()
        return time.process_time(), time.perf_counter()

    def _charge(self) -> None:
        """What passed since the last look belongs to the activity on top."""
        cpu, wall = self._clocks()
        spent = self.spent[self._stack[-1]] if self._trace is None else self.traced
        spent.cpu_seconds += cpu - self._now[0]
        spent.wall_seconds += wall - self._now[1]
        self._now = cpu, wall

    @property
    def tracing(self) -> bool:
        """Whether a trace is being taken."""
        return self._trace is not None

    def _start_trace(self) -> None:
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self._on_gpu else [])]
        self._trace = torch.profiler.profile(activities=activities)
        self._trace.start()
        self._now = self._clocks()
        self._trace_began = self._now[1]

    def _stop_trace(self) -> None:
        if self._trace is None:
            return
        trace = self._trace
        trace.stop()
        assert self.folder is not None, "nothing is traced without a folder"
        with tempfile.TemporaryDirectory() as aside_folder, write_aside(self.folder / TRACE_FILE) as aside:
            plain = Path(aside_folder) / "trace.json"
            trace.export_chrome_trace(str(plain))
            with plain.open("rb") as source, gzip.open(aside, "wb") as target:
                shutil.copyfileobj(source, target)
        self._charge()
        self._trace = None


class _Inside:
    """An activity that lasts as long as this is entered; under its name in the trace, too."""

    __slots__ = ("mark", "profile", "tokens", "what")

    def __init__(self, profile: Profile, what: Activity, tokens: int) -> None:
        self.profile, self.what, self.tokens = profile, what, tokens
        self.mark: record_function | None = None

    def __enter__(self) -> None:
        self.profile.enter(self.what, self.tokens)
        if self.profile.tracing:
            self.mark = record_function(self.what)
            self.mark.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.mark is not None:
            self.mark.__exit__(kind, error, trace)
        self.profile.leave()


@contextmanager
def profiled(folder: Path | None) -> Iterator[Profile]:
    """Measure the training loop that runs inside; what it found is written when the loop ends."""
    profile = Profile(folder)
    with heard_by(profile):
        yield profile


def profile_table(profile: Mapping[str, Any]) -> list[str]:
    """The lines of a table, for people.

    Args:
        found: What ``Profile.as_dict`` gives.
    """
    lines = [f"{'activity':<16}{'processor s':>12}{'wall s':>9}{'share':>8}{'times':>8}{'tokens/s':>11}"]
    for name, spent in profile["activities"].items():
        rate = f"{spent['tokens_per_second']:>11,.0f}" if spent["tokens_per_second"] else " " * 11
        lines.append(
            f"{name:<16}{spent['cpu_seconds']:>12.2f}{spent['wall_seconds']:>9.2f}{percentage(spent['share']):>8}"
            f"{spent['count'] or '':>8}{rate}"
        )
    lines.append(
        f"{'all':<16}{profile['cpu_seconds']:>12.2f}{profile['wall_seconds']:>9.2f}{percentage(1):>8}{profile['steps']:>8} steps"
    )
    if "sampler wait" in profile["activities"]:
        lines.append("(sampled in another process, whose processor seconds are in no line)")
    if profile["traced"]["wall_seconds"]:
        lines.append(f"({profile['traced']['cpu_seconds']:.2f} s more were traced, and are in no activity)")
    return lines
