"""How the driver and a side talk, and how a side measures itself.

A side is a process of its own. It loads, says that it is ready, and then stands still, using no processor time, until it is let
take some steps; after them it reports and stands still again. So two sides take turns step by step on the same machine. The
standard library is all this needs.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

MIB = 1 << 20


@dataclass(slots=True)
class Step:
    """One step of one side."""

    seconds: float
    """Processor time of all threads; on a GPU the time that passed until it had done all it was given."""
    wall_seconds: float
    peak_mib: float
    """Highest resident size so far, above that of the loaded model before the first step; on a GPU, of its tensors."""
    completion_tokens: int | None = None
    """Tokens of the completions that were sampled in it; None where none were."""
    sequences: list[tuple[int, list[int]]] | None = None
    """(prompt length, its completions' lengths) of what was sampled."""
    reserved_mib: float | None = None
    """Most that torch held of a GPU's memory so far, the loaded model included."""


class Channel:
    """Lines of JSON over two pipes. What the libraries print goes to the side's log."""

    def __init__(self, reader: int, writer: int) -> None:
        self._in = os.fdopen(reader, "r")
        self._out = os.fdopen(writer, "w", buffering=1)

    @classmethod
    def of_this_side(cls) -> Channel:
        """The one that the driver opened."""
        return cls(int(os.environ["BENCH_READ_FD"]), int(os.environ["BENCH_WRITE_FD"]))

    def send(self, **message: Any) -> None:
        """One message."""
        self._out.write(json.dumps(message) + "\n")

    def receive(self) -> dict[str, Any]:
        """The next one; waits for it. EOFError where the other end is gone."""
        line = self._in.readline()
        if not line:
            raise EOFError("the other side is gone")
        message: dict[str, Any] = json.loads(line)
        return message

    def close(self) -> None:
        """Both ends; the other process reads an end of file."""
        self._in.close()
        with contextlib.suppress(BrokenPipeError):
            self._out.close()


class Host:
    """Processor seconds and resident memory."""

    def settle(self) -> None:
        """Give back what loading left over, and begin to look for the highest."""
        settle_memory()

    def forget_peak(self) -> None:
        """Begin to look anew."""
        forget_peak()

    def used_mib(self) -> float:
        """Now."""
        return resident_mib()

    def peak_mib(self) -> float:
        """The highest since then."""
        return peak_mib()

    def reserved_mib(self) -> float | None:
        """Nobody holds more than is used."""
        return None

    def seconds(self) -> float:
        """Of all threads."""
        return time.process_time()


class Card(Host):
    """A GPU's: seconds that passed until its queue was empty, and what torch's allocator counts."""

    def __init__(self) -> None:
        import torch

        self.cuda = torch.cuda

    def settle(self) -> None:
        """Give back what loading left over, and begin to look for the highest."""
        gc.collect()
        self.cuda.synchronize()
        self.cuda.empty_cache()
        self.forget_peak()

    def forget_peak(self) -> None:
        """Begin to look anew."""
        self.cuda.reset_peak_memory_stats()

    def used_mib(self) -> float:
        """Tensors now."""
        return float(self.cuda.memory_allocated()) / MIB

    def peak_mib(self) -> float:
        """Most tensors since then."""
        return float(self.cuda.max_memory_allocated()) / MIB

    def reserved_mib(self) -> float | None:
        """With what the allocator keeps for later."""
        return float(self.cuda.max_memory_reserved()) / MIB

    def seconds(self) -> float:
        """What was given to it is done by then."""
        self.cuda.synchronize()
        return time.perf_counter()


class Meter:
    """Stands between a side's steps: stops the clock, reports, waits for the driver, starts the clock."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.gauge = Host()
        self.losses: list[float] = []
        self.values: dict[str, list[float]] = {}
        """Whatever else both sides should agree on, by name, one number a step."""
        self.notes: dict[str, Any] = {}
        """Told with every report."""
        self.sequences: Sequence[tuple[int, Sequence[int]]] | None = None
        """What is being sampled, where ``step_done`` is not told."""
        self._left = 0
        self._taken: list[Step] = []
        self._base = 0.0
        self._processor = self._wall = 0.0

    def measure_on(self, device: str) -> None:
        """Where seconds and memory are counted: ``cpu``, unless told otherwise, or ``cuda``."""
        self.gauge = Card() if device == "cuda" else Host()

    def begin(self, **told: Any) -> None:
        """The model is loaded and the first step comes next: remember how much memory that is, and wait to be let go.

        Args:
            told: Goes to the driver.
        """
        self.gauge.settle()
        self._base = self.gauge.used_mib()
        self.channel.send(kind="ready", resident_mib=self._base, **told)
        self._wait()

    def note(self, name: str, value: float) -> None:
        """A number of this step that the other side has too."""
        self.values.setdefault(name, []).append(float(value))

    def step_done(self, *, sequences: Sequence[tuple[int, Sequence[int]]] | None = None) -> None:
        """A step ended. Waits where it was the last that the driver asked for."""
        seconds, wall = self.gauge.seconds() - self._processor, time.perf_counter() - self._wall
        step = Step(seconds, wall, self.gauge.peak_mib() - self._base, reserved_mib=self.gauge.reserved_mib())
        sequences = sequences or self.sequences
        if sequences is not None:
            step.sequences = [(prompt, list(lengths)) for prompt, lengths in sequences]
            step.completion_tokens = sum(sum(lengths) for _, lengths in sequences)
        self._taken.append(step)
        self._left -= 1
        if self._left == 0:
            self._report()
            self._wait()
        else:
            self._start_clock()

    def _report(self) -> None:
        taken, self._taken = self._taken, []
        self.channel.send(
            kind="steps", steps=[asdict(s) for s in taken], losses=self.losses, values=self.values, notes=self.notes
        )

    def _wait(self) -> None:
        message = self.channel.receive()
        if message["do"] == "stop":
            leave()
        self._left = message["count"]
        if message.get("forget_peak"):
            self.gauge.forget_peak()
        self._start_clock()

    def _start_clock(self) -> None:
        self._processor, self._wall = self.gauge.seconds(), time.perf_counter()


def run_side(main: Callable[[dict[str, Any], Meter], None]) -> NoReturn:
    """Read the task, work until the driver has enough; what goes wrong is told to the driver in one line."""
    channel = Channel.of_this_side()
    try:
        main(channel.receive(), Meter(channel))
        channel.send(kind="done")
    except EOFError:
        leave(1)
    except BaseException as err:  # whatever it is, the driver must not wait for us
        traceback.print_exc()
        channel.send(kind="failed", error=f"{type(err).__name__}: {err}")
        leave(1)
    leave()


def leave(code: int = 0) -> NoReturn:
    """At once: trainers catch exceptions, and nothing of theirs is wanted any more."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def settle_memory() -> None:
    """Give back what loading left over, and begin to look for the highest resident size."""
    gc.collect()
    with contextlib.suppress(OSError):  # no glibc: then what was freed may count as the model's
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    forget_peak()


def forget_peak() -> None:
    """Reset VmHWM to the present size."""
    Path("/proc/self/clear_refs").write_text("5")


def resident_mib() -> float:
    """Memory in use now."""
    return status_mib("VmRSS")


def peak_mib() -> float:
    """Most memory in use since ``forget_peak``."""
    return status_mib("VmHWM")


def status_mib(key: str, text: str | None = None) -> float:
    """One number of /proc/self/status."""
    for line in (text or Path("/proc/self/status").read_text()).splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) / 1024
    raise LookupError(f"/proc/self/status has no {key}.")
