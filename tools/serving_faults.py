"""What happens to a server when things go wrong: it is killed, its disk is full, its clients are slow, dead or a thousand.

    python tools/serving_faults.py                                    everything: some minutes
    python tools/serving_faults.py --only kills crowd
    python tools/serving_faults.py --write docs/results/serving_faults.md

The server is `rlhf serve` in a process of its own, with the embedded base model. Each fault is a function of ``FAULTS`` that gives what was
done, what came of it, and what is wrong with that.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import contextlib
import json
import os
import platform
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import torch

from rlhf.files import write_text
from rlhf.formatting import duration
from rlhf.models.policy import PolicyModel
from rlhf.registry.registry import Registry
from rlhf.store import PreferenceStore

START_SECONDS = 300.0
PATIENCE_SECONDS = 300.0
"""How long a client tries to send one thing."""
CHAT, FEEDBACK = "/v1/chat/completions", "/v1/feedback"
MESSAGES = [{"role": "user", "content": "Once upon a time"}]


@dataclass
class Outcome:
    """Of one fault."""

    done: str
    """What was done to the server."""
    came: str = ""
    """What was counted."""
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Size:
    """How much of everything."""

    clients: int = 50
    events: int = 20
    kills: int = 5
    connections: int = 1000
    swaps: int = 6


class Server:
    """`rlhf serve`, again and again on one port."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.folder, self.words = folder, words
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = folder / "server.log"
        self.process: subprocess.Popen[bytes] | None = None

    async def start(self) -> None:
        """Start it; returns once it answers."""
        command = [sys.executable, "-m", "rlhf", "serve", *self.words, "--port", str(self.port), "compiled=false"]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder)
        until = time.monotonic() + START_SECONDS
        async with httpx2.AsyncClient(base_url=self.url) as client:
            while time.monotonic() < until and self.process.poll() is None:
                with contextlib.suppress(httpx2.TransportError):
                    if (await client.get("/health")).status_code == 200:
                        return
                await asyncio.sleep(0.2)
        raise SystemExit(f"The server did not start:\n{self.log.read_text()[-3000:]}")

    def end(self, how: signal.Signals = signal.SIGTERM) -> None:
        """Send it a signal and wait until it is gone."""
        if self.process is not None:
            self.process.send_signal(how)
            self.process.wait(60)


@contextlib.asynccontextmanager
async def serving(folder: Path, *words: str) -> AsyncIterator[tuple[Server, httpx2.AsyncClient]]:
    """A server, and a client without limits of its own."""
    server = Server(folder, *words)
    await server.start()
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx2.AsyncClient(base_url=server.url, timeout=PATIENCE_SECONDS, limits=limits) as client:
        try:
            yield server, client
        finally:
            server.end(signal.SIGKILL)


def body(**keys: Any) -> dict[str, Any]:
    """A request for a few tokens."""
    return {"model": "m", "messages": MESSAGES, "max_tokens": 4, "ignore_eos": True, **keys}


async def number(client: httpx2.AsyncClient, name: str) -> float:
    """One of the server's metrics; 0 where it was not counted yet."""
    found = re.search(rf"^rlhf:{re.escape(name)} (\S+)$", (await client.get("/metrics")).text, re.MULTILINE)
    return float(found[1]) if found else 0.0


async def kills(folder: Path, size: Size) -> Outcome:
    """SIGKILL while clients give feedback; they send again what was not acknowledged."""
    total = size.clients * size.events
    outcome = Outcome(f"SIGKILL {size.kills} times while {size.clients} clients send {total:,} thumbs")
    acknowledged: dict[str, str] = {}
    repeated = 0

    async def person(client: httpx2.AsyncClient, who: int, completion: str) -> None:
        nonlocal repeated
        for turn in range(size.events):
            event = {"key": f"p{who}-{turn}", "kind": "thumbs", "completion_id": completion, "up": turn % 2 == 0}
            until = time.monotonic() + PATIENCE_SECONDS
            while time.monotonic() < until:
                try:
                    sent = await client.post(FEEDBACK, json=event)
                except httpx2.TransportError:
                    repeated += 1
                    await asyncio.sleep(1)
                    continue
                if sent.status_code == 201:
                    acknowledged[event["key"]] = sent.json()["ids"][0]
                    break
                if sent.status_code not in (429, 503):
                    outcome.problems.append(f"{sent.status_code}: {sent.text[:200]}")
                    return
                await asyncio.sleep(float(sent.headers.get("Retry-After", "1")))

    async with serving(folder, "embedded", "--name", "m", "--store", "feedback.db") as (server, client):
        answers = await asyncio.gather(*(client.post(CHAT, json=body()) for _ in range(size.clients)))
        ids = [answer.json()["id"] for answer in answers]
        people = [asyncio.create_task(person(client, who, ids[who])) for who in range(size.clients)]
        killed = 0
        for kill in range(size.kills):
            wanted = total * (kill + 1) // (size.kills + 1)
            while len(acknowledged) < wanted and not all(one.done() for one in people):
                await asyncio.sleep(0.002)
            killed += not all(one.done() for one in people)
            server.end(signal.SIGKILL)
            await server.start()
        await asyncio.gather(*people)
    with PreferenceStore(folder / "feedback.db") as store:
        kept = {event.key: f"event-{event.number}" for event in store.events()}
        count = len(store.events())
    lost, doubled = acknowledged.keys() - kept.keys(), count - len(kept)
    unknown = kept.keys() - acknowledged.keys()
    outcome.came = f"{len(acknowledged):,} acknowledged, {len(lost)} lost, {doubled} doubled; {repeated} sent again"
    if len(acknowledged) != total or lost or doubled or unknown or kept != acknowledged:
        outcome.problems.append(f"{len(acknowledged)} of {total} acknowledged, {lost=}, {doubled=}, {unknown=}")
    if killed < size.kills or not repeated:
        outcome.problems.append("a kill came when nobody was sending")
    return outcome


def two_versions(folder: Path) -> tuple[Registry, list[Path]]:
    """A registry whose champion is the first of two models."""
    folders = []
    for seed in range(2):
        policy = PolicyModel.from_pretrained("embedded")
        with torch.no_grad():
            next(policy.model.parameters()).add_(0.001 * seed)
        folders.append(policy.save_pretrained(folder / f"model-{seed}"))
    registry = Registry(folder / "registry")
    registry.promote(folders[0])
    return registry, folders


@contextlib.asynccontextmanager
async def load(client: httpx2.AsyncClient, statuses: collections.Counter[Any], several: int = 8) -> AsyncIterator[None]:
    """Clients that ask again as soon as they are answered; (status, weights) is counted."""
    stop = asyncio.Event()

    async def ask() -> None:
        while not stop.is_set():
            answer = await client.post(CHAT, json=body(max_tokens=16))
            statuses[answer.status_code, answer.headers.get("X-Model-Fingerprint")] += 1

    tasks = [asyncio.create_task(ask()) for _ in range(several)]
    try:
        yield
    finally:
        stop.set()
        await asyncio.gather(*tasks)


async def weights_now(client: httpx2.AsyncClient) -> str:
    """Fingerprint of what answers."""
    return str((await client.get("/v1/models")).json()["data"][0]["fingerprint"])


async def swaps(folder: Path, size: Size) -> Outcome:
    """The champion changes again and again under load."""
    outcome = Outcome(f"{size.swaps} hot swaps while 8 clients ask without a pause")
    registry, folders = two_versions(folder)
    statuses: collections.Counter[Any] = collections.Counter()
    async with serving(folder, "champion", "--name", "m", "reload_seconds=0.2") as (_, client), load(client, statuses):
        for swap in range(size.swaps):
            before = await weights_now(client)
            await asyncio.to_thread(registry.promote, folders[(swap + 1) % 2])
            until = time.monotonic() + 60
            while await weights_now(client) == before and time.monotonic() < until:
                await asyncio.sleep(0.1)
            if await weights_now(client) == before:
                outcome.problems.append(f"swap {swap} did not come")
            await asyncio.sleep(0.5)
    _judge_load(outcome, statuses, weights=2)
    return outcome


async def damaged(folder: Path, size: Size) -> Outcome:
    """The champion moves to weights of which a byte is wrong, under load."""
    outcome = Outcome("a swap to damaged weights while 8 clients ask without a pause")
    registry, folders = two_versions(folder)
    statuses: collections.Counter[Any] = collections.Counter()
    async with serving(folder, "champion", "--name", "m", "reload_seconds=0.2") as (server, client):
        assert server.process is not None
        async with load(client, statuses):
            server.process.send_signal(signal.SIGSTOP)  # it must not see the version before the damage
            registry.promote(folders[1])
            weights = next(registry.path("champion").glob("*.safetensors"))
            weights.chmod(0o644)
            data = bytearray(weights.read_bytes())
            data[-1] ^= 1
            weights.write_bytes(data)
            server.process.send_signal(signal.SIGCONT)
            until = time.monotonic() + 60
            while not (refused := await number(client, 'model_swaps_total{outcome="refused"}')):
                if time.monotonic() > until:
                    outcome.problems.append("the damaged version was not refused")
                    break
                await asyncio.sleep(0.2)
            await asyncio.sleep(5)
    _judge_load(outcome, statuses, weights=1)
    outcome.came += f"; refused {refused:.0f} time"
    return outcome


def _judge_load(outcome: Outcome, statuses: collections.Counter[Any], *, weights: int) -> None:
    failed = sum(count for (status, _), count in statuses.items() if status != 200)
    seen = {fingerprint for status, fingerprint in statuses if status == 200}
    outcome.came = f"{sum(statuses.values()):,} requests, {failed} failed, {len(seen)} versions answered"
    if failed or len(seen) != weights:
        outcome.problems.append(f"{dict(statuses)}")


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


async def full_disk(folder: Path, size: Size) -> Outcome:
    """The disk of the store is full for a while."""
    outcome = Outcome("the disk of the store is full for a while")
    disk = folder / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode:
        outcome.came = "not done: only root may mount a small disk"
        return outcome
    try:
        async with serving(folder, "embedded", "--name", "m", "--store", "disk/feedback.db") as (_, client):
            known = (await client.post(CHAT, json=body())).json()["id"]
            with (disk / "filler").open("wb", buffering=0) as filler, contextlib.suppress(OSError):
                while True:
                    filler.write(b"0" * 4096)
            answers = [await client.post(CHAT, json=body()) for _ in range(40)]
            events = [{"key": f"k{i}", "kind": "thumbs", "completion_id": known, "up": True} for i in range(40)]
            sent = [await client.post(FEEDBACK, json=event) for event in events]
            (disk / "filler").unlink()
            again = [await client.post(FEEDBACK, json=event) for event in events]
            not_kept = await number(client, "completions_not_kept_total")
        refused = collections.Counter(answer.status_code for answer in sent)
        if {answer.status_code for answer in answers} != {200} or set(refused) - {201, 503} or not refused[503]:
            outcome.problems.append(f"{[answer.status_code for answer in answers]}, {dict(refused)}")
        if {answer.status_code for answer in again} != {201}:
            outcome.problems.append(f"afterwards: {collections.Counter(answer.status_code for answer in again)}")
        with PreferenceStore(disk / "feedback.db") as store:
            if sorted(event.key for event in store.events()) != sorted(event["key"] for event in events):
                outcome.problems.append("what was acknowledged is not what is there")
        outcome.came = (
            f"40 of 40 requests answered, {not_kept:.0f} of them not kept; {refused[503]} of 40 thumbs told to come again (503), "
            "all kept once when there was room"
        )
    finally:
        subprocess.run(["umount", str(disk)], check=True)
    return outcome


FAULTS: dict[str, Callable[[Path, Size], Awaitable[Outcome]]] = {
    "kills": kills, "swaps": swaps, "damaged": damaged, "crowd": crowd, "slow": slow, "dead": dead, "huge": huge, "full_disk": full_disk,
}  # fmt: skip


def inflict(name: str, size: Size) -> Outcome:
    """One fault, on a server of its own."""
    folder = Path(tempfile.mkdtemp(prefix="rlhf-faults-"))
    outcome = asyncio.run(FAULTS[name](folder, size))
    if not outcome.problems:
        shutil.rmtree(folder)
    return outcome


def to_markdown(outcomes: dict[str, Outcome], command: str) -> str:
    """The page of results."""
    rows = "\n".join(
        f"| {one.done} | {one.came}{'' if not one.problems else ' **' + '; '.join(one.problems) + '**'} |"
        for one in outcomes.values()
    )
    return f"""# A server when things go wrong

<!-- written by tools/serving_faults.py; do not edit by hand -->

`rlhf serve` with the embedded base model in a process of its own; clients and server share {os.cpu_count()} cores with whatever else runs there
({platform.machine()}, Python {platform.python_version()}; load average of the last quarter of an hour, other programs included:
{os.getloadavg()[2]:.0f}). Written by `{command}`.

| what was done | what came of it |
|---|---|
{rows}
"""


def main() -> None:
    """See the top of this file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=FAULTS, default=list(FAULTS))
    parser.add_argument("--clients", type=int, default=Size.clients)
    parser.add_argument("--write", type=Path, help="Page to write.")
    arguments = parser.parse_args()
    outcomes = {}
    for name in arguments.only:
        outcomes[name] = inflict(name, Size(clients=arguments.clients))
        print(f"{name}: {outcomes[name].came} {outcomes[name].problems or ''}", flush=True)
    if any(one.problems for one in outcomes.values()):
        sys.exit(1)
    if arguments.write:
        write_text(
            arguments.write, to_markdown(outcomes, f"python tools/serving_faults.py --clients {arguments.clients}")
        )


if __name__ == "__main__":
    main()
