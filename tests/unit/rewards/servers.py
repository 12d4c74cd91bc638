"""A reward server in a thread that does what a test tells it, fault by fault."""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Act = Callable[["Handler", dict[str, Any]], None]
"""Answers one request, well or badly, given its JSON."""


@dataclass
class Service:
    """What a test sees of the server."""

    url: str
    acts: list[Act] = field(default_factory=list)
    """One for each request in order of arrival; the last one stays."""
    asked: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    at: list[float] = field(default_factory=list)
    """Monotonic seconds."""
    closing: threading.Event = field(default_factory=threading.Event)


class Handler(BaseHTTPRequestHandler):
    service: Service
    lock: threading.Lock

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.lock:
            act = self.service.acts[min(len(self.service.asked), len(self.service.acts) - 1)]
            self.service.asked.append(body)
            self.service.headers.append(dict(self.headers))
            self.service.at.append(time.monotonic())
        act(self, body)

    def send(self, content: bytes, status: int = 200, **headers: str) -> None:
        self.send_response(status)
        usual = {"Content_Type": "application/json", "Content_Length": str(len(content))}
        for name, value in (usual | headers).items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *arguments: Any) -> None:
        pass


@contextmanager
def serving(*acts: Act, path: str = "/score", port: int = 0) -> Iterator[Service]:
    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    service = Service(f"http://127.0.0.1:{server.server_address[1]}{path}", list(acts))
    server.RequestHandlerClass = type("Told", (Handler,), {"service": service, "lock": threading.Lock()})
    server.handle_error = lambda *arguments: None  # a client that left is what some tests are about
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield service
    finally:
        service.closing.set()
        server.shutdown()
        thread.join()
        server.server_close()


def lengths(handler: Handler, body: dict[str, Any]) -> None:
    """Good: the length of each completion."""
    handler.send(json.dumps({"scores": [len(text) for text in body["completions"]]}).encode())


def says(answer: Any, status: int = 200, **headers: str) -> Act:
    """The same answer whatever is asked; bytes as they are, anything else as JSON."""
    content = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
    return lambda handler, body: handler.send(content, status, **headers)


def after(seconds: float, act: Act = lengths) -> Act:
    """Slow, but good in the end."""

    def act_later(handler: Handler, body: dict[str, Any]) -> None:
        handler.service.closing.wait(seconds)
        act(handler, body)

    return act_later


def never(handler: Handler, body: dict[str, Any]) -> None:
    """Accepts and says nothing until the test is over."""
    handler.service.closing.wait(60)


def drips(handler: Handler, body: dict[str, Any]) -> None:
    """A byte now and then: no single wait is long, and the answer never ends."""
    handler.send_response(200)
    handler.send_header("Content-Length", "100000")
    handler.end_headers()
    while not handler.service.closing.wait(0.05):
        handler.wfile.write(b" ")
        handler.wfile.flush()


def resets(handler: Handler, body: dict[str, Any]) -> None:
    """Breaks the connection instead of an answer."""
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    handler.connection.close()


def cuts(handler: Handler, body: dict[str, Any]) -> None:
    """Promises more bytes than it sends."""
    handler.send(b'{"scores": [1', Content_Length="100")
    handler.close_connection = True


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
