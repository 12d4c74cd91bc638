"""The thread that samples: it takes requests in turn, lets them join, and gives out tokens as they come.

Clients take turns in the queue, so that one that sends a hundred requests holds up nobody else. Prompts are read in parts between two
decoding steps: those who are being answered wait for some hundreds of tokens at most.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from rlhf.errors import RLHFError
from rlhf.serving.generation import Accepted, Event, Failed, Failure, GenerationRequest
from rlhf.serving.prometheus_metrics import ServingMetrics
from rlhf.serving.served_policy import Joining, ServedPolicy, needed_tokens

log = logging.getLogger(__name__)

Deliver = Callable[[list[tuple[str, Event]]], None]
"""Takes (request, event) in the order in which they happened; called by the engine's thread, and must not block."""
IDLE_SECONDS = 0.5
"""How often deadlines are looked at while nothing is sampled."""


class QueueFullError(RLHFError):
    """There are as many requests as are taken."""


class ClosedError(RLHFError):
    """The server is being stopped."""


@dataclass(slots=True)
class _Ticket:
    request: GenerationRequest
    model: ServedPolicy
    deadline: float
    arrived: float
    joined: float | None = None
    first_token: float | None = None
    last_token: float | None = None
    tokens: int = 0
    unfinished: int = field(init=False)
    """Completions that go on."""
    failure: Failure | None = None
    """Why it is to end early."""

    def __post_init__(self) -> None:
        self.unfinished = self.request.num_samples


class ServingEngine:
    """Samples for many requests at once.

    Args:
        deliver: Gets all events.
        metrics: Told of everything.
        max_batch_size: Completions sampled side by side.
        max_requests: Requests that wait or are sampled; a further one is refused.
        max_cache_tokens: Tokens of prompts and completions whose keys and values are held at once.
        chunk_tokens: Prompt tokens read between two decoding steps while others are being answered.
        timeout_seconds: For one request, waiting included.
    """

    def __init__(
        self,
        deliver: Deliver,
        metrics: ServingMetrics,
        *,
        max_batch_size: int = 32,
        max_requests: int = 100,
        max_cache_tokens: int = 131_072,
        chunk_tokens: int = 512,
        timeout_seconds: float = 600.0,
    ) -> None:
        self._deliver, self._metrics = deliver, metrics
        self.max_batch_size, self.max_requests, self.max_cache_tokens = max_batch_size, max_requests, max_cache_tokens
        self._chunk_tokens, self._timeout_seconds = chunk_tokens, timeout_seconds
        self._changed = threading.Condition()
        self._waiting: OrderedDict[str, deque[_Ticket]] = OrderedDict()
        """Client -> its requests; the client whose turn is next comes first."""
        self._tickets: dict[str, _Ticket] = {}
        """All that are not over."""
        self._joining: dict[ServedPolicy, list[Joining]] = {}
        self._active: dict[ServedPolicy, None] = {}
        """Models that have rows, or prompts to read."""
        self._closed = self._draining = False
        self._thread = threading.Thread(target=self._work, name="rlhf-serving", daemon=True)

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    @property
    def is_taking(self) -> bool:
        """Whether requests are taken."""
        with self._changed:
            return not self._draining

    @property
    def num_waiting(self) -> int:
        """Requests that are in the queue."""
        with self._changed:
            return sum(map(len, self._waiting.values()))

    @property
    def num_running(self) -> int:
        """Requests that are being read or answered."""
        with self._changed:
            return len(self._tickets) - sum(map(len, self._waiting.values()))

    def submit(self, model: ServedPolicy, request: GenerationRequest) -> None:
        """Queue a request, whose prompt fits the model.

        Raises:
            QueueFullError: Too many wait.
            ClosedError: No more are taken.
        """
        now = time.monotonic()
        with self._changed:
            if self._draining:
                raise ClosedError("The server is being stopped.")
            if len(self._tickets) >= self.max_requests:
                if not request.is_part:  # a search tries again
                    self._metrics.refused.inc()
                raise QueueFullError(f"{self.max_requests} requests are being answered or waiting already.")
            ticket = _Ticket(request, model, deadline=now + self._timeout_seconds, arrived=now)
            self._tickets[request.id] = ticket
            self._waiting.setdefault(request.client, deque()).append(ticket)
            self._changed.notify()

    def cancel(self, request_id: str) -> None:
        """End a request, whose client is gone; no more events come of it."""
        with self._changed:
            ticket = self._tickets.get(request_id)
            if ticket is not None:
                ticket.failure = Failure.CANCELED
                self._changed.notify()

    def drain(self, seconds: float) -> bool:
        """Take no more requests, and wait for those that are there; tells whether all ended in time."""
        limit = time.monotonic() + seconds
        with self._changed:
            self._draining = True
            return self._changed.wait_for(lambda: not self._tickets, timeout=max(0.0, limit - time.monotonic()))

    def stop(self, seconds: float) -> bool:
        """``drain``, then ``close``."""
        is_done = self.drain(seconds)
        if not is_done:
            log.warning("stopped after %g seconds, before all requests were answered", seconds)
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
                while not self._closed and not self._tickets and not self._active:
                    self._changed.wait(IDLE_SECONDS)
                if self._closed:
                    left = list(self._tickets.values())
                    self._tickets.clear()
                    self._waiting.clear()
                    self._changed.notify_all()
                    break
                events = self._end_early() + self._choose()
            if events:
                self._deliver(events)
            for model in list(self._active):
                self._advance(model)
                if not model.batch.num_rows and model not in self._joining:
                    del self._active[model]
        self._deliver([(one.request.id, Failed(Failure.CANCELED, "The server was stopped.")) for one in left])

    def _end_early(self) -> list[tuple[str, Event]]:
        """Requests that were canceled or took too long leave the queue and the batch."""
        now = time.monotonic()
        events: list[tuple[str, Event]] = []
        for ticket in list(self._tickets.values()):
            if ticket.failure is None and now > ticket.deadline:
                ticket.failure = Failure.TIMEOUT
            if ticket.failure is None:
                continue
            queue = self._waiting.get(ticket.request.client)
            if queue is not None and ticket in queue:
                queue.remove(ticket)
                if not queue:
                    del self._waiting[ticket.request.client]
            for joining in self._joining.get(ticket.model, []):
                if joining.request is ticket.request:
                    joining.is_over = True
            ticket.model.batch.drop(ticket.request.id)
            if ticket.failure is Failure.TIMEOUT:
                detail = f"The request took longer than {self._timeout_seconds:g} seconds."
                events.append((ticket.request.id, Failed(Failure.TIMEOUT, detail)))
            self._over(ticket, ticket.failure.value)
        return events

    def _choose(self) -> list[tuple[str, Event]]:
        """Requests whose turn it is and for which there is room begin to be read."""
        events: list[tuple[str, Event]] = []
        while (ticket := self._next()) is not None:
            client = ticket.request.client
            queue = self._waiting.pop(client)
            queue.popleft()
            if queue:
                self._waiting[client] = queue  # behind all others
            ticket.joined = time.monotonic()
            if not ticket.request.is_part:
                self._metrics.queue_seconds.observe(ticket.joined - ticket.arrived)
            try:
                with ticket.model.running():
                    joining = ticket.model.batch.begin(ticket.request)
            except Exception as err:  # such as no memory for its keys and values: the thread must go on
                log.exception("a request of %s could not be begun", ticket.model.source)
                events.append((ticket.request.id, Failed(Failure.CRASHED, str(err) or type(err).__name__)))
                self._over(ticket, Failure.CRASHED.value)
                continue
            self._metrics.prefix_queries.inc(len(ticket.request.prompt))
            self._joining.setdefault(ticket.model, []).append(joining)
            self._active[ticket.model] = None
        return events

    def _next(self) -> _Ticket | None:
        """The request whose turn it is; None where it has no room, or none may begin.

        One that must wait for others to end lets requests to other models pass. Of models that share a process the one whose request
        came first goes on, so that a change of weights is made once and no request waits forever.
        """
        first: dict[Hashable, _Ticket] = {}
        for queue in self._waiting.values():
            shared = queue[0].model.batch.shared
            first[shared] = min(first.get(shared, queue[0]), queue[0], key=lambda ticket: ticket.arrived)
        for queue in self._waiting.values():
            ticket, batch = queue[0], queue[0].model.batch
            if batch.can_join and ticket.model is first[batch.shared].model:
                return ticket if self._has_room(ticket) else None
        return None

    def _has_room(self, ticket: _Ticket) -> bool:
        joining = [one.request for several in self._joining.values() for one in several]
        batches = [model.batch for model in self._active]
        rows = sum(batch.num_rows for batch in batches) + sum(request.num_samples for request in joining)
        tokens = sum(batch.cached_tokens for batch in batches) + sum(map(needed_tokens, joining))
        if not rows:
            return True  # alone, anything goes
        fits = tokens + needed_tokens(ticket.request) <= self.max_cache_tokens
        return fits and rows + ticket.request.num_samples <= self.max_batch_size

    def _advance(self, model: ServedPolicy) -> None:
        """Read some, let what is read join, and sample a token of each row."""
        try:
            with model.running():
                self._read(model)
                if model.batch.num_rows:
                    self._note(model.batch.sample())
                    model.batch.feed()
        except Exception as err:  # whatever it is, the others must go on
            log.exception("sampling from %s failed", model.source)
            self._fail(model, str(err) or type(err).__name__)

    def _read(self, model: ServedPolicy) -> None:
        joining = self._joining.get(model, [])
        for one in [one for one in joining if one.is_over]:
            joining.remove(one)
            model.batch.forget(one)
        if joining and not model.batch.can_join:
            return  # their turn comes when all rows have ended
        left = self._chunk_tokens if model.batch.num_rows else model.max_prefill_tokens
        ready: list[Joining] = []
        while joining and (left > 0 or not ready):
            one = joining[0]
            unread = one.reading.num_unread if one.reading is not None else len(one.request.prompt)
            if unread > left and one.reading is not None and one.reading.can_wait:
                left -= model.batch.read_ahead(one, left)
                break
            if unread > left and ready:
                break
            ready.append(joining.pop(0))
            left -= unread
        if not joining:
            self._joining.pop(model, None)
        if ready:
            model.batch.join(ready)
            self._metrics.prompt_tokens.inc(sum(len(one.request.prompt) for one in ready))
            self._note(
                [
                    (one.request, Accepted(one.cached_tokens, model.fingerprint))
                    for one in ready
                    if one.cached_tokens is not None
                ]
            )

    def _note(self, events: list[tuple[GenerationRequest, Event]]) -> None:
        """Give out what was sampled, and end what is complete."""
        now = time.monotonic()
        with self._changed:
            given: list[tuple[str, Event]] = []
            for request, event in events:
                ticket = self._tickets.get(request.id)
                if ticket is None or ticket.failure is not None:
                    continue
                given.append((request.id, event))
                if isinstance(event, Failed):
                    ticket.model.batch.drop(request.id)
                    self._over(ticket, event.failure.value)
                elif isinstance(event, Accepted):
                    self._metrics.prefix_hits.inc(event.cached_tokens)
                else:
                    self._metrics.generation_tokens.inc()
                    self._timed(ticket, now)
                    if event.finish_reason is not None:
                        self._metrics.success.labels(finished_reason=event.finish_reason).inc()
                        ticket.unfinished -= 1
                        if not ticket.unfinished:
                            self._over(ticket, None)
        self._deliver(given)

    def _timed(self, ticket: _Ticket, now: float) -> None:
        if ticket.request.is_part:
            return
        if ticket.first_token is None:
            ticket.first_token = now
            self._metrics.first_token_seconds.observe(now - ticket.arrived)
        elif ticket.last_token is not None and now > ticket.last_token:  # not between two rows of one step
            self._metrics.token_seconds.observe(now - ticket.last_token)
        ticket.last_token = now
        ticket.tokens += 1

    def _over(self, ticket: _Ticket, failure: str | None) -> None:
        """With the lock held."""
        self._tickets.pop(ticket.request.id, None)
        if failure is None and not ticket.request.is_part:
            self._metrics.request_seconds.observe(time.monotonic() - ticket.arrived)
        elif failure is not None:
            self._metrics.failures.labels(reason=failure).inc()
        if not self._tickets:
            self._changed.notify_all()

    def _fail(self, model: ServedPolicy, detail: str) -> None:
        """End all requests of a model, and begin again without rows."""
        model.reset()
        with self._changed:
            self._joining.pop(model, None)
            events: list[tuple[str, Event]] = []
            for ticket in [one for one in self._tickets.values() if one.model is model and one.joined is not None]:
                events.append((ticket.request.id, Failed(Failure.CRASHED, detail)))
                self._over(ticket, Failure.CRASHED.value)
        self._deliver(events)
