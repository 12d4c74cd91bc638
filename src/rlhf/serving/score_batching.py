"""The thread that scores: rows of all requests that wait go into forward passes of so many tokens, the clients in turn.

A score does not depend on what else is in a pass, up to the rounding of matrix products. A request whose future is canceled is left out.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from rlhf.data.pack import Group
from rlhf.serving.prometheus_metrics import ServingMetrics
from rlhf.serving.scheduler import ClosedError, QueueFullError
from rlhf.serving.served_scorer import ServedScorer

log = logging.getLogger(__name__)


class Scoring(Protocol):
    """Who scores the rows of requests: this process's thread, or replicas elsewhere (``rlhf.serving.ray_scoring``)."""

    @property
    def num_waiting(self) -> int:
        """Requests that are in the queue."""
        ...

    @property
    def num_running(self) -> int:
        """Requests whose rows are being read."""
        ...

    def start(self) -> None:
        """Begin to answer."""
        ...

    def submit(
        self, scorer: ServedScorer, groups: Sequence[Group], *, client: str = "", is_part: bool = False
    ) -> Future[Tensor]:
        """Queue rows that fit the model; see ``ScoringEngine.submit``."""
        ...

    def stop(self, seconds: float) -> bool:
        """Take no more, wait for what is there, and end; tells whether all was scored in time."""
        ...


@dataclass(slots=True, eq=False)
class _Job:
    scorer: ServedScorer
    groups: Sequence[Group]
    arrived: float
    is_part: bool
    future: Future[Tensor] = field(default_factory=Future)
    num_taken: int = 0
    """Groups that are in a pass, or were in one."""
    parts: list[Tensor] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        return sum(group.num_tokens for group in self.groups[self.num_taken :])


class ScoringEngine:
    """Scores for many requests at once.

    Args:
        metrics: Told of everything.
        max_waiting: Requests that wait; a further one is refused.
        max_waiting_tokens: Tokens of the requests that wait; where some wait, one that brings more is refused.
    """

    def __init__(self, metrics: ServingMetrics, *, max_waiting: int = 100, max_waiting_tokens: int = 1_048_576) -> None:
        self._metrics = metrics
        self.max_waiting, self.max_waiting_tokens = max_waiting, max_waiting_tokens
        self._changed = threading.Condition()
        self._waiting: OrderedDict[str, deque[_Job]] = OrderedDict()
        """Client -> its requests that have rows left; the client whose turn is next comes first."""
        self._running: set[_Job] = set()
        """Jobs in the pass that is under way."""
        self._closed = self._draining = False
        self._thread = threading.Thread(target=self._work, name="rlhf-scoring", daemon=True)

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    @property
    def num_waiting(self) -> int:
        """Requests that are in the queue."""
        with self._changed:
            return sum(map(len, self._waiting.values()))

    @property
    def num_running(self) -> int:
        """Requests whose rows are being read."""
        with self._changed:
            return len(self._running)

    def submit(
        self, scorer: ServedScorer, groups: Sequence[Group], *, client: str = "", is_part: bool = False
    ) -> Future[Tensor]:
        """Queue rows that fit the model.

        Args:
            scorer: The model.
            groups: The rows.
            client: Clients take turns.
            is_part: Of a search: its times are no client's.

        Returns:
            The model's outputs [K, C], see ``rlhf.rewards.model_reward.ModelReward``.

        Raises:
            QueueFullError: Too much waits.
            ClosedError: No more is taken.
        """
        job = _Job(scorer, groups, time.monotonic(), is_part)
        with self._changed:
            if self._draining:
                raise ClosedError("The server is being stopped.")
            waiting = [each for queue in self._waiting.values() for each in queue]
            tokens = sum(each.num_tokens for each in waiting)
            if len(waiting) >= self.max_waiting or (waiting and tokens + job.num_tokens > self.max_waiting_tokens):
                if not is_part:  # a search tries again
                    self._metrics.refused.inc()
                raise QueueFullError(f"{len(waiting)} requests of {tokens:,} tokens are waiting already.")
            self._waiting.setdefault(client, deque()).append(job)
            self._changed.notify_all()
        return job.future

    def stop(self, seconds: float) -> bool:
        """Take no more, wait for what is there, and end; tells whether all was scored in time."""
        with self._changed:
            self._draining = True
            is_done = self._changed.wait_for(lambda: not self._waiting and not self._running, timeout=max(0.0, seconds))
        self.close()
        return is_done

    def close(self) -> None:
        """End at once; requests that are not over fail."""
        with self._changed:
            self._draining = self._closed = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join()

    # What follows runs in the engine's thread.

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._waiting)
                if self._closed:
                    left = [job for queue in self._waiting.values() for job in queue]
                    self._waiting.clear()
                    break
                taken = self._take()
                self._running = {job for job, _ in taken}
            self._score(taken)
            with self._changed:
                self._running = set()
                self._changed.notify_all()
        for job in left:
            _fail(job, ClosedError("The server was stopped."))

    def _take(self) -> list[tuple[_Job, Group]]:
        """The rows of one pass: of each client a group in turn, all of one model. With the lock held."""
        taken: list[tuple[_Job, Group]] = []
        room = 0
        took = True
        while took:
            took = False
            for client in list(self._waiting):
                job = self._next_job(client)
                if job is None or (taken and job.scorer is not taken[0][0].scorer):
                    continue
                group = job.groups[job.num_taken]
                if not taken:
                    room = job.scorer.reward.max_tokens
                elif group.num_tokens > room:
                    continue
                if not job.num_taken and not job.is_part:
                    self._metrics.queue_seconds.observe(time.monotonic() - job.arrived)
                taken.append((job, group))
                room, took = room - group.num_tokens, True
                job.num_taken += 1
                self._waiting.move_to_end(client)
        for client in list(self._waiting):
            self._next_job(client)
        return taken

    def _next_job(self, client: str) -> _Job | None:
        """The client's first job that has rows left and somebody who waits for it."""
        queue = self._waiting.get(client, deque())
        while queue and (queue[0].future.cancelled() or queue[0].num_taken == len(queue[0].groups)):
            job = queue.popleft()
            if not job.groups:
                _finish(job, torch.zeros(1, 0))
        if not queue:
            self._waiting.pop(client, None)
            return None
        return queue[0]

    def _score(self, taken: Sequence[tuple[_Job, Group]]) -> None:
        """One pass. Where it fails, each request has its own, so that only those fail that are to blame."""
        if not taken:
            return
        try:
            self._pass(taken)
        except Exception as err:  # such as no memory: the thread must go on
            jobs = dict.fromkeys(job for job, _ in taken)
            log.exception("scoring with %s failed", taken[0][0].scorer.source)
            for job in jobs:
                if len(jobs) == 1:
                    self._broken(job, err)
                    continue
                try:
                    self._pass([(owner, group) for owner, group in taken if owner is job])
                except Exception as own:
                    self._broken(job, own)

    def _pass(self, taken: Sequence[tuple[_Job, Group]]) -> None:
        reward = taken[0][0].scorer.reward
        with torch.inference_mode():
            outputs = reward.outputs([group for _, group in taken])
        parts = outputs.split([reward.num_outputs(group) for _, group in taken], dim=1)
        for (job, _), part in zip(taken, parts, strict=True):
            job.parts.append(part)
            if len(job.parts) == len(job.groups):
                if not job.is_part:
                    self._metrics.request_seconds.observe(time.monotonic() - job.arrived)
                _finish(job, torch.cat(job.parts, dim=1))
        self._metrics.scored_tokens.inc(sum(group.num_tokens for _, group in taken))

    def _broken(self, job: _Job, err: Exception) -> None:
        with self._changed:
            for queue in self._waiting.values():
                if job in queue:
                    queue.remove(job)
            self._waiting = OrderedDict((client, queue) for client, queue in self._waiting.items() if queue)
        self._metrics.failures.labels(reason="crashed").inc()
        _fail(job, err)


def _finish(job: _Job, outputs: Tensor) -> None:
    with contextlib.suppress(InvalidStateError):  # nobody waits any more
        job.future.set_result(outputs)


def _fail(job: _Job, err: Exception) -> None:
    with contextlib.suppress(InvalidStateError):
        job.future.set_exception(err)
