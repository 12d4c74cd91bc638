"""The sampler one step ahead, in a pool of engines: they sample the next rollout while this process trains on the last one."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from typing import Any, Protocol

from rlhf.rollout.snapshot import Request, Sampled
from rlhf.rollout.types import Completion


class AsksThePool(Protocol):
    """What ``rlhf.rollout.engine_pool.PooledEngine`` has for this."""

    figures: dict[str, float]
    under_way: Future[Any] | None

    def load_weights(self, version: int) -> None:
        """Sample with the policy's weights as they are now from here on."""
        ...

    def sample_now(self, request: Request) -> list[list[Completion]]:
        """Completions, whatever else is under way."""
        ...

    def fingerprints(self) -> list[str]:
        """Of each engine."""
        ...

    def abandon(self) -> None:
        """What is under way is not wanted any more."""
        ...

    def close(self) -> None:
        """End the engines."""
        ...


TICK_SECONDS = 0.5
"""Between two looks at signals, while a rollout is waited for."""


class PoolSampler:
    """See ``rlhf.rollout.sampler_process.Sampler``. A thread deals the units out, and waits most of the time.

    Args:
        engine: The pool's, which others may ask between two rollouts.
    """

    def __init__(self, engine: AsksThePool) -> None:
        self.engine = engine
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="rollout")
        self._future: Future[Sampled] | None = None

    def begin(self, version: int, request: Request, *, wants_fingerprint: bool) -> None:
        """Send the weights as they are now and start; returns as soon as the policy may learn on."""
        self.engine.load_weights(version)
        self._future = self._thread.submit(self._sample, request.slim(), wants_fingerprint)
        self.engine.under_way = self._future

    def finish(self) -> Sampled:
        """Wait for what was begun last; raises what sampling raised."""
        assert self._future is not None, "begin() comes first"
        while True:
            try:
                return self._future.result(timeout=TICK_SECONDS)
            except NotYet:
                if self._future.done():  # sampling itself raised one
                    raise

    def close(self) -> None:
        """End, whatever is under way."""
        self.engine.abandon()
        self.engine.close()
        self._thread.shutdown()
        self._future = None

    def _sample(self, request: Request, wants_fingerprint: bool) -> Sampled:
        groups = self.engine.sample_now(request)
        fingerprint = None
        if wants_fingerprint:
            theirs = set(self.engine.fingerprints())
            fingerprint = theirs.pop() if len(theirs) == 1 else f"{len(theirs)} different ones"
        return Sampled(groups, fingerprint, self.engine.figures)
