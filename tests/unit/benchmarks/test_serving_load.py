"""The clients of the serving benchmark, against a server that says what it sent."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from aiohttp import web

from benchmarks.serving.load import Answer, Load, measure, percentile

TOKENS, PARTS, PAUSE = 6, 3, 0.02


@contextmanager
def server(status: int = 200) -> Iterator[tuple[str, list[dict]]]:
    """Streams PARTS parts, PAUSE seconds apart, that stand for TOKENS tokens."""
    asked: list[dict] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        asked.append(await request.json())
        if status != 200:
            return web.Response(status=status, text="full")
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for number in range(PARTS):
            await asyncio.sleep(PAUSE)
            choice = {"delta": {"content": "x"}, "finish_reason": "length" if number == PARTS - 1 else None}
            await response.write(b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n")
        usage = {"choices": [], "usage": {"completion_tokens": TOKENS}}
        await response.write(b"data: " + json.dumps(usage).encode() + b"\n\ndata: [DONE]\n\n")
        return response

    loop, ready = asyncio.new_event_loop(), threading.Event()
    urls: list[str] = []
    runners: list[web.AppRunner] = []

    def run() -> None:
        async def start() -> None:
            app = web.Application()
            app.router.add_post("/v1/chat/completions", answer)
            runner = web.AppRunner(app, shutdown_timeout=0.1)
            await runner.setup()
            runners.append(runner)
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            urls.append(f"http://127.0.0.1:{runner.addresses[0][1]}")
            ready.set()

        loop.run_until_complete(start())
        loop.run_forever()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert ready.wait(20)
    yield urls[0], asked
    asyncio.run_coroutine_threadsafe(runners[0].cleanup(), loop).result(20)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(20)
    loop.close()


CONVERSATIONS = [[{"role": "user", "content": str(number)}] for number in range(500)]


def test_a_closed_loop_counts_the_tokens_that_usage_tells_and_keeps_as_many_requests_as_clients():
    with server() as (url, asked):
        got = measure(url, "m", CONVERSATIONS, Load("2", clients=2), warm_up=0.1, window=0.8)
    answered = got.requests - got.unanswered
    assert 0 < answered <= len(asked)
    assert got.errors == 0
    # no faster than two streams can be, and each part is two tokens
    assert 0 < got.tokens_per_second <= 2 * (TOKENS / PARTS) / PAUSE
    assert got.tokens_per_second == pytest.approx(answered * TOKENS / 0.8, rel=0.5)
    assert got.first_token_ms[0] >= 1e3 * PAUSE
    assert got.seconds_p95 >= PARTS * PAUSE
    assert [row["messages"][0]["content"] for row in asked] == [str(number) for number in range(len(asked))]


def test_arrivals_do_not_wait_for_answers():
    with server() as (url, asked):
        measure(url, "m", CONVERSATIONS, Load("often", rate=200.0), warm_up=0.0, window=0.4)
    assert len(asked) > 1.5 * 0.4 / (PARTS * PAUSE)  # more than one client could have asked for


def test_a_server_that_refuses_everything_is_an_error_with_what_it_said():
    with server(status=503) as (url, _), pytest.raises(SystemExit, match="503: full"):
        measure(url, "m", CONVERSATIONS, Load("1", clients=1), warm_up=0.0, window=0.3)


def test_parts_of_an_answer_are_weighted_by_its_tokens_where_they_are_known():
    whole, cut = Answer(0.0, [1.0, 2.0, 3.0], tokens=6), Answer(0.0, [1.0, 2.0, 3.0])
    assert whole.tokens_between(1.5, 9.0) == 4
    assert cut.tokens_between(1.5, 9.0) == 2


@pytest.mark.parametrize(("which", "expected"), [(50, 2), (95, 4), (100, 4), (1, 1)])
def test_percentiles_are_values_that_were_measured(which, expected):
    assert percentile([4.0, 1.0, 3.0, 2.0], which) == expected
