"""A reward function in a separate process, which can be killed.

The process is a fresh interpreter running ``rlhf.rewards.worker``. A forked one would inherit torch's threads and
locks in whatever state they are; ``multiprocessing``'s spawn and forkserver would import the user's main script again,
which starts a second training where it has no ``if __name__ == "__main__"``.

It never outlives its parent. It leads a session, which is killed as a whole when it hangs, is closed, or the parent ends; if
the parent itself is killed, a guard (a shell that only waits for the parent's end) kills it.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any

from rlhf.errors import text_of
from rlhf.rewards.worker import PIPE_CLOSED, CallError, Failure, Odd

START_SECONDS = 120.0
"""For the interpreter and the function's own imports."""
START = "import sys; from rlhf.rewards.worker import main; main(int(sys.argv[1]))"
"""Not ``-m``: the worker's classes must have their own module's name when they are pickled, not ``__main__``'s."""
GUARD = 'read -r _ || kill -s KILL -- "-$1"'
"""Its input ends without a line when this process dies; a line means that the session is no more."""
TICK_SECONDS = 0.1
"""Between two looks at whether the process still lives."""
DEATH_SECONDS = 5.0
"""For a process that closed the pipe to end, so that its exit status can be reported."""
DEATHS: dict[int, str] = {
    signal.SIGKILL: "was killed (SIGKILL), probably by the system because memory ran out: reduce the function's "
    "memory use",
    signal.SIGSEGV: "crashed (SIGSEGV), which only compiled code does; run the function alone with "
    "`python -X faulthandler` to see where",
    signal.SIGABRT: "aborted (SIGABRT), which only compiled code does; what it printed says why",
}
"""What the commonest signals mean for a user."""


class FunctionProcess:
    """One function, started at the first call and again after it had to be killed. What it remembered is lost then."""

    def __init__(self, spec: str) -> None:
        """Name a function.

        Args:
            spec: ``package.module:function`` or ``path/to/file.py:function``.
        """
        self.spec = spec
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: Connection | None = None
        self._end: weakref.finalize[..., FunctionProcess] | None = None
        self._owner = 0
        self._lock = threading.Lock()

    def call(self, arguments: Mapping[str, Any], timeout_seconds: float) -> list[float | Odd | None]:
        """Run the function once; pickling makes the arguments copies, so it can change nothing of ours.

        Raises:
            CallError: It can't be found, raised, hung, died, or returned no list.
        """
        try:
            message = pickle.dumps(dict(arguments))
        except Exception as err:
            reason = f"a column can't be sent to another process ({type(err).__name__}: {text_of(err)}); use in_process"
            raise CallError(Failure(reason, hopeless=True)) from err
        with self._lock:
            self._start()
            try:
                verdicts, failure = self._ask(message, timeout_seconds)
            except TimeoutError:
                unit = "second" if timeout_seconds == 1 else "seconds"
                reason = f"it did not answer within {timeout_seconds:g} {unit} and was killed; raise timeout_seconds if it needs longer"
                raise CallError(Failure(reason, slow=True, worker_lost=True)) from None
        if failure is not None:
            raise CallError(failure)
        scores: list[float | Odd | None] = verdicts
        return scores

    def start(self) -> bool:
        """Start the process and let it import the function, if it does not run yet.

        Returns:
            Whether it did not.

        Raises:
            CallError: It can't be found, or its module does not import.
        """
        with self._lock:
            return self._start()

    def close(self) -> None:
        """End the process, if there is one, with all that it started."""
        if self._pipe is not None:
            self._pipe.close()
        if self._end is not None:
            self._end()
        self._process = self._pipe = self._end = None

    def _start(self) -> bool:
        if self._owner != os.getpid():
            self._process = self._pipe = self._end = None  # a fork of ours: the worker belongs to the parent
        if self._process is not None and not _has_exited(self._process):
            return False
        self.close()
        ours, theirs = multiprocessing.Pipe()
        try:
            with theirs:
                self._spawn(theirs.fileno())
        except OSError as err:
            ours.close()
            raise CallError(Failure(f"no process can be started for it ({err})", hopeless=True)) from err
        self._pipe = ours
        try:
            failure = self._ask(pickle.dumps((sys.path, self.spec)), START_SECONDS)
        except TimeoutError:
            raise CallError(
                Failure(f"importing it took longer than {START_SECONDS:g} seconds; import less", hopeless=True)
            ) from None
        except CallError as err:
            reason = f"while it was imported, {err.failure.reason}"
            raise CallError(err.failure._replace(reason=reason, hopeless=True)) from err
        if failure is not None:
            self.close()
            raise CallError(failure)
        return True

    def _spawn(self, descriptor: int) -> None:
        self._owner = os.getpid()
        self._process = subprocess.Popen(
            [sys.executable, "-c", START, str(descriptor)],
            pass_fds=[descriptor],
            stdin=subprocess.DEVNULL,
            stdout=2,  # what a function prints must not mix with what a command prints
            start_new_session=True,  # so that its children can be killed with it, and Ctrl-C reaches only us
            env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )
        guard = subprocess.Popen(
            ["/bin/sh", "-c", GUARD, "rlhf-guard", str(self._process.pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._end = weakref.finalize(self, _end, self._process, guard, self._owner)

    def _ask(self, message: bytes, timeout_seconds: float) -> Any:
        """Send a message and wait for what comes back; whatever goes wrong, the process is gone afterwards.

        A process that was left in the middle of a call would give its answer to the next one.

        Raises:
            TimeoutError: Nothing came in time.
            CallError: The process died.
        """
        assert self._process is not None
        assert self._pipe is not None
        pipe, deadline = self._pipe, time.monotonic() + timeout_seconds
        try:
            _limit(pipe, timeout_seconds)
            pipe.send_bytes(message)
            while not pipe.poll(min(TICK_SECONDS, max(0.0, deadline - time.monotonic()))):
                if time.monotonic() >= deadline:
                    raise TimeoutError
                if _has_exited(self._process) and not pipe.poll(0):
                    raise EOFError  # a child process may hold the pipe open
            return pipe.recv()
        except (TimeoutError, BlockingIOError):
            self.close()
            raise TimeoutError from None
        except (EOFError, OSError, pickle.UnpicklingError) as err:
            raise CallError(Failure(self._death(), worker_lost=True)) from err
        except BaseException:
            self.close()
            raise

    def _death(self) -> str:
        """How the process ended; it is gone afterwards."""
        process, deadline = self._process, time.monotonic() + DEATH_SECONDS
        assert process is not None
        while not (exited := _has_exited(process)) and time.monotonic() < deadline:
            time.sleep(0.01)
        self.close()
        status = process.returncode
        if not exited or status is None or status == PIPE_CLOSED:
            return "it closed the pipe through which its process answers; a function must close no files but those that it opened"
        if status >= 0:
            return f"the process that ran it ended with exit code {status}; a reward function must return, not exit"
        return f"the process that ran it {DEATHS.get(-status, f'was killed by {_signal_name(-status)}')}"


def _has_exited(process: subprocess.Popen[bytes]) -> bool:
    """Without reaping it: until then its id, which is also its session's, can't be reused by another process."""
    if process.returncode is not None:
        return True
    if not hasattr(os, "waitid"):  # macOS has it from Python 3.13 on
        return process.poll() is not None
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _end(process: subprocess.Popen[bytes], guard: subprocess.Popen[bytes], owner: int) -> None:
    """Kill the whole session, because a function may have started processes; then release the guard."""
    if os.getpid() != owner:
        return
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    with contextlib.suppress(OSError):
        guard.communicate(b"\n")


def _limit(pipe: Connection, seconds: float) -> None:
    """Let a read or write that gets nowhere for so long raise BlockingIOError: a stopped process takes no bytes."""
    limit = struct.pack("ll", int(seconds), max(1, int(seconds % 1 * 1e6)))
    with socket.socket(fileno=os.dup(pipe.fileno())) as same:
        same.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        same.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"
