"""Half requests, unread answers and crowds of connections, sent to a real server by sockets."""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from rlhf.web import connections
from rlhf.web.connections import KEPT_FOR_OTHERS, Places, num_connections, server_of

GET = b"GET / HTTP/1.1\r\nHost: x\r\n"
POST = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n"
LONG_ENOUGH = 10.0
"""For what is to happen at once, on a busy machine."""
LARGE = 30_000_000
"""Bytes of an answer: more than any socket's buffers."""


class App:
    """Answers with the number of bytes it was sent; ``/large`` with many bytes, ``/held`` when it is let."""

    def __init__(self) -> None:
        self.let = threading.Event()
        self.asked = threading.Event()
        self.left: list[str] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        got, more = 0, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.left.append(scope["path"])
                return
            got, more = got + len(message["body"]), message["more_body"]
        self.asked.set()
        while scope["path"] == "/held" and not self.let.is_set():
            await asyncio.sleep(0.01)
        body = b"x" * LARGE if scope["path"] == "/large" else b"got %d" % got
        headers = [(b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


class Served:
    def __init__(self, places: Places) -> None:
        self.app = App()
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=100)
        self.port = self.listener.getsockname()[1]
        self.server = server_of(self.app, places)
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self.listener]}, daemon=True)
        self.thread.start()
        self.until(lambda: self.server.started)

    def until(self, is_so: Any) -> None:
        deadline = time.monotonic() + LONG_ENOUGH
        while not is_so():
            assert time.monotonic() < deadline
            time.sleep(0.01)

    @property
    def num_held(self) -> int:
        return len(self.server.server_state.connections)

    def connect(self, sent: bytes = b"", *, source: str = "127.0.0.1") -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=LONG_ENOUGH, source_address=(source, 0))
        connection.sendall(sent)
        return connection

    def get(self, path: bytes = b"/") -> bytes:
        with self.connect(b"GET %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n" % path) as asking:
            return rest(asking)

    def stop(self) -> float:
        """How many seconds it took."""
        began = time.monotonic()
        self.server.should_exit = True
        self.thread.join(timeout=3 * LONG_ENOUGH)
        assert not self.thread.is_alive()
        return time.monotonic() - began


@contextmanager
def serving(*, in_all: int = 100, per_client: int = 100) -> Iterator[Served]:
    served = Served(Places(in_all=in_all, per_client=per_client))
    yield served
    served.app.let.set()
    served.stop()


def answer(one: socket.socket) -> bytes:
    """One answer of the app's, on a connection that stays."""
    received = b""
    while not re.search(rb"got \d+$", received):
        part = one.recv(1000)
        assert part, received
        received += part
    return received


def rest(one: socket.socket) -> bytes:
    """What comes until the end."""
    parts = []
    try:
        while part := one.recv(1 << 20):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)


@pytest.fixture
def short(monkeypatch):
    for name, seconds in {"HEADER_SECONDS": 0.3, "BODY_SECONDS": 0.9, "ANSWER_SECONDS": 0.3}.items():
        monkeypatch.setattr(connections, name, seconds)


@pytest.mark.parametrize(
    ("sent", "said_first"),
    [
        (b"", b""),
        (b"GET / HT", b"HTTP/1.1 408 "),
        (GET, b"HTTP/1.1 408 "),
        (POST, b"HTTP/1.1 408 "),
        (POST + b"half", b"HTTP/1.1 408 "),
        (GET + b"\r\n" + POST + b"half", b"HTTP/1.1 200 "),  # and then the deadline for what was sent behind it
        (GET + b"\r\n" + GET, b"HTTP/1.1 200 "),
    ],
)
def test_half_a_request_has_a_deadline_that_a_trickle_of_bytes_does_not_move(short, sent, said_first):
    with serving() as served:
        slow, began = served.connect(sent), time.monotonic()
        slow.settimeout(0.02)
        said = b""
        while time.monotonic() - began < LONG_ENOUGH:
            try:
                if not (part := slow.recv(1000)):
                    break
                said += part
            except TimeoutError:
                if sent:
                    slow.send(b"x")
            except (ConnectionResetError, BrokenPipeError):
                break
        assert 0.25 < time.monotonic() - began < LONG_ENOUGH / 2
        assert said.startswith(said_first)
        assert said_first or not said
        served.until(lambda: served.num_held == 0)
        served.until(lambda: served.app.left == (["/"] if POST in sent else []))  # the app is not left waiting
        assert served.get().endswith(b"got 0")
        slow.close()


def test_who_sends_whole_requests_keeps_the_connection_beyond_those_times(short):
    with serving() as served, served.connect() as one:
        for _ in range(3):
            for part in (POST, b"x" * 60, b"x" * 40):
                one.sendall(part)
                time.sleep(0.1)
            assert answer(one).endswith(b"got 100")
            time.sleep(0.4)  # longer than headers may take, between two requests


def test_an_answer_that_nobody_reads_has_a_deadline(short):
    with serving() as served:
        deaf = served.connect(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
        served.until(lambda: served.app.asked.is_set())
        served.until(lambda: served.num_held == 0)
        assert len(rest(deaf)) < LARGE
        deaf.close()
        assert len(served.get(b"/large")) > LARGE, "who reads gets all of it"


def test_a_new_connection_takes_the_place_of_the_one_that_has_kept_us_waiting_longest():
    with serving(in_all=20, per_client=20) as served:
        crowd = [served.connect([GET, POST, b""][n % 3]) for n in range(60)]
        most = 0
        for _ in range(5):
            assert served.get().endswith(b"got 0")
            most = max(most, served.num_held)
        assert most <= 21  # the one that is being closed included
        crowd[0].settimeout(LONG_ENOUGH)
        assert rest(crowd[0]) == b"", "the oldest was closed"
        crowd[-1].sendall(GET + b"\r\n")
        assert answer(crowd[-1]).endswith(b"got 0"), "and the newest is there still"
        [one.close() for one in crowd]


def test_nobody_is_closed_whose_request_is_being_worked_on():
    with serving(in_all=4, per_client=4) as served:
        held = [served.connect(b"GET /held HTTP/1.1\r\nHost: x\r\n\r\n") for _ in range(4)]
        served.until(lambda: len(served.server.server_state.tasks) == 4)
        assert served.get() == b"", "there is no place"
        served.app.let.set()
        assert all(answer(one).endswith(b"got 0") for one in held)
        [one.close() for one in held]


def test_one_address_takes_no_more_than_its_share():
    with serving(in_all=20, per_client=10) as served:
        other = served.connect(GET, source="127.0.0.2")  # waits as well, and longest
        crowd = [served.connect(GET) for _ in range(40)]
        served.until(lambda: served.num_held == 11)
        other.sendall(b"\r\n")
        assert answer(other).endswith(b"got 0")
        [one.close() for one in (other, *crowd)]


def test_a_server_that_is_stopped_waits_for_no_half_request_and_says_nothing(caplog, capfd):
    served = Served(Places(in_all=100, per_client=100))
    crowd = [served.connect([b"", GET, POST, POST + b"half"][n % 4]) for n in range(40)]
    idle = served.connect(GET + b"\r\n")
    answer(idle)
    deaf = served.connect(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
    served.until(lambda: served.num_held == 42)
    with caplog.at_level(logging.WARNING):
        assert served.stop() < connections.SHUTDOWN_SECONDS / 2
    assert caplog.text == ""
    assert capfd.readouterr() == ("", "")
    [one.close() for one in (idle, deaf, *crowd)]


def test_an_answer_that_is_being_made_is_waited_for_at_the_end():
    with serving() as served, served.connect(b"GET /held HTTP/1.1\r\nHost: x\r\n\r\n") as asking:
        served.until(lambda: served.app.asked.is_set())
        served.server.should_exit = True
        threading.Timer(0.3, served.app.let.set).start()
        assert answer(asking).endswith(b"got 0")


def test_connections_leave_descriptors_for_the_store():
    assert num_connections(1024) == 1024 - KEPT_FOR_OTHERS > 500
    assert num_connections(256) == 64
    assert num_connections(-1) == num_connections(10**9) == connections.MOST_CONNECTIONS


def test_what_is_done_when_the_end_begins_reaches_those_who_wait():
    with serving() as served, served.connect(b"GET /held HTTP/1.1\r\nHost: x\r\n\r\n") as asking:
        served.until(lambda: served.app.asked.is_set())
        served.server.at_shutdown = served.app.let.set  # else the answer would be waited for to the end of its time
        served.server.should_exit = True
        assert answer(asking).endswith(b"got 0")


def test_small_parts_of_answers_are_sent_at_once():
    with serving() as served:
        connection = served.connect(GET)
        served.until(lambda: served.num_held)
        (held,) = served.server.server_state.connections
        accepted = held.transport.get_extra_info("socket")
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        connection.close()
