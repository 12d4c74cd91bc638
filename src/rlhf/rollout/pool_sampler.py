"""The sampler ahead of training, in a pool of engines: they sample the next rollouts while this process trains on the last one."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from contextlib import contextmanager
from threading import Event, Lock
from typing import Protocol

from rlhf.rollout.snapshot import Request, Sampled
from rlhf.rollout.types import Completion
from rlhf.rollout.weight_sending import SentWeights

TICK_SECONDS = 0.5
"""Between two looks at signals, while a rollout is waited for."""


class Turns:
    """One request to a pool at a time; what this process waits for goes before rollouts that wait to be sampled ahead."""

    def __init__(self) -> None:
        self._busy = Lock()
        self._may_begin = Event()
        self._may_begin.set()

    @contextmanager
    def now(self) -> Iterator[None]:
        """Wait for the rollout that is being sampled, and for no other."""
        self._may_begin.clear()
        try:
            while not self._busy.acquire(timeout=TICK_SECONDS):
                pass
            try:
                yield
            finally:
                self._busy.release()
        finally:
            self._may_begin.set()

    @contextmanager
    def ahead(self) -> Iterator[None]:
        """Wait until nobody asks now."""
        self._may_begin.wait()
        with self._busy:
            yield


class AsksThePool(Protocol):
    """What ``rlhf.rollout.engine_pool.PooledEngine`` has for this."""

    turns: Turns

    def send_weights(self, version: int) -> SentWeights:
        """The policy's weights as they are now, for ``sample``."""
        ...

    def check(self, request: Request) -> None:
        """Refuse what engines can't sample."""
        ...

    def sample(
        self, request: Request, sent: SentWeights, *, exact: bool
    ) -> tuple[list[list[Completion]], dict[str, float]]:
        """Completions by these weights, and the engines' metrics; in a turn."""
        ...

    def fingerprints_of(self, sent: SentWeights) -> list[str]:
        """Of each engine, once it has these weights; in a turn."""
        ...

    def abandon(self) -> None:
        """What is under way is not wanted any more."""
        ...

    def close(self) -> None:
        """End the engines."""
        ...


class PoolSampler:
    """See ``rlhf.rollout.sampler_process.Sampler``. A thread deals the units out, one rollout after the other, and waits most of the time.

    Args:
        engine: The pool's, which others may ask between two rollouts.
    """

    def __init__(self, engine: AsksThePool) -> None:
        self.engine = engine
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="rollout")
        self._begun: deque[Future[Sampled]] = deque()

    def begin(self, version: int, request: Request, *, wants_fingerprint: bool) -> None:
        """Send the weights as they are now and start, or start behind what was begun before; returns as soon as the policy may learn on."""
        sent = self.engine.send_weights(version)
        self.engine.check(request)
        self._begun.append(self._thread.submit(self._sample, request.slim(), sent, wants_fingerprint))

    def finish(self) -> Sampled:
        """Wait for the oldest rollout that was begun and not finished; raises what sampling raised."""
        assert self._begun, "begin() comes first"
        oldest = self._begun[0]
        while not oldest.done():
            try:
                oldest.exception(timeout=TICK_SECONDS)
            except NotYet:
                continue
        self._begun.popleft()
        return oldest.result()

    def close(self) -> None:
        """End, whatever is under way."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        self.engine.abandon()
        self._thread.shutdown()
        self.engine.close()
        self._begun.clear()

    def _sample(self, request: Request, sent: SentWeights, wants_fingerprint: bool) -> Sampled:
        with self.engine.turns.ahead():
            groups, figures = self.engine.sample(request, sent, exact=False)
            theirs = set(self.engine.fingerprints_of(sent)) if wants_fingerprint else set()
        if len(theirs) > 1:
            return Sampled(groups, f"{len(theirs)} different ones", figures)
        return Sampled(groups, theirs.pop() if theirs else None, figures)
