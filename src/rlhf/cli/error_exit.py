"""How the command line ends when something goes wrong: one clear line, an exit code, and the trace only for who asks."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rlhf.errors import InterruptedRun, RLHFError, printable, text_of
from rlhf.training.interrupt import heeded_signals, leave_closed_terminal

DEBUG = "RLHF_DEBUG"
"""Environment variable that `--debug` sets: traces are printed."""
OUR_FAULT = 70
"""Exit code of an error that we did not foresee: EX_SOFTWARE of sysexits.h."""
NOTHING_TO_SAVE = 130
"""Exit code of Ctrl-C, SIGTERM and SIGHUP where there is nothing to save: what shells expect of a process that SIGINT ended."""


class Interrupted(BaseException):
    """Ctrl-C, SIGTERM or SIGHUP outside a run. KeyboardInterrupt would not reach us: click takes it for its own."""


@contextmanager
def signals_heeded() -> Iterator[Callable[[], None]]:
    """Inside, Ctrl-C, SIGTERM and SIGHUP end the command with a word; a run has handlers of its own while it lasts.

    Yields a function that ignores these signals from then on, to be called before an error message is printed: a launcher that sees one
    rank fail sends SIGTERM to the others, and rank 0, which prints the message, may be one of them.
    """

    def end(number: int, frame: object) -> None:
        if number == signal.SIGHUP:
            leave_closed_terminal()
        raise Interrupted

    def ignore() -> None:
        for number in before:
            signal.signal(number, signal.SIG_IGN)

    before = {number: signal.signal(number, end) for number in heeded_signals()}
    try:
        yield ignore
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def exit_code_of(err: BaseException) -> int:
    """Tell people about an error, and how the process should end.

    A user's mistake is a line. Ours is a line too, and its trace goes into a file that can be sent to us.
    """
    if isinstance(err, RLHFError | InterruptedRun):
        title = "stopped:" if isinstance(err, InterruptedRun) else "error:"
        _print(title, text_of(err), getattr(err, "__notes__", []))
        return err.exit_code
    if isinstance(err, Interrupted):
        notes = getattr(err, "__notes__", [])
        _print("stopped:", "Interrupted." if notes else "Interrupted, with nothing to save.", notes)
        return NOTHING_TO_SAVE
    if isinstance(err, BrokenPipeError):  # anyone who read our output, such as `head`, has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    where = _save_trace(err)
    _print("unexpected error:", f"{type(err).__name__}: {text_of(err)[:500]}", [*getattr(err, "__notes__", []), where])
    return OUR_FAULT


def _print(title: str, text: str, notes: list[str]) -> None:
    from rich.console import Console  # here: a command that succeeds may not need it

    console = Console(stderr=True)
    console.print(f"[bold red]{title}[/] ", end="")
    console.print(printable(text), markup=False, highlight=False, soft_wrap=True)
    for note in notes:
        console.print(printable(note), markup=False, highlight=False, style="dim", soft_wrap=True)


def _save_trace(err: BaseException) -> str:
    """Write the trace to a file of its own; what to tell about it."""
    please = "This is a fault of rlhf and not of yours, please report it"
    try:
        handle, name = tempfile.mkstemp(prefix="rlhf-trace-", suffix=".txt")
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(" ".join(sys.argv) + "\n\n" + "".join(traceback.format_exception(err)))
    except OSError:
        return f"{please}; --debug prints its trace."
    return f"{please} with {Path(name)}, which holds the trace (--debug prints it)."
