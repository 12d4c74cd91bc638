"""Sessions of an OpenEnv server: JSON over websockets, or over HTTP, with limits on time and size.

    GET  /health                                   -> {"status": "healthy"}
    GET  /schema                                   -> {"action": JSON schema, "observation": ..., "state": ...}
    POST /reset {"seed", "episode_id", ...}        -> {"observation": {...}, "reward": null, "done": false}
    POST /step  {"action": {...}}                  -> the same
    GET  /state                                    -> {"episode_id", "step_count", ...}
    WS   /ws    {"type": "reset", "data": {...}}   -> {"type": "observation", "data": as /reset gives}
                {"type": "step", "data": action}   -> the same
                {"type": "state"}, {"type": "close"}
                                                   -> {"type": "error", "data": {"message", "code"}} where it refuses

Source: openenv-core 0.3.0 (``openenv/core/env_server/http_server.py`` and ``types.py``). Of servers that end an episode with
``terminated`` or ``truncated``, as Gymnasium's do, these are read, too.
"""

from __future__ import annotations

import contextlib
import json
import math
import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import urlsplit

from rlhf.data.message_text import one_line
from rlhf.data.strict_json import RefusedJsonError, decode
from rlhf.errors import require

CAPACITY = "CAPACITY_REACHED"
"""Code of the error by which a server says that it has no room for a session."""
WAIT_SECONDS = 0.1
"""Between two attempts to get a session of a server that is full."""
ENDS = ("done", "terminated", "truncated")
"""Keys of an answer that say that the episode is over."""


class OpenEnvError(Exception):
    """The server did not answer, or not as OpenEnv says; the text is a clause. Not raised to callers."""


class ErrorAnswerError(OpenEnvError):
    """The server answered with an error."""


class RefusedActionError(ErrorAnswerError):
    """The server does not take this action; the text is what it says."""


class ServerFullError(ErrorAnswerError):
    """The server has no room for another session."""


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """How long, and how much."""

    timeout_seconds: float
    max_response_bytes: int


@dataclass(frozen=True, slots=True)
class ServerAnswer:
    """What ``reset`` and ``step`` give."""

    observation: Mapping[str, Any]
    reward: float | None
    done: bool


class ServerSession(Protocol):
    """One episode on the server."""

    def reset(self, data: Mapping[str, Any]) -> ServerAnswer:
        """Start it. Raises ``OpenEnvError``."""
        ...

    def step(self, action: Mapping[str, Any]) -> ServerAnswer:
        """Act. Raises ``OpenEnvError``."""
        ...

    def state(self) -> Mapping[str, Any]:
        """What the server says of the episode. Raises ``OpenEnvError``."""
        ...

    def close(self) -> None:
        """End it; what goes wrong then is not told."""
        ...


class HTTPSession:
    """An episode by ``/reset`` and ``/step``; the server has one at a time."""

    def __init__(self, url: str, limits: ServerLimits) -> None:
        """Nothing is sent yet.

        Args:
            url: Of the server.
            limits: For each answer.
        """
        self._url = url
        self._limits = limits

    def reset(self, data: Mapping[str, Any]) -> ServerAnswer:
        """Start it. Raises ``OpenEnvError``. A server that makes a new environment for each request, as OpenEnv's own does, is refused."""
        answer = read_answer(ask(self._url, "/reset", self._limits, body=data), "/reset")
        first, second = (self.state().get("episode_id") for _ in range(2))
        if first != data.get("episode_id") and (first is None or first != second):
            raise OpenEnvError(
                "forgets an episode between two requests over HTTP: /state does not know the episode_id that /reset was given; "
                "take `transport: websocket`"
            )
        return answer

    def step(self, action: Mapping[str, Any]) -> ServerAnswer:
        """Act. Raises ``OpenEnvError``."""
        return read_answer(ask(self._url, "/step", self._limits, body={"action": action}), "/step")

    def state(self) -> Mapping[str, Any]:
        """What the server says of the episode. Raises ``OpenEnvError``."""
        return ask(self._url, "/state", self._limits)

    def close(self) -> None:
        """End it; what goes wrong then is not told."""


class WebSocketSession:
    """An episode as long as a connection to ``/ws`` lasts."""

    def __init__(self, url: str, limits: ServerLimits, *, waits: bool = True) -> None:
        """Connect.

        Args:
            url: Of the server.
            limits: For each answer.
            waits: Try again, as long as one answer may take, where the server has no room.

        Raises:
            ServerFullError: It has no room.
            OpenEnvError: It can't be reached.
        """
        self._limits = limits
        deadline = time.monotonic() + limits.timeout_seconds
        while True:
            self._held = contextlib.ExitStack()
            self._connection = _connected(url, limits, self._held)
            try:
                self.state()  # a server that is full says so in answer to the first message
                return
            except ServerFullError:
                self.close()
                if not waits or time.monotonic() + WAIT_SECONDS > deadline:
                    raise
                time.sleep(WAIT_SECONDS)
            except ErrorAnswerError:
                return  # there is no state before the first reset
            except BaseException:
                self.close()
                raise

    def reset(self, data: Mapping[str, Any]) -> ServerAnswer:
        """Start it. Raises ``OpenEnvError``."""
        return read_answer(self._said({"type": "reset", "data": data}, "observation"), "reset")

    def step(self, action: Mapping[str, Any]) -> ServerAnswer:
        """Act. Raises ``OpenEnvError``."""
        return read_answer(self._said({"type": "step", "data": action}, "observation"), "step")

    def state(self) -> Mapping[str, Any]:
        """What the server says of the episode. Raises ``OpenEnvError``."""
        return self._said({"type": "state"}, "state")

    def close(self) -> None:
        """End it; what goes wrong then is not told."""
        with contextlib.suppress(Exception):  # it is closed already, or the server is gone
            self._connection.send(json.dumps({"type": "close"}))
        with contextlib.suppress(Exception):
            self._held.close()

    def _said(self, message: Mapping[str, Any], wanted: str) -> Mapping[str, Any]:
        what = str(message["type"])
        from websockets.exceptions import ConnectionClosed

        with _reported(f"{what} over the websocket"):
            with contextlib.suppress(ConnectionClosed):  # the server may have closed it, and said why
                self._connection.send(json.dumps(message))
            text = self._connection.recv(timeout=self._limits.timeout_seconds)
        if not isinstance(text, str):
            raise OpenEnvError(f"answered {what} with bytes, and not with text")
        answer = read_json_object(text, f"{what} over the websocket")
        data = answer.get("data")
        if answer.get("type") == "error":
            said = data if isinstance(data, Mapping) else {}
            code, words = said.get("code"), one_line(str(said.get("message", "no message")))
            if code == CAPACITY:
                raise ServerFullError(f"has no room for another session: {words}")
            refused = what == "step" and code in ("VALIDATION_ERROR", "EXECUTION_ERROR")
            raise (RefusedActionError if refused else ErrorAnswerError)(
                f"answered {what} with the error {code}: {words}"
            )
        if answer.get("type") != wanted or not isinstance(data, Mapping):
            raise OpenEnvError(
                f"answered {what} with type {answer.get('type')!r}; wanted {wanted!r} with `data`, an object"
            )
        return data


def ask(url: str, path: str, limits: ServerLimits, *, body: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
    """What the server answers to one request over HTTP, a JSON object; a redirect is not followed.

    Args:
        url: Of the server.
        path: Behind it.
        limits: For the answer.
        body: To be posted; None asks with GET.

    Raises:
        RefusedActionError: It does not take the body.
        OpenEnvError: It can't be reached, or answers something else.
    """
    import httpx2

    content = bytearray()
    deadline = time.monotonic() + limits.timeout_seconds
    with (
        _reported(path),
        httpx2.Client(timeout=limits.timeout_seconds, follow_redirects=False, trust_env=False) as client,
        client.stream("GET" if body is None else "POST", f"{url}{path}", json=body) as response,
    ):
        for piece in response.iter_bytes():
            content += piece
            if len(content) > limits.max_response_bytes:
                raise OpenEnvError(
                    f"answered {path} with more than max_response_bytes = {limits.max_response_bytes} bytes"
                )
            if time.monotonic() > deadline:
                raise OpenEnvError(f"took more than {limits.timeout_seconds:g} seconds for {path}")
        status = response.status_code
    text = content.decode("utf-8", errors="replace")
    if 300 <= status < 400:
        raise OpenEnvError(
            f"answered {path} with a redirect (status {status}), which is not followed; name the real address in `source`"
        )
    if status == 422 and path == "/step":
        raise RefusedActionError(f"does not take the action: {one_line(text)}")
    if status != 200:
        raise OpenEnvError(f"answered {path} with status {status}: {one_line(text)}")
    return read_json_object(text, path)


def read_json_object(text: str, what: str) -> Mapping[str, Any]:
    """The object that a text holds.

    Raises:
        OpenEnvError: It holds none.
    """
    try:
        value = decode(text)
    except (json.JSONDecodeError, RefusedJsonError) as err:
        raise OpenEnvError(f"answered {what} with what is not JSON ({err}): {one_line(text)}") from None
    if not isinstance(value, Mapping):
        raise OpenEnvError(f"answered {what} with a JSON {type(value).__name__}; wanted an object")
    return value


def read_answer(value: Mapping[str, Any], what: str) -> ServerAnswer:
    """What ``reset`` or ``step`` gave, checked.

    Raises:
        OpenEnvError: It has no observation, or a reward that is no number, or an end that is neither true nor false.
    """
    observation = value.get("observation")
    if not isinstance(observation, Mapping):
        raise OpenEnvError(
            f"answered {what} without `observation`, an object; it has the keys {', '.join(map(str, value)) or 'none'}"
        )
    reward = value.get("reward", observation.get("reward"))
    if isinstance(reward, bool):
        reward = float(reward)
    if reward is not None and not (isinstance(reward, int | float) and math.isfinite(reward)):
        raise OpenEnvError(f"answered {what} with the reward {reward!r}; wanted a finite number or null")
    ends = [where[key] for where in (value, observation) for key in ENDS if key in where]
    if not all(isinstance(end, bool) for end in ends):
        raise OpenEnvError(f"answered {what} with {' and '.join(ENDS)} {ends!r}; wanted true or false")
    return ServerAnswer(observation, reward if reward is None else float(reward), any(ends))


@contextlib.contextmanager
def _reported(what: str) -> Iterator[None]:
    """Inside, whatever the network does is an ``OpenEnvError``."""
    try:
        yield
    except OpenEnvError:
        raise
    except TimeoutError as err:
        raise OpenEnvError(f"took too long for {what}") from err
    except Exception as err:  # errors of httpx2, websockets, ssl and sockets have no common class
        raise OpenEnvError(f"did not answer {what} ({type(err).__name__}: {err})") from err


def _connected(url: str, limits: ServerLimits, held: contextlib.ExitStack) -> Any:
    """A connection to ``/ws``, held by the stack. The socket is ours, so that no redirect and no proxy can lead elsewhere."""
    connect = require("websockets.sync.client", extra="environments", needed_for="An OpenEnv session").connect
    parts = urlsplit(url)
    is_secure = parts.scheme == "https"
    port = parts.port or (443 if is_secure else 80)
    with _reported("a connection"):
        made = socket.create_connection((str(parts.hostname), port), timeout=limits.timeout_seconds)
        opened = connect(
            f"{'wss' if is_secure else 'ws'}{url[len(parts.scheme) :]}/ws",
            sock=made,
            ssl=ssl.create_default_context() if is_secure else None,
            open_timeout=limits.timeout_seconds,
            close_timeout=1.0,
            max_size=limits.max_response_bytes,
            compression=None,
        )
        return held.enter_context(opened)
