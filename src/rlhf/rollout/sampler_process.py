"""A sampler in a separate process: the next rollouts are sampled there while this process trains on the last one.

A process and not a thread: sampling is many small operations, each of which holds Python's lock for a while, so that two threads
mostly wait for each other; and process-wide things (random generators, the cache of autocast, a signal) stay apart by themselves.
A fresh interpreter and not a fork, which would inherit torch's threads and locks in whatever state they are.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import weakref
from concurrent.futures import Future
from multiprocessing.connection import Connection
from typing import Protocol

from rlhf import errors
from rlhf.config.engines import LocalEngineConfig
from rlhf.errors import ModelError, TrainingError
from rlhf.models.policy import PolicyModel
from rlhf.rollout.snapshot import Autocast, Job, Refusal, Request, Sampled, Start, weight_bytes

START = "import sys; from rlhf.rollout.snapshot import main; main(int(sys.argv[1]), int(sys.argv[2]))"
"""Not ``-m``: the messages' classes must have their own module's name when they are pickled, not ``__main__``'s."""
TICK_SECONDS = 0.1
"""Between two looks at whether the process still lives."""
GOES_ON = "Start the same command again: it goes on from the newest checkpoint."


class Sampler(Protocol):
    """Samples rollouts in the order in which they are begun, each with the policy's weights as they were then."""

    def begin(self, version: int, request: Request, *, wants_fingerprint: bool) -> None:
        """Take the weights as they are now and start, or start behind what was begun before; returns as soon as the policy may learn on.

        Args:
            version: What the weights are called.
            request: What to sample.
            wants_fingerprint: Hash the sampling weights for comparison.
        """
        ...

    def finish(self) -> Sampled:
        """Wait for the oldest rollout that was begun and not finished."""
        ...

    def close(self) -> None:
        """End, whatever is under way."""
        ...


class SamplerProcess:
    """See ``Sampler``. The process starts with the first rollout, and never outlives this one."""

    def __init__(
        self,
        policy: PolicyModel,
        *,
        autocast: Autocast,
        threads: int,
        config: LocalEngineConfig = LocalEngineConfig(),  # noqa: B008 (frozen)
    ) -> None:
        """Nothing starts yet.

        Args:
            policy: Whose weights are taken at each ``begin``; its device and its path are taken at the first.
            autocast: Type of the matrix products.
            threads: Of the process.
            config: Of the engine there.
        """
        self.policy = policy
        self.autocast = autocast
        self.threads = threads
        self.config = config
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: Connection | None = None
        self._answer: Future[Sampled | Refusal] | None = None
        self._end: weakref.finalize[..., SamplerProcess] | None = None

    def begin(self, version: int, request: Request, *, wants_fingerprint: bool) -> None:
        """Take the weights as they are now and start, or start behind what was begun before; returns as soon as the policy may learn on.

        Raises:
            ModelError: The policy can't be copied into another process.
            TrainingError: The process can't be started, or is no more.
        """
        pipe = self._pipe or self._start()
        try:
            pipe.send(Job(version, request.slim(), wants_fingerprint))
            for parameter in self.policy.trainable_parameters().values():
                pipe.send_bytes(weight_bytes(parameter))
        except OSError as err:
            raise self._death() from err

    def finish(self) -> Sampled:
        """Wait for the oldest rollout that was begun and not finished.

        Raises:
            TrainingError: The process died.
            RLHFError: What sampling raised there.
        """
        assert self._pipe is not None, "begin() comes first"
        assert self._process is not None
        try:
            while self._answer is None and not self._pipe.poll(TICK_SECONDS):
                if self._process.poll() is not None and not self._pipe.poll(0):
                    raise EOFError
            self._answer = self._answer or _read_by_thread(self._pipe)
            answer = self._answer.result()
            self._answer = None
        except (EOFError, OSError, pickle.UnpicklingError) as err:
            raise self._death() from err
        if isinstance(answer, Refusal):
            raise getattr(errors, answer.kind)(answer.text)
        return answer

    def close(self) -> None:
        """End, whatever is under way; another ``begin`` starts a fresh process."""
        if self._pipe is not None:
            self._pipe.close()
        if self._end is not None:
            self._end()
        self._process = self._pipe = self._answer = self._end = None

    def _start(self) -> Connection:
        changing = tuple(self.policy.trainable_parameters())
        try:
            start = pickle.dumps(Start(self.policy, changing, self.autocast, self.threads, self.config))
        except Exception as err:
            raise ModelError(
                f"`async_rollouts` samples with a copy of the policy in a separate process, and this policy can't be sent to "
                f"one ({type(err).__name__}: {err}). Leave async_rollouts out."
            ) from err
        ours, theirs = multiprocessing.Pipe()
        try:
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-c", START, str(theirs.fileno()), str(os.getpid())],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=2,  # what a library prints there must not mix with what a command prints
                    start_new_session=True,  # Ctrl-C reaches only this process, which may still save the pending rollout
                    env=os.environ
                    | {
                        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
                        "OMP_NUM_THREADS": str(self.threads),
                    },
                )
        except OSError as err:
            ours.close()
            raise TrainingError(f"The sampler process can't be started ({err}).") from err
        self._pipe = ours
        self._end = weakref.finalize(self, _kill, self._process)
        try:
            ours.send(sys.path)
            ours.send_bytes(start)
        except OSError as err:
            raise self._death() from err
        return ours

    def _death(self) -> TrainingError:
        """How the process ended; it is gone afterwards."""
        assert self._process is not None
        try:
            status: int | None = self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            status = None
        self.close()
        how = f"ended with exit code {status}; what it printed says why"
        if status is None:
            how = "closed its connection"
        elif status == -signal.SIGKILL:
            how = "was killed (SIGKILL), probably by the system because memory ran out"
        elif status < 0:
            how = f"was killed by signal {-status}"
        return TrainingError(f"The sampler process {how}. {GOES_ON}")


def _read_by_thread(pipe: Connection) -> Future[Sampled | Refusal]:
    """One answer, read by a thread: a signal may raise in the main thread in the middle of a read, and the future can be asked again."""
    answer: Future[Sampled | Refusal] = Future()

    def read() -> None:
        try:
            answer.set_result(pipe.recv())
        except Exception as err:
            answer.set_exception(err)

    threading.Thread(target=read, daemon=True).start()
    return answer


def _kill(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
