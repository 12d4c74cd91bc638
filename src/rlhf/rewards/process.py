"""A reward function in a process of its own, which can be killed.

The process is a fresh interpreter running ``rlhf.rewards.worker``. A forked one would inherit torch's threads and
locks in whatever state they are; ``multiprocessing``'s spawn and forkserver would import the user's main script again,
which starts a second training where it has no ``if __name__ == "__main__"``.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any

from rlhf.rewards.worker import CallError, Odd

START_SECONDS = 120.0
"""For the interpreter and the function's own imports."""
START = "import sys; from rlhf.rewards.worker import main; main(int(sys.argv[1]))"
"""Not ``-m``: the worker's classes must have their own module's name when they are pickled, not ``__main__``'s."""
WORKER_GONE = "the process that ran it died"


class FunctionProcess:
    """One function, started at the first call and again after it had to be killed."""

    def __init__(self, spec: str) -> None:
        """Name a function.

        Args:
            spec: ``package.module:function`` or ``path/to/file.py:function``.
        """
        self.spec = spec
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: Connection | None = None
        self._owner = 0

    def call(self, arguments: Mapping[str, Any], timeout_seconds: float) -> list[float | Odd | None]:
        """Run the function once; pickling makes the arguments copies, so it can change nothing of ours.

        Raises:
            CallError: It can't be found, raised, hung, died, or returned no list.
        """
        pipe = self._started()
        try:
            message = pickle.dumps(dict(arguments))
        except Exception as err:
            raise CallError(f"a column can't be sent to another process ({err}); use in_process") from err
        try:
            pipe.send_bytes(message)
            verdicts, error = self._answer(pipe, timeout_seconds)
        except (EOFError, OSError) as err:
            raise CallError(self._death()) from err
        if error is not None:
            raise CallError(error)
        found: list[float | Odd | None] = verdicts
        return found

    def close(self) -> None:
        """End the process, if there is one, with all that it started."""
        if self._pipe is not None:
            self._pipe.close()
        if self._process is not None and self._owner == os.getpid():
            _kill(self._process)
        self._process = self._pipe = None

    def _started(self) -> Connection:
        if self._process is not None and self._owner != os.getpid():
            self._process = self._pipe = None  # a fork of ours: the worker belongs to the parent
        if self._process is not None and self._pipe is not None and self._process.poll() is None:
            return self._pipe
        self.close()
        ours, theirs = multiprocessing.Pipe()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", START, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=2,  # what a function prints must not mix with what a command prints
                start_new_session=True,  # so that its children can be killed with it, and Ctrl-C reaches only us
                env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            )
        self._pipe, self._owner = ours, os.getpid()
        weakref.finalize(self, _kill, self._process)
        try:
            ours.send((sys.path, self.spec))
            error = self._answer(ours, START_SECONDS)
        except (EOFError, OSError) as err:
            raise CallError(self._death()) from err
        if error is not None:
            self.close()
            raise CallError(error)
        return ours

    def _answer(self, pipe: Connection, timeout_seconds: float) -> Any:
        deadline = time.monotonic() + timeout_seconds
        if not pipe.poll(max(0.0, deadline - time.monotonic())):
            self.close()
            raise CallError(f"it did not answer within {timeout_seconds:g} seconds and was killed")
        return pipe.recv()

    def _death(self) -> str:
        status = None
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                status = self._process.wait(timeout=5)
        self.close()
        if status is None:
            return WORKER_GONE
        return (
            f"{WORKER_GONE} by {signal.Signals(-status).name}"
            if status < 0
            else f"{WORKER_GONE} with exit code {status}"
        )


def _kill(process: subprocess.Popen[bytes]) -> None:
    """The whole session: a function may have started processes of its own."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
