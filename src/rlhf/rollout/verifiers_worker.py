"""Plays episodes of a verifiers environment; run as a script by the interpreter that has verifiers, so nothing of rlhf is imported.

An environment of verifiers v1 asks a model at an address. Here that address is ours, and whatever asks there waits: the request goes out as a
line of JSON, and the policy's turn comes in as one. The process ends with its input.

    in    {"op": "open", "environment": {...}}                         first
          {"op": "tasks", "first": 0, "most": 10}
          {"op": "start", "episode": 3, "task": 17, "key": "..."}
          {"op": "answer", "episode": 3, "message": {...}}             the policy's turn
          {"op": "refuse", "episode": 3, "why": "..."}                 in its place: there is no room for another
          {"op": "drop", "episode": 3}
    out   {"event": "opened", "version", "name", "harnesses", "is_endless"}, or {"event": "failed", "kind", "why"}
          {"event": "tasks", "tasks": [{"index", "key", "messages"}], "is_last"}
          {"event": "asked", "episode", "messages", "tools"}
          {"event": "ended", "episode", "reward", "rewards", "metrics"}, or with "error" alone

Source: verifiers 0.4.0 (``verifiers/v1/env.py``, ``clients/eval.py``, ``trace.py``).
"""

from __future__ import annotations

import asyncio
import importlib
import itertools
import json
import os
import queue
import secrets
import sys
import threading
import traceback
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KEY = "RLHF_POLICY_API_KEY"
"""Variable that holds the word without which nobody is answered; of such a name verifiers hides it from programs that it starts."""
MODEL = "rlhf-episode-"
"""With an episode's number, the model that it asks for."""
SESSION = "X-Session-ID"
"""Header in which verifiers names the trace of a request."""
TOO_LONG = "context_length_exceeded: This model's maximum context length is reached: "
"""How providers say that a conversation is full, which harnesses know."""
CHAT = "/chat/completions"
ON_THIS_MACHINE = "programs that run on this machine want `agent: {runtime: {type: subprocess}}` in environment.options"
"""What most who see verifiers ask for an account have left out."""


class Refused(Exception):
    """An error that is sent to the client, with an HTTP status."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class Episode:
    """Who asks, and who waits."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.is_asking = False
        self.session: str | None = None
        self.complaint: str | None = None
        self.answers: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self.work: asyncio.Task[None] | None = None


class Out:
    """Lines of JSON, whole ones from any thread."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._lock = threading.Lock()

    def say(self, event: str, **fields: Any) -> None:
        line = json.dumps({"event": event, **fields}) + "\n"
        with self._lock:
            self._file.write(line)
            self._file.flush()


class Server(ThreadingHTTPServer):
    """Every episode may ask at the same moment."""

    daemon_threads = True
    request_queue_size = 1024


class Address:
    """Answers chat completions with the policy's turns."""

    def __init__(self, episodes: dict[int, Episode], out: Out) -> None:
        self.key = os.environ[KEY] = secrets.token_urlsafe(24)
        self._episodes = episodes
        self._out = out
        self._server = Server(("127.0.0.1", 0), _handler(self))
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def completion(self, path: str, headers: Any, body: bytes) -> tuple[dict[str, Any], bool]:
        """A chat completion, and whether it is wanted in pieces.

        Raises:
            Refused: With the reason; where the environment can't be played at all, its episode ends with that.
        """
        if headers.get("Authorization") != f"Bearer {self.key}":
            raise Refused(401, "unknown key")
        request = json.loads(body)
        name = str(request.get("model", ""))
        number = name.removeprefix(MODEL)
        episode = self._episodes.get(int(number)) if name.startswith(MODEL) and number.isdecimal() else None
        if episode is None:
            raise Refused(404, f"there is no model {name!r} here, but the policy of an episode that is being played")
        why = self._why_not(path, request, episode, headers.get(SESSION))
        if why is not None:
            episode.complaint = why
            raise Refused(400, why)
        try:
            self._out.say("asked", episode=int(number), messages=request["messages"], tools=request.get("tools") or [])
            answer = episode.answers.get()
        finally:
            episode.is_asking = False
        if answer["op"] == "refuse":
            raise Refused(400, TOO_LONG + answer["why"])
        message = answer["message"]
        reason = "tool_calls" if message.get("tool_calls") else "stop"
        choice = {"index": 0, "message": message, "finish_reason": reason}
        made = {
            "id": f"chatcmpl-{number}",
            "object": "chat.completion",
            "created": 0,
            "model": name,
            "choices": [choice],
        }
        return made, bool(request.get("stream"))

    @staticmethod
    def _why_not(path: str, request: dict[str, Any], episode: Episode, session: str | None) -> str | None:
        if not path.endswith(CHAT):
            return f"its harness asks at {path}, and the policy answers chat completions only"
        if request.get("n") not in (None, 1):
            return f"its harness asks for n = {request['n']} answers at once, and the policy gives one"
        if not isinstance(request.get("messages"), list):
            return "its harness asks without messages"
        with episode.lock:
            if episode.is_asking:
                return (
                    "its harness asks again before it is answered, and the policy holds one conversation in an episode"
                )
            if session is not None and episode.session not in (None, session):
                return "two of its agents ask the policy, and it holds one conversation in an episode; give the other agent a model of its own"
            episode.is_asking = True
            episode.session = session
        return None


def _handler(address: Address) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            try:
                made, in_pieces = address.completion(self.path, self.headers, body)
            except Refused as err:
                told = {"error": {"message": str(err), "type": "invalid_request_error", "code": None}}
                self._send(err.status, "application/json", json.dumps(told))
            else:
                kind = "text/event-stream" if in_pieces else "application/json"
                self._send(200, kind, _pieces(made) if in_pieces else json.dumps(made))

        def _send(self, status: int, kind: str, text: str) -> None:
            data = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *told: Any) -> None:
            """Nothing: every turn would be a line."""

    return Handler


def _pieces(made: dict[str, Any]) -> str:
    """A completion as a stream of two chunks."""
    (choice,) = made["choices"]
    calls = [{"index": place, **call} for place, call in enumerate(choice["message"].get("tool_calls") or [])]
    delta = {**choice["message"], **({"tool_calls": calls} if calls else {})}
    ends = [(delta, None), ({}, choice["finish_reason"])]
    chunks = [
        {**made, "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": part, "finish_reason": reason}]}
        for part, reason in ends
    ]
    return "".join(f"data: {text}\n\n" for text in (*map(json.dumps, chunks), "[DONE]"))


class Player:
    """The environment, and the episodes that are played in it."""

    def __init__(self, env: Any, vf: Any, out: Out) -> None:
        self._env = env
        self._vf = vf
        self._out = out
        self._episodes: dict[int, Episode] = {}
        self._stream: Any = None
        self._tasks: list[Any] = []
        self._client = vf.EvalClientConfig(base_url=Address(self._episodes, out).url, api_key_var=KEY)

    def handle(self, line: dict[str, Any]) -> None:
        op = line["op"]
        if op == "tasks":
            try:
                self.list_tasks(line["first"], line["most"])
            except Exception as err:  # a data set that can't be had
                self._out.say("failed", kind="environment", why=f"{type(err).__name__}: {err}")
        elif op == "start":
            self._episodes[line["episode"]] = episode = Episode()
            episode.work = asyncio.create_task(self._play(episode, line))
        elif line["episode"] in self._episodes:
            episode = self._episodes[line["episode"]]
            if op == "drop":
                self._forget(line["episode"])
            else:
                episode.answers.put(line)

    def list_tasks(self, first: int, most: int) -> None:
        is_last = self._read_tasks(first + most)
        some = self._tasks[first : first + most]
        listed = [
            {"index": first + n, "key": task.key, "messages": _messages(task.data)} for n, task in enumerate(some)
        ]
        self._out.say("tasks", tasks=listed, is_last=is_last)

    def _read_tasks(self, wanted: int) -> bool:
        """Whether there are no more than those."""
        if self._stream is None:
            self._stream = iter(self._env.taskset)
        self._tasks += itertools.islice(self._stream, max(0, wanted + 1 - len(self._tasks)))
        return len(self._tasks) <= wanted

    async def _play(self, episode: Episode, line: dict[str, Any]) -> None:
        try:
            ended = await self._played(episode, line)
        except Exception as err:  # whatever it is, the trainer must hear of it
            ended = {"error": f"{type(err).__name__}: {err}"}
        if episode.complaint is not None:
            ended = {"error": episode.complaint}
        self._episodes.pop(line["episode"], None)
        self._out.say("ended", episode=line["episode"], **ended)

    async def _played(self, episode: Episode, line: dict[str, Any]) -> dict[str, Any]:
        self._read_tasks(line["task"] + 1)
        if line["task"] >= len(self._tasks):
            return {"error": f"the taskset has {len(self._tasks)} tasks, and the row is of task {line['task']}"}
        task = self._tasks[line["task"]]
        if line["key"] is not None and task.key != line["key"]:
            return {
                "error": f"task {line['task']} is not the one that the row was made of; the taskset has changed since"
            }
        context = self._vf.ModelContext(model=f"{MODEL}{line['episode']}", client=self._client)
        played = await self._env.run_episode(task, context)
        trace = next((one for one in played.traces if one.id == episode.session), None)
        errors = [*played.errors, *(error for one in played.traces if trace in (one, None) for error in one.errors)]
        if trace is None or not trace.ok or errors:
            return {"error": "; ".join(f"{e.type}: {e.message}" for e in errors) or "no agent asked the policy"}
        rewards = {name: given.value for name, given in trace.rewards.items() if given is not None}
        metrics = {name: value for name, value in trace.metrics.items() if value is not None}
        return {"reward": trace.reward, "rewards": rewards, "metrics": metrics}

    def _forget(self, number: int) -> None:
        episode = self._episodes.pop(number)
        episode.complaint = "dropped"
        episode.answers.put({"op": "refuse", "why": "the episode is over"})
        if episode.work is not None:
            episode.work.cancel()

    async def drop_all(self) -> None:
        work = [episode.work for episode in self._episodes.values() if episode.work is not None]
        for number in list(self._episodes):
            self._forget(number)
        await asyncio.gather(*work, return_exceptions=True)


def _messages(data: Any) -> list[dict[str, Any]] | None:
    """What a harness that adds nothing asks first; None where a user of the environment's own opens the conversation."""
    if data.prompt is None:
        return None
    said = [{"role": "user", "content": data.prompt}] if isinstance(data.prompt, str) else _plain(data.prompt)
    return [*([{"role": "system", "content": data.system_prompt}] if data.system_prompt else []), *said]


def _plain(messages: Any) -> list[dict[str, Any]]:
    return [message.model_dump(exclude_none=True) for message in messages]


async def serve(lines: Any, out: Out) -> None:
    """Open the environment that the first line names, and play what the others ask for."""
    first = json.loads(lines.readline())
    stage = "import"
    try:
        verifiers, vf = map(importlib.import_module, ("verifiers", "verifiers.v1"))
        stage = "settings"
        config = vf.resolve_env_config(first["environment"])
        stage = "environment"
        env = vf.load_environment(config)
    except Exception as err:  # the reason belongs into the trainer's message
        traceback.print_exc()
        out.say("failed", kind=stage, why=f"{type(err).__name__}: {err}")
        return
    loop = asyncio.get_running_loop()
    waiting: asyncio.Queue[str] = asyncio.Queue()
    async with env.serving():
        player = Player(env, vf, out)
        harnesses = {name: config.id for name, config in config.agent_harnesses().items()}
        out.say(
            "opened", version=str(getattr(verifiers, "__version__", "")), name=type(env).__name__, harnesses=harnesses,
            is_endless=not env.taskset.bounded,
        )  # fmt: skip

        def read() -> None:
            for line in iter(lines.readline, ""):
                loop.call_soon_threadsafe(waiting.put_nowait, line)
            loop.call_soon_threadsafe(waiting.put_nowait, "")

        threading.Thread(target=read, daemon=True).start()
        try:
            while line := await waiting.get():
                player.handle(json.loads(line))
        finally:
            await player.drop_all()


def main() -> None:
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what an environment prints must not mix with the answers
    lines = Out(out)
    try:
        asyncio.run(serve(sys.stdin, lines))
    except SystemExit as err:  # verifiers' own way to say that something has to be set up
        lines.say("failed", kind="environment", why=f"{err}; {ON_THIS_MACHINE}")
    out.flush()
    os._exit(0)  # whatever threads the environment has started


if __name__ == "__main__":
    main()
