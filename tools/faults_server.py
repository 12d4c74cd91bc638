"""What the faults of `tools/serving_faults.py` are done to: `rlhf serve` in a process of its own, and what is reported of it."""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2

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
