"""Serving an app to anyone who connects: how long half a request is waited for, and how many connections are kept.

uvicorn sets no time for a request to arrive. Anyone who opens connections and sends nothing, or a byte now and then, would hold
descriptors until none is left for others. Here a request has a deadline that no trickle of bytes moves; an answer that is not
read has one, too; and where there are too many connections, a new one takes the place of the one that has kept us waiting
longest, so that somebody who sends a whole request is answered in the middle of such a crowd.
"""

from __future__ import annotations

import asyncio
import resource
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    from starlette.types import ASGIApp

HEADER_SECONDS = 10.0
"""From the beginning of a connection, or the first byte of a further request, to the end of its headers."""
BODY_SECONDS = 30.0
"""From there to the end of the request."""
ANSWER_SECONDS = 60.0
"""How long an answer waits for somebody to read it."""
KEEP_ALIVE_SECONDS = 30
"""How long a connection waits for its next request to begin."""
SHUTDOWN_SECONDS = 10
"""How long answers that are being made at the end may take."""
MOST_CONNECTIONS = 4096
ACCEPTED_AT_ONCE = 64
"""Connections that asyncio takes from the system in one go."""
WAITING_TO_BE_ACCEPTED = 512
"""Connections that the system keeps for us until then."""
KEPT_FOR_OTHERS = 128 + 4 * ACCEPTED_AT_ONCE
"""Descriptors for the store and files, and for connections in the few turns of the loop before they are counted or closed."""
_TOO_SLOW = b'{"error":"The request took too long to arrive, and nothing of it was kept; send it again."}'
_TIMEOUT_ANSWER = (
    b"HTTP/1.1 408 Request Timeout\r\nContent-Type: application/json\r\nConnection: close\r\n"
    b"Content-Length: %d\r\n\r\n%s" % (len(_TOO_SLOW), _TOO_SLOW)
)


def serve(
    app: ASGIApp,
    listener: socket.socket,
    *,
    behind_proxy: bool,
    shutdown_seconds: float = SHUTDOWN_SECONDS,
    at_shutdown: Callable[[], object] | None = None,
) -> None:
    """Answer requests until a signal ends it, which is passed on.

    Args:
        app: To serve.
        listener: A socket that listens.
        behind_proxy: Whether a proxy is in front of us: it is believed what it says of its clients, and all of their
            connections come from one address.
        shutdown_seconds: How long answers that are being made at the end may take.
        at_shutdown: Called in a thread when the end begins; what it makes requests say still reaches their clients.
    """
    in_all = num_connections(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    places = Places(in_all=in_all, per_client=in_all if behind_proxy else in_all // 2)
    server = server_of(app, places, behind_proxy=behind_proxy, shutdown_seconds=shutdown_seconds)
    server.at_shutdown = at_shutdown
    server.run(sockets=[listener])


def server_of(
    app: ASGIApp, places: Places, *, behind_proxy: bool = False, shutdown_seconds: float = SHUTDOWN_SECONDS
) -> _Server:
    """What ``serve`` runs."""

    class Protocol(PunctualProtocol):
        def __init__(self, *args: Any, **named: Any) -> None:
            super().__init__(*args, **named, places=places)

    config = uvicorn.Config(
        app,
        http=Protocol,
        ws="none",
        loop="asyncio",  # not uvloop, where another package brings it: all that is said of connections was tested with this one
        log_level="error",  # of requests that are none anybody can send as many as they like
        access_log=False,  # invitations are in addresses, and a log is no place for them
        server_header=False,
        proxy_headers=behind_proxy,
        backlog=ACCEPTED_AT_ONCE,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=max(1, round(shutdown_seconds)),
    )
    return _Server(config, places)


def num_connections(num_descriptors: int) -> int:
    """How many connections leave enough of a process's descriptors; below 0 there is no limit."""
    if num_descriptors < 0:
        return MOST_CONNECTIONS
    return min(MOST_CONNECTIONS, max(num_descriptors - KEPT_FOR_OTHERS, num_descriptors // 4))


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, places: Places) -> None:
        super().__init__(config)
        self._places = places
        self.at_shutdown: Callable[[], object] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(
                WAITING_TO_BE_ACCEPTED
            )  # asyncio knows one number for this and for how many it takes at once

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._places.are_closed = True
        ending = None if self.at_shutdown is None else asyncio.create_task(asyncio.to_thread(self.at_shutdown))
        await super().shutdown(sockets)
        if ending is not None:
            await ending


class Places:
    """Room for connections.

    Args:
        in_all: So many at once.
        per_client: So many of one address.
    """

    def __init__(self, *, in_all: int, per_client: int) -> None:
        self.in_all, self.per_client = in_all, per_client
        self.are_closed = False
        self._taken: dict[str, dict[PunctualProtocol, None]] = {}
        """By address; anyone who was answered longest ago comes first."""

    def take(self, connection: PunctualProtocol) -> bool:
        """Make room for a connection, by ending one that keeps us waiting; False where there is none such."""
        if self.are_closed:
            return False
        own = self._taken.get(connection.address, {})
        in_the_way: list[dict[PunctualProtocol, None]] = []
        if len(own) >= self.per_client:
            in_the_way = [own]
        elif sum(map(len, self._taken.values())) >= self.in_all:
            in_the_way = sorted(self._taken.values(), key=len, reverse=True)
        if in_the_way:
            waiting = next((each for those in in_the_way for each in those if each.keeps_us_waiting), None)
            if waiting is None:
                return False
            waiting.end()
        self._taken.setdefault(connection.address, {})[connection] = None
        return True

    def renew(self, connection: PunctualProtocol) -> None:
        """It was answered just now."""
        own = self._taken.get(connection.address, {})
        if connection in own:
            own[connection] = own.pop(connection)

    def give_back(self, connection: PunctualProtocol) -> None:
        """It is over; said twice, it is as once."""
        own = self._taken.get(connection.address, {})
        own.pop(connection, None)
        if not own:
            self._taken.pop(connection.address, None)


class PunctualProtocol(H11Protocol):
    """HTTP on one connection, with an end to waiting."""

    def __init__(self, *args: Any, places: Places, **named: Any) -> None:
        super().__init__(*args, **named)
        self.places = places
        self._awaited: Any = None
        """h11's name for the part of a request that has a deadline: ``IDLE`` for headers, ``SEND_BODY``; None for neither."""
        self._deadline: asyncio.TimerHandle | None = None
        self._reading_deadline: asyncio.TimerHandle | None = None
        self._has_begun = False

    @property
    def address(self) -> str:
        """Where it comes from."""
        return self.client[0] if self.client else ""

    @property
    def keeps_us_waiting(self) -> bool:
        """Whether nothing is asked, or not all of it is here, or an answer is not read."""
        return self.conn.their_state in (h11.IDLE, h11.SEND_BODY) or self.flow.write_paused

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A place is taken, and the clock runs."""
        super().connection_made(transport)
        if not self.places.take(self):
            transport.abort()
            return
        connection = transport.get_extra_info("socket")
        if connection is not None and connection.family in (socket.AF_INET, socket.AF_INET6):
            # asyncio does this where a socket names its protocol, which one of `socket.create_server` does not: a stream's first token
            # would wait for the client's word that it has the headers, which Linux keeps for 40 ms
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        transport.set_write_buffer_limits(high=0)  # `pause_writing` then says that something is not read yet
        self._await(h11.IDLE)

    def data_received(self, data: bytes) -> None:
        """Part of a request. What is waited for is waited for no longer because some of it has come."""
        self._has_begun = True
        super().data_received(data)
        self._await(self.conn.their_state)

    def on_response_complete(self) -> None:
        """The next request may be here in part already; else uvicorn's own clock runs."""
        super().on_response_complete()
        self.places.renew(self)
        if self.conn.their_state is h11.IDLE:
            self._has_begun = bool(self.conn.trailing_data[0])
        self._await(self.conn.their_state if self._has_begun else None)

    def pause_writing(self) -> None:
        """Somebody does not read."""
        super().pause_writing()
        self._reading_deadline = self._reading_deadline or self.loop.call_later(ANSWER_SECONDS, self.end)

    def resume_writing(self) -> None:
        """All is read."""
        super().resume_writing()
        if self._reading_deadline is not None:
            self._reading_deadline.cancel()
            self._reading_deadline = None

    def shutdown(self) -> None:
        """Anyone who keeps us waiting at the end is not waited for."""
        if self.keeps_us_waiting:
            self.end()
        else:
            super().shutdown()

    def end(self) -> None:
        """Close the connection; what is not read is lost."""
        self.places.give_back(self)
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is over."""
        self._await(None)
        self.places.give_back(self)
        super().connection_lost(exc)
        self.resume_writing()

    def _await(self, what: Any) -> None:
        """Give a part of a request its time, unless it has it already."""
        seconds = {h11.IDLE: HEADER_SECONDS, h11.SEND_BODY: BODY_SECONDS}.get(what)
        awaited = what if seconds else None
        if awaited is self._awaited:
            return
        if self._deadline is not None:
            self._deadline.cancel()
        self._awaited = awaited
        self._deadline = self.loop.call_later(seconds, self._too_late) if seconds else None

    def _too_late(self) -> None:
        is_unanswered = self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE)
        if self._has_begun and is_unanswered and not self.transport.is_closing():
            self.transport.write(_TIMEOUT_ANSWER)
        self.end()
