"""Clients of one server: so many at once, each asking again when it has its answer, or arrivals by chance; streams are timed as they come."""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import aiohttp

from benchmarks.serving.model import NEW_TOKENS

Messages = list[dict[str, str]]


@dataclass(slots=True)
class Answer:
    """One request: when it was sent, and when each part of its answer came."""

    sent: float
    parts: list[float] = field(default_factory=list)
    tokens: int | None = None
    """None while it is not at its end."""
    error: str | None = None

    def tokens_between(self, begin: float, end: float) -> float:
        """A part of a finished answer counts as the mean number of tokens of its parts."""
        each = 1.0 if self.tokens is None else self.tokens / max(1, len(self.parts))
        return each * sum(begin <= at < end for at in self.parts)


@dataclass(frozen=True, slots=True)
class Load:
    """What the clients do."""

    name: str
    clients: int | None = None
    """In a closed loop."""
    rate: float | None = None
    """Requests a second that arrive by chance, whatever is still waiting."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Of one load on one server."""

    tokens_per_second: float
    first_token_ms: tuple[float, float]
    """Median and 95th percentile of the requests that were sent within the window and got a token."""
    between_tokens_ms: float
    """Median."""
    seconds_p95: float
    requests: int
    unanswered: int
    """Sent within the window and without a token at its end."""
    errors: int


def measure(
    url: str, model: str, conversations: Sequence[Messages], load: Load, *, warm_up: float, window: float
) -> Measured:
    """Ask for ``warm_up`` seconds, then for ``window`` seconds that count."""
    answers, begin = asyncio.run(_ask(url, model, iter(conversations), load, warm_up + window))
    start, end = begin + warm_up, begin + warm_up + window
    failed = [answer for answer in answers if answer.error]
    if failed and len(failed) == len(answers):
        raise SystemExit(f"{url}: every request failed, the first with {failed[0].error}")
    inside = [answer for answer in answers if start <= answer.sent < end and not answer.error]
    firsts = [1e3 * (answer.parts[0] - answer.sent) for answer in inside if answer.parts]
    waiting = len(inside) - len(firsts)
    gaps = [
        1e3 * (last - first) / max(1.0, (a.tokens or len(a.parts)) - 1)
        for a in inside
        if len(a.parts) > 1
        for first, last in [(a.parts[0], a.parts[-1])]
    ]
    whole = [answer.parts[-1] - answer.sent for answer in inside if answer.tokens is not None]
    return Measured(
        sum(answer.tokens_between(start, end) for answer in answers) / window,
        (percentile(firsts, 50), percentile(firsts, 95)),
        statistics.median(gaps) if gaps else float("nan"),
        percentile(whole, 95),
        len(inside),
        waiting,
        len(failed),
    )


def warm(url: str, model: str, messages: Messages) -> None:
    """Ask once and wait for the whole answer: what is compiled or allocated at the first request is there afterwards."""

    async def once() -> list[Answer]:
        answers: list[Answer] = []
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=300)) as session:
            await _one(session, url, model, messages, answers)
        return answers

    (answer,) = asyncio.run(once())
    if answer.error:
        raise SystemExit(f"{url}: the first request failed with {answer.error}")


def percentile(values: Sequence[float], which: int) -> float:
    """The smallest value that so many percent of all do not exceed; NaN of none."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * which // 100) - 1)] if ordered else float("nan")


async def _ask(
    url: str, model: str, conversations: Iterator[Messages], load: Load, seconds: float
) -> tuple[list[Answer], float]:
    answers: list[Answer] = []
    rng = random.Random(1)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None)) as session:
        begin = time.perf_counter()

        async def client() -> None:
            while True:
                await _one(session, url, model, next(conversations), answers)

        async def arrivals() -> None:
            assert load.rate is not None
            running = set()
            try:
                while True:
                    await asyncio.sleep(rng.expovariate(load.rate))
                    running.add(asyncio.create_task(_one(session, url, model, next(conversations), answers)))
            finally:
                for task in running:
                    task.cancel()

        tasks = [asyncio.create_task(client()) for _ in range(load.clients)] if load.clients else []
        tasks += [asyncio.create_task(arrivals())] if load.rate else []
        done, _ = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for task in done:
            task.result()
    await asyncio.sleep(0.05)  # until the sockets of the streams that were cut are closed
    return answers, begin


async def _one(session: aiohttp.ClientSession, url: str, model: str, messages: Messages, answers: list[Answer]) -> None:
    """Stream one answer; a request that fails is kept with its error."""
    answer = Answer(time.perf_counter())
    answers.append(answer)
    body = {
        "model": model, "messages": messages, "max_tokens": NEW_TOKENS, "temperature": 1.0, "top_p": 1.0, "stream": True,
        "stream_options": {"include_usage": True},
    }  # fmt: skip
    ended, counted = False, None
    try:
        async with session.post(f"{url}/v1/chat/completions", json=body) as response:
            if response.status != 200:
                answer.error = f"{response.status}: {(await response.text())[:300]}"
                await asyncio.sleep(0.2)
                return
            async for line in response.content:
                if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
                    continue
                event = json.loads(line[6:])
                if usage := event.get("usage"):
                    counted = usage["completion_tokens"]
                for choice in event.get("choices") or ():
                    if (choice.get("delta") or {}).get("content"):
                        answer.parts.append(time.perf_counter())
                    if choice.get("finish_reason"):
                        ended = True
                        counted = counted or (NEW_TOKENS if choice["finish_reason"] == "length" else None)
    except (aiohttp.ClientError, TimeoutError) as err:
        answer.error = f"{type(err).__name__}: {err}"
        return
    if ended or counted:
        answer.tokens = counted if counted is not None else len(answer.parts)
