"""Requests to a reward server or a judge's endpoint: retried with growing waits, and given up with a complete error message.

Nothing here depends on the content of requests; see ``rlhf.rewards.service`` and ``rlhf.rewards.pairwise.endpoint_judge``.
"""

from __future__ import annotations

import asyncio
import email.utils
import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import httpx2

from rlhf.errors import RewardError
from rlhf.rewards.service_formats import Answer, AnswerError, shown
from rlhf.rewards.types import Notify
from rlhf.seeds import derive_seed

BUSY = (408, 425, 429)
"""Statuses below 500 that mean: retry later."""
MAX_ANSWER_BYTES = 64 * 1024 * 1024
MAX_REFUSAL_BYTES = 10_000
"""Of a refusal that are read."""
NOTICE_SECONDS = 20.0
"""The shortest wait that is worth a word."""
USUAL = 3.0
"""Where answers usually take longer than that, a wait of so many times the longest so far is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long to wait for a service, and how often to ask it; as in ``ServiceRewardConfig``."""

    timeout_seconds: float = 60.0
    deadline_seconds: float = 600.0
    retries: int = 5
    backoff_seconds: float = 1.0
    max_backoff_seconds: float = 60.0

    def wait(self, attempt: int, rng: random.Random) -> float:
        """Seconds between an attempt, counted from 1, and the next."""
        longest = min(self.max_backoff_seconds, self.backoff_seconds * 2.0 ** min(attempt - 1, 60))
        return longest * rng.uniform(0.5, 1.0)


@dataclass(slots=True)
class Request:
    """A body to send, and how it fares."""

    body: bytes
    about: str
    """Its content in error messages: "64 completions from 'p0' on"."""
    read: Callable[[bytes, str], Answer]
    """Makes an answer of bytes and their content type. Raises AnswerError where it can't, Later where another attempt may be better."""
    declined: Callable[[int, str], Answer | None] = lambda status, said: None
    """Makes an answer of a refusal that is about this request alone, of its status and words; None where it is about all of them."""
    answer: Answer | None = None
    attempts: int = 0
    trouble: str = ""
    """What the last attempt met."""


class Later(Exception):
    """The request may succeed later; the service may have said when."""

    def __init__(self, reason: str, wait_seconds: float | None = None) -> None:
        super().__init__(reason)
        self.wait_seconds = wait_seconds


@dataclass(slots=True)
class Caller:
    """Sends requests to one service."""

    url: str
    name: str
    headers: Mapping[str, str]
    patience: Patience
    concurrency: int
    notify: Notify
    what: str = "reward service"
    """In messages."""
    asked_for: str = "scores"
    loss: str = "nothing was trained on them"
    """What a failure did not spoil, in messages."""
    advice: str = "Fix the service or its url; then the same command goes on from the last checkpoint."
    seconds_between: float = 0.0
    """Between the beginnings of two attempts, retries included."""
    _next_start: float = field(default=0.0, init=False)
    longest_wait: float = field(default=0.0, init=False)
    """For a good answer so far, retries included."""

    @property
    def who(self) -> str:
        """The service in messages, without the query of its URL, which may contain a key."""
        name = "" if self.name == "service" else f" {self.name}"
        return f"{self.what}{name} at {self.url.partition('?')[0]}"

    async def ask_all(self, requests: Sequence[Request]) -> None:
        """Give every request its answer.

        Raises:
            RewardError: One failed for good; the others were let go.
        """
        turns = asyncio.Semaphore(self.concurrency)
        async with httpx2.AsyncClient(timeout=None, headers=dict(self.headers)) as client:
            tasks = [asyncio.create_task(self._ask(client, request, turns)) for request in requests]
            watch = asyncio.create_task(self._tell_about_waiting(requests))
            try:
                await asyncio.gather(*tasks)
            finally:
                for task in (*tasks, watch):
                    task.cancel()
                await asyncio.gather(*tasks, watch, return_exceptions=True)

    async def _ask(self, client: httpx2.AsyncClient, request: Request, turns: asyncio.Semaphore) -> None:
        """One request, again and again as long as there is hope."""
        async with turns:
            await self._wait_for_turn()
            start = time.monotonic()
            deadline = start + self.patience.deadline_seconds
            rng = random.Random(derive_seed(0, "reward service", self.name, request.about))
            while request.answer is None:
                request.attempts += 1
                wait = self.patience.wait(request.attempts, rng)
                try:
                    seconds = min(self.patience.timeout_seconds, deadline - time.monotonic())
                    request.answer = await self._attempt(client, request, seconds)
                except Later as later:
                    request.trouble = str(later)
                    wait = wait if later.wait_seconds is None else later.wait_seconds
                    if request.attempts > self.patience.retries or time.monotonic() + wait >= deadline:
                        raise self._gave_up(request, time.monotonic() - start, wait) from later
                    await asyncio.sleep(wait)
                    await self._wait_for_turn()
            self.longest_wait = max(self.longest_wait, time.monotonic() - start)

    async def _wait_for_turn(self) -> None:
        """Until the rate that was agreed on allows another attempt."""
        now = time.monotonic()
        start = max(now, self._next_start)
        self._next_start = start + self.seconds_between
        await asyncio.sleep(start - now)

    async def _attempt(self, client: httpx2.AsyncClient, request: Request, seconds: float) -> Answer:
        """Send, read and check.

        Raises:
            Later: Another attempt may succeed.
            RewardError: None will.
        """
        try:
            async with asyncio.timeout(
                seconds
            ):  # for the whole exchange; the client's own timeouts restart at each byte
                response, content = await self._exchange(client, request)
        except TimeoutError:
            raise Later(f"it did not answer within {seconds:.3g} seconds") from None
        except (httpx2.LocalProtocolError, httpx2.UnsupportedProtocol, httpx2.InvalidURL, httpx2.DecodingError) as err:
            raise self._refusal(
                request, f"can't be called, or its response can't be read: {type(err).__name__}: {err}"
            ) from err
        except httpx2.TransportError as err:
            text = " ".join(str(err).split())
            raise Later(f"the connection failed ({type(err).__name__}{': ' if text else ''}{text})") from err
        status, beginning = response.status_code, shown(content[:1000].decode("utf-8", errors="replace"))
        if status in BUSY or status >= 500:
            raise Later(f"it answered with status {status}: {beginning!r}", _retry_after(response.headers))
        if response.has_redirect_location:
            raise self._refusal(request, f"redirects to {response.headers['location']!r}; set url to that")
        if not response.is_success:
            words = content[:MAX_REFUSAL_BYTES].decode("utf-8", errors="replace")
            if (answer := request.declined(status, words)) is not None:
                return answer
            raise self._refusal(request, f"refused with status {status}: {beginning!r}")
        try:
            return request.read(content, response.headers.get("content-type", "not named"))
        except AnswerError as err:
            raise self._refusal(request, f"gave an answer that {err}") from err

    async def _exchange(self, client: httpx2.AsyncClient, request: Request) -> tuple[httpx2.Response, bytes]:
        content = bytearray()
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        async with client.stream("POST", self.url, content=request.body, headers=headers) as response:
            async for chunk in response.aiter_bytes():
                content += chunk
                if len(content) > MAX_ANSWER_BYTES:
                    raise self._refusal(
                        request,
                        f"answered with more than {MAX_ANSWER_BYTES} bytes, far more than the {self.asked_for} take",
                    )
        return response, bytes(content)

    async def _tell_about_waiting(self, requests: Sequence[Request]) -> None:
        """So that a run that waits does not look as if it hung; twice as long before each further word."""
        start, wait = time.monotonic(), max(NOTICE_SECONDS, USUAL * self.longest_wait)
        while True:
            await asyncio.sleep(max(0.0, start + wait - time.monotonic()))
            waiting = [request for request in requests if request.answer is None]
            trouble = max((request.trouble for request in waiting), default="")
            self.notify(
                f"Waiting for the {self.who} since {wait:.3g} seconds: {len(requests) - len(waiting)} of {len(requests)} "
                f"requests are answered{f'; trouble: {trouble}' if trouble else ''}. A request is given up after "
                f"{self.patience.deadline_seconds:g} seconds or {self.patience.retries + 1} attempts."
            )
            wait *= 2

    def _gave_up(self, request: Request, seconds: float, wait: float) -> RewardError:
        attempts = f"{request.attempts} attempt{'s' if request.attempts > 1 else ''}"
        limit = f"deadline_seconds ({self.patience.deadline_seconds:g})"
        why = f" Waiting {wait:.3g} seconds for the next would pass {limit}."
        return RewardError(
            f"The {self.who} gave no {self.asked_for} for {request.about}: {attempts} in {seconds:.3g} seconds; at the last, "
            f"{request.trouble}.{why if request.attempts <= self.patience.retries else ''} {self.loss[0].upper()}{self.loss[1:]}. "
            f"{self.advice}"
        )

    def _refusal(self, request: Request, reason: str) -> RewardError:
        return RewardError(f"The {self.who} {reason}. It was asked about {request.about}; {self.loss}.")


def _retry_after(headers: httpx2.Headers) -> float | None:
    """Seconds to wait according to the service: a number, or a date."""
    text = headers.get("retry-after")
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(text).timestamp() - time.time()
        except ValueError:
            return None
    return max(0.0, seconds) if math.isfinite(seconds) else None
