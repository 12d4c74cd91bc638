"""The process that plays episodes of a verifiers environment, as ``rlhf.rollout.verifiers_worker`` says: lines of JSON, both ways."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import threading
import time
import weakref
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from rlhf.data.message_text import one_line
from rlhf.errors import ConfigError
from rlhf.rollout import verifiers_worker
from rlhf.rollout.vllm_process import BOOT, NOT_INHERITED

SCRIPT = Path(verifiers_worker.__file__)
GOODBYE_SECONDS = 10.0
"""For programs of episodes that are still played to be ended, once the process has lost its input."""
TABLE = -1
"""In place of an episode's number, for what concerns none."""
LAST_WORDS = 40
"""Lines of what the process printed that are kept for a message."""


class VerifiersError(Exception):
    """The process ended, hangs, or says what is wrong; the text is a sentence without its full stop. Not raised to callers."""


class Mail:
    """Events by episode, and how the process ended."""

    def __init__(self) -> None:
        self._boxes: dict[int, queue.SimpleQueue[dict[str, Any]]] = {TABLE: queue.SimpleQueue()}
        self._lock = threading.Lock()
        self.printed: deque[str] = deque(maxlen=LAST_WORDS)
        self.end: str | None = None
        self._failure: str | None = None

    def box(self, episode: int) -> queue.SimpleQueue[dict[str, Any]]:
        """Of an episode; a new one where there is none."""
        with self._lock:
            box = self._boxes.setdefault(episode, queue.SimpleQueue())
            if self.end is not None:
                box.put({"event": "lost"})
            return box

    def discard(self, episode: int) -> None:
        """What still arrives for the episode is of no use."""
        with self._lock:
            self._boxes.pop(episode, None)

    def deliver(self, event: dict[str, Any]) -> None:
        """To the episode's box, if it is still waited for."""
        if event["event"] == "failed":
            self._failure = event["why"]
        with self._lock:
            box = self._boxes.get(event.get("episode", TABLE))
        if box is not None:
            box.put(event)

    def close(self, how: str) -> None:
        """Ends every request that waits with an error: nothing more will come."""
        with self._lock:
            self.end = how if self._failure is None else f"has ended: {self._failure}"
            boxes = list(self._boxes.values())
        for box in boxes:
            box.put({"event": "lost"})


class VerifiersProcess:
    """One process with one environment and any number of episodes at a time; may be used from several threads."""

    def __init__(self, python: str, *, folder: Path | None) -> None:
        """Start it.

        Args:
            python: Interpreter.
            folder: Put on its path, and on that of the programs that it starts.

        Raises:
            ConfigError: There is no such interpreter.
        """
        env = {key: value for key, value in os.environ.items() if key not in NOT_INHERITED}
        env["PATH"] = os.pathsep.join([str(Path(python).parent), env.get("PATH", "")])  # harnesses call `uv`
        if folder is not None:
            env["PYTHONPATH"] = str(folder)
        try:
            self._process = subprocess.Popen(
                [python, "-c", BOOT, str(SCRIPT)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env,
                text=True, encoding="utf-8", errors="replace",
                start_new_session=True,  # a Ctrl-C is for the trainer
            )  # fmt: skip
        except OSError as err:
            raise ConfigError(
                f"environment.python is {python!r}, which can't be run: {err.strerror or err}. Name the interpreter of the environment that "
                "has verifiers, such as /opt/verifiers/bin/python."
            ) from None
        self._mail = Mail()
        self._writing = threading.Lock()
        for work in (_listen, _keep_printed):
            threading.Thread(target=work, args=(self._process, self._mail), name="rlhf-verifiers", daemon=True).start()
        # Also without a call of close(): at the latest when this interpreter ends.
        self.close = weakref.finalize(self, _end, self._process, os.getpid())

    def tell(self, op: str, **fields: Any) -> None:
        """Send a line. One that can't be sent is answered as the process's end is."""
        assert self._process.stdin is not None
        with self._writing, contextlib.suppress(OSError, ValueError):
            self._process.stdin.write(json.dumps({"op": op, **fields}) + "\n")
            self._process.stdin.flush()

    def start(self, episode: int, *, task: int, key: str | None) -> None:
        """Begin an episode, which has to be heard from then on.

        Args:
            episode: Its number, new.
            task: Which one of the taskset.
            key: That the task must have; None for any.
        """
        self._mail.box(episode)
        self.tell("start", episode=episode, task=task, key=key)

    def hear(self, episode: int, *, timeout_seconds: float) -> Mapping[str, Any]:
        """The next event of an episode, or with ``TABLE`` of none.

        Raises:
            VerifiersError: The process ended, or nothing came in time.
        """
        try:
            event = self._mail.box(episode).get(timeout=timeout_seconds)
        except queue.Empty:
            raise VerifiersError(
                f"verifiers did not answer within {timeout_seconds:g} seconds{self._words()}"
            ) from None
        if event["event"] == "lost":
            raise VerifiersError(f"the process of verifiers {self._mail.end}{self._words()}")
        return event

    def discard(self, episode: int) -> None:
        """End an episode, if it is still played."""
        self.tell("drop", episode=episode)
        self._mail.discard(episode)

    def _words(self) -> str:
        time.sleep(0.05)  # for the other pipe
        said = [line for line in self._mail.printed if line.strip()]
        return f"; the last that it printed: {one_line(said[-1])}" if said else ""


def _listen(process: subprocess.Popen[str], mail: Mail) -> None:
    assert process.stdout is not None
    with process.stdout:
        for line in process.stdout:
            try:
                event = json.loads(line)
            except ValueError:
                mail.close("wrote something that is not JSON")
                return
            mail.deliver(event)
    mail.close(_how_it_ended(process))


def _keep_printed(process: subprocess.Popen[str], mail: Mail) -> None:
    stderr: IO[str] | None = process.stderr
    assert stderr is not None
    with stderr:
        for line in stderr:
            mail.printed.append(line.rstrip("\n"))


def _how_it_ended(process: subprocess.Popen[str]) -> str:
    try:
        code = process.wait(GOODBYE_SECONDS)
    except subprocess.TimeoutExpired:
        return "closed its pipe"
    if code >= 0:
        return f"ended with exit code {code}"
    return f"was ended by {signal.Signals(-code).name if -code in {s.value for s in signal.Signals} else f'signal {-code}'}"


def _end(process: subprocess.Popen[str], owner: int) -> None:
    """Let a process end its programs, then kill it with its group, unless it is the parent's of a process that was forked off."""
    if os.getpid() != owner:
        return
    with contextlib.suppress(OSError, ValueError):
        process.stdin.close()  # type: ignore[union-attr]
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(GOODBYE_SECONDS)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
