"""Faults of the server itself: it is killed, its weights are changed and damaged, its disk is full."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import signal
import subprocess
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import torch

from rlhf.models.policy import PolicyModel
from rlhf.registry.registry import Registry
from rlhf.store import PreferenceStore
from tools.faults_server import CHAT, FEEDBACK, PATIENCE_SECONDS, Outcome, Size, body, number, serving


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
    judge_load(outcome, statuses, weights=2)
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
    judge_load(outcome, statuses, weights=1)
    outcome.came += f"; refused {refused:.0f} time"
    return outcome


def judge_load(outcome: Outcome, statuses: collections.Counter[Any], *, weights: int) -> None:
    failed = sum(count for (status, _), count in statuses.items() if status != 200)
    seen = {fingerprint for status, fingerprint in statuses if status == 200}
    outcome.came = f"{sum(statuses.values()):,} requests, {failed} failed, {len(seen)} versions answered"
    if failed or len(seen) != weights:
        outcome.problems.append(f"{dict(statuses)}")


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
