"""Faults of clients: a thousand of them, slow ones, dead ones, and prompts of megabytes."""

from __future__ import annotations

import asyncio
import collections
import json
import socket
import struct
import time
from pathlib import Path

import httpx2

from rlhf.formatting import duration
from tools.faults_server import CHAT, Outcome, Size, body, number, serving


async def crowd(folder: Path, size: Size) -> Outcome:
    """So many connections at once, each with a request."""
    outcome = Outcome(f"{size.connections:,} connections at once, each with a request")
    async with serving(folder, "embedded", "--name", "m") as (_, client):
        began = time.monotonic()
        answers = await asyncio.gather(*(client.post(CHAT, json=body()) for _ in range(size.connections)))
        seconds = time.monotonic() - began
        counts = collections.Counter(answer.status_code for answer in answers)
        told = all("Retry-After" in answer.headers for answer in answers if answer.status_code == 429)
        if set(counts) - {200, 429} or not counts[200] or not told:
            outcome.problems.append(f"{dict(counts)}, Retry-After with each 429: {told}")
        if (await client.post(CHAT, json=body())).status_code != 200:
            outcome.problems.append("the server does not answer afterwards")
    outcome.came = f"{counts[200]} answered, {counts[429]} told to come again (429), in {duration(seconds)}"
    return outcome


def _streaming(port: int, tokens: int) -> socket.socket:
    """A connection on which a stream was asked for; nothing of it is read."""
    asking = socket.socket()
    asking.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    asking.connect(("127.0.0.1", port))
    sent = json.dumps(body(stream=True, max_tokens=tokens)).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(sent)}\r\n\r\n"
    asking.sendall(head.encode() + sent)
    return asking


async def slow(folder: Path, size: Size) -> Outcome:
    """Clients that ask for streams and do not read them."""
    outcome = Outcome("20 clients that ask for a stream and read nothing")
    async with serving(folder, "embedded", "--name", "m") as (server, client):
        began = time.monotonic()
        await client.post(CHAT, json=body(max_tokens=32))
        alone = time.monotonic() - began
        sleepers = [_streaming(server.port, 128) for _ in range(20)]
        waits = []
        for _ in range(10):
            began = time.monotonic()
            answer = await client.post(CHAT, json=body(max_tokens=32))
            waits.append(time.monotonic() - began)
            if answer.status_code != 200:
                outcome.problems.append(f"somebody else was answered {answer.status_code}")
        for one in sleepers:
            one.close()
        outcome.came = f"others answered within {duration(max(waits))} (alone {duration(alone)})"
        await _check_empty(client, outcome)
    return outcome


async def dead(folder: Path, size: Size) -> Outcome:
    """Clients whose connection is reset while they are answered."""
    outcome = Outcome(f"{size.clients} clients whose connection is reset in the middle of a stream")
    async with serving(folder, "embedded", "--name", "m", "max_concurrent_requests=200") as (server, client):
        several = [_streaming(server.port, 128) for _ in range(size.clients)]
        for one in several:
            await asyncio.to_thread(one.recv, 64)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            one.close()
        await _check_empty(client, outcome)
        if (await client.post(CHAT, json=body())).status_code != 200:
            outcome.problems.append("the server does not answer afterwards")
        canceled = await number(client, 'request_failures_total{reason="canceled"}')
        outcome.came = f"{canceled:.0f} ended early, none left behind, others answered"
    return outcome


async def _check_empty(client: httpx2.AsyncClient, outcome: Outcome) -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        if not await number(client, "num_requests_running") + await number(client, "num_requests_waiting"):
            return
        await asyncio.sleep(0.1)
    outcome.problems.append("requests of clients that are gone go on")


async def huge(folder: Path, size: Size) -> Outcome:
    """Prompts of megabytes, while somebody else reads a stream."""
    outcome = Outcome("prompts of 5 MiB and 3 MiB, five of each, while a stream is read")
    gaps: list[float] = []

    async def read(client: httpx2.AsyncClient) -> None:
        while not is_over.is_set():
            last = time.monotonic()
            async with client.stream("POST", CHAT, json=body(stream=True, max_tokens=100)) as answer:
                async for _ in answer.aiter_bytes():
                    gaps.append(time.monotonic() - last)
                    last = time.monotonic()

    async with serving(folder, "embedded", "--name", "m") as (_, client):
        is_over = asyncio.Event()
        reading = asyncio.create_task(read(client))
        statuses = []
        for mebibytes in (5, 3):
            text = "so " * (mebibytes * 2**20 // 3)
            message = {"role": "user", "content": text}
            answers = await asyncio.gather(*(client.post(CHAT, json=body(messages=[message])) for _ in range(5)))
            statuses.append(collections.Counter(answer.status_code for answer in answers))
        is_over.set()
        await reading
    if list(statuses) != [{413: 5}, {400: 5}]:
        outcome.problems.append(f"{statuses}")
    outcome.came = f"refused (413, 400); longest pause of the stream {duration(max(gaps))}"
    return outcome
