"""Ctrl-C, SIGTERM and SIGHUP (the terminal was closed): a request to save and leave, not an axe.

While a step is taken the request waits for its end; while models are asked or evaluated it breaks in at once, because nothing of
that changes a weight and all of it is done again from the same seeds. A second signal leaves at once, wherever it falls.
A run that was started with SIGHUP ignored, as ``nohup`` does, goes on ignoring it.
"""

from __future__ import annotations

import errno
import os
import signal
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from rlhf.errors import InterruptedRun

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopRequest:
    """Whether somebody asked this process to stop, and whether that may break in now."""

    def __init__(self, *, at_once: bool) -> None:
        self.breaks_in = at_once
        self.name: str | None = None
        """Of the signal, once one came, to this process or to another rank."""
        self._came = False
        self.twice = False
        """Whether a second one came, which leaves at once."""

    def handle(self, number: int, frame: FrameType | None) -> None:
        """What the system calls between two bytecodes of the main thread.

        Raises:
            InterruptedRun: It may break in now, or it is the second signal.
        """
        self.twice, self._came = self._came, True  # another rank's signal is not this one's first
        self.name = signal.Signals(number).name
        if number == signal.SIGHUP:
            leave_closed_terminal()
        if self.twice or self.breaks_in:
            raise InterruptedRun(f"Stopped by {self.name}.")

    def check(self) -> None:
        """Raise InterruptedRun where a signal came."""
        if self.name is not None:
            raise InterruptedRun(f"Stopped by {self.name}.")

    @contextmanager
    def breaking_in(self) -> Iterator[None]:
        """Inside, a signal raises where it falls; one that came before raises at once."""
        before, self.breaks_in = self.breaks_in, True
        try:
            self.check()
            yield
        finally:
            self.breaks_in = before


def heeded_signals() -> list[signal.Signals]:
    """Those of ``SIGNALS`` that ask us to leave: all, but for SIGHUP where anyone who started this process had it ignored."""
    return [number for number in SIGNALS if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN]


def leave_closed_terminal() -> None:
    """Where standard output or error is a terminal that was closed, write to nowhere: each line would be an error."""
    for descriptor in (1, 2):
        try:
            termios.tcgetattr(descriptor)
        except termios.error as err:
            if err.args[0] == errno.EIO:
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, descriptor)
                os.close(nowhere)


@contextmanager
def signals_as_requests(*, at_once: bool = False) -> Iterator[StopRequest]:
    """Take over ``SIGNALS``, and give them back; off the main thread, where Python hears no signals, nothing changes.

    Args:
        at_once: Raise where the signal falls; else only where the caller allows it (``breaking_in``) or looks (``check``).
    """
    request = StopRequest(at_once=at_once)
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    before: dict[signal.Signals, Any] = {}
    try:
        for number in heeded_signals():
            before[number] = signal.signal(number, request.handle)
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
