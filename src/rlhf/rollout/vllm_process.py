"""A worker process with a pair of pipes: requests with a timeout, and a clean shutdown."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import time
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlhf.allocator import CAPACITIES
from rlhf.distributed.launch_environment import RANK_VARIABLES
from rlhf.errors import ConfigError

BOOT = "import runpy, sys; runpy.run_path(sys.argv[1], run_name='__main__')"
"""Runs a script without putting its folder on the path: ours has modules that are called ``types`` and ``vllm``."""
NOT_INHERITED = (
    "PYTHONPATH",
    "PYTHONHOME",
    "PYTHONSTARTUP",
    "VIRTUAL_ENV",
    "__PYVENV_LAUNCHER__",
    *CAPACITIES,
    *RANK_VARIABLES,
)
"""What would make another environment's interpreter look for modules in ours, what we set for packed batches, and what makes a process
a rank."""
GOODBYE_SECONDS = 5.0
"""For an idle worker to exit after its input is closed."""
CHUNK = 1 << 20


class WorkerLostError(Exception):
    """The process ended, or did not answer in time; completes "vLLM's process ..."."""


class WorkerRefusedError(Exception):
    """The process returned an error; ``kind`` is its type."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class WorkerProcess:
    """One process with one request at a time."""

    def __init__(self, python: str, script: Path, *, env: Mapping[str, str], log: Path) -> None:
        """Start it.

        Args:
            python: Interpreter.
            script: What it runs.
            env: Variables in addition to those of this process.
            log: Gets what it prints.

        Raises:
            ConfigError: There is no such interpreter.
        """
        inherited = {key: value for key, value in os.environ.items() if key not in NOT_INHERITED}
        self._count = 0
        with log.open("ab") as errors:
            try:
                self.process = subprocess.Popen(
                    [python, "-c", BOOT, str(script)],
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, bufsize=0,
                    env={**inherited, **env}, cwd=log.parent,
                    start_new_session=True,  # a Ctrl-C is for the trainer; and all it starts can be ended together
                )  # fmt: skip
            except OSError as err:
                raise ConfigError(
                    f"engine.python is {python!r}, which can't be run: {err.strerror or err}. Name the interpreter of the "
                    "environment that has vLLM, such as /opt/vllm/bin/python."
                ) from None
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._requests, self._answers = self.process.stdin.fileno(), self.process.stdout.fileno()
        os.set_blocking(self._requests, False)
        # Also without a call of close(): at the latest when this interpreter ends.
        self._end = weakref.finalize(self, _end, self.process, os.getpid())

    @property
    def is_alive(self) -> bool:
        """Whether it can take requests."""
        return self.process.poll() is None

    def ask(self, op: str, arguments: Mapping[str, Any], *, timeout_seconds: float) -> dict[str, Any]:
        """Its answer to one request.

        Raises:
            WorkerLostError: It ended, or took too long. It is ended then: whatever it would still say is of no use.
            WorkerRefusedError: It answered with a reason why not.
        """
        self._count += 1
        deadline = time.monotonic() + timeout_seconds
        try:
            self._send(json.dumps({"id": self._count, "op": op, "with": arguments}).encode() + b"\n", deadline)
            answer = self._receive(deadline)
        except TimeoutError:
            self.close(grace_seconds=0)
            raise WorkerLostError(f"did not answer {op!r} within {timeout_seconds:g} seconds") from None
        except BaseException:  # a signal too: half a request was sent, or an answer will arrive that is not expected
            self.close(grace_seconds=0)
            raise
        if answer.get("id") != self._count:
            self.close(grace_seconds=0)
            raise WorkerLostError(f"answered another request than {op!r}")
        if "error" in answer:
            raise WorkerRefusedError(answer["error"]["kind"], answer["error"]["message"])
        reply: dict[str, Any] = answer["answer"]
        return reply

    def close(self, *, grace_seconds: float = GOODBYE_SECONDS) -> None:
        """End it, and whatever it has started."""
        with contextlib.suppress(OSError):
            self.process.stdin.close()  # type: ignore[union-attr]
        if grace_seconds:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(grace_seconds)
        self._end()

    def _send(self, data: bytes, deadline: float) -> None:
        rest = memoryview(data)
        while rest:
            _wait(self._requests, select.POLLOUT, deadline)
            try:
                rest = rest[os.write(self._requests, rest[:CHUNK]) :]
            except BlockingIOError:  # room for less than a pipe's atomic write
                continue
            except BrokenPipeError:
                raise WorkerLostError(self.how_it_ended()) from None

    def _receive(self, deadline: float) -> dict[str, Any]:
        pieces: list[bytes] = []
        while not (pieces and pieces[-1].endswith(b"\n")):
            _wait(self._answers, select.POLLIN, deadline)
            piece = os.read(self._answers, CHUNK)
            if not piece:
                raise WorkerLostError(self.how_it_ended())
            pieces.append(piece)
        try:
            answer: dict[str, Any] = json.loads(b"".join(pieces))
        except ValueError:
            raise WorkerLostError("answered with something that is not JSON") from None
        return answer

    def how_it_ended(self) -> str:
        """In words, of a process that has ended."""
        try:
            code = self.process.wait(GOODBYE_SECONDS)
        except subprocess.TimeoutExpired:
            return "closed its pipe"
        if code >= 0:
            return f"ended with exit code {code}"
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        hint = ", perhaps for want of memory" if name == "SIGKILL" else ""
        return f"was ended by {name}{hint}"


def _wait(pipe: int, event: int, deadline: float) -> None:
    """Until a pipe can be read or written, or its other end is gone."""
    poll = select.poll()  # select() knows no file numbers above 1023
    poll.register(pipe, event)
    if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
        raise TimeoutError


def _end(process: subprocess.Popen[bytes], owner: int) -> None:
    """Kill a process with its group, unless it is the parent's of a process that was forked off."""
    if os.getpid() != owner:
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)  # also where it has ended: its children may live
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
