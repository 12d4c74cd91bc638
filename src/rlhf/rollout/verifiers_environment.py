"""Environments of verifiers v1: whatever their harness asks of a model is answered with the policy's turns.

A harness holds a conversation with a model at an address: a request has the conversation so far, and the answer is the next message.
Read the other way round, that is an environment which is asked turn by turn: what a request adds to the one before it is what the
environment says to the policy's turn. The policy never reads a request: its context is the ids of the prompt, those that it sampled, and
those of the added messages. A request that changes what was said before has no such ids, and its episode gets no score.

    first request         must be the row's prompt and tools
    next request          the first, the policy's message, and results of tools or one message of a user: the observation
    the end               the reward and the metrics of the trace that verifiers has made of it
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlhf.config.environments import VerifiersEnvironmentConfig
from rlhf.data.chat import special_tokens
from rlhf.data.contracts import Prompt
from rlhf.errors import ConfigError
from rlhf.rollout.environments import EnvironmentContext, EnvironmentSession, OpenedEnvironment, ToolResult, Turn
from rlhf.rollout.tool_arguments import TRIAL_WORD
from rlhf.rollout.tool_formats import TOOL_FORMATS, choose_tool_format
from rlhf.rollout.tool_formats.tool_call import MalformedCallError, ToolCall, ToolFormat
from rlhf.rollout.verifiers_process import TABLE, VerifiersError, VerifiersProcess

INDEX, KEY, TOOLS = "task_index", "task_key", "tools"
"""Columns of a row: which task it is, what verifiers knows the task by, and the tools that its harness offers."""
SECONDS_LESS = 1.0
"""The process is given up so much before its caller, who would then count it among those that hang for unknown reasons."""
WANTED = "The rows are written by `rlhf data tasks`."
HINTS = {
    "import": "Set environment.python to an interpreter that has verifiers 0.4 or later and the taskset",
    "settings": "See environment.source and environment.options",
    "environment": "See environment.options",
}


class VerifiersEpisode(EnvironmentSession):
    """One episode; what the policy writes is answered by verifiers' harness."""

    def __init__(
        self,
        process: VerifiersProcess,
        number: int,
        family: ToolFormat,
        *,
        timeout_seconds: float,
        marks: Sequence[str] = (),
    ) -> None:
        """Prepare for one episode.

        Args:
            process: That plays it.
            number: Of the episode.
            family: How the policy writes calls.
            timeout_seconds: For one answer.
            marks: Special tokens, which are no part of a message.
        """
        self.reads_special_tokens = family.reads_special_tokens
        self._process = process
        self._number = number
        self._family = family
        self._timeout_seconds = timeout_seconds
        self._marks = marks
        self._turn = 0
        self._said: list[Any] = []
        self._tools: dict[str, Mapping[str, Any]] = {}
        self._ended = False

    def reset(self, prompt: Prompt) -> None:
        """See ``EnvironmentSession``. Raises ``ValueError`` and ``VerifiersError``."""
        index = prompt.columns.get(INDEX)
        if not isinstance(index, int):
            raise ValueError(f"the row has no column {INDEX!r} with the number of a task. {WANTED}")
        self._process.start(self._number, task=index, key=prompt.columns.get(KEY))
        event = self._next()
        if event["event"] == "ended":
            raise ValueError("the episode is over before the policy was asked")
        given = prompt.messages if prompt.messages is not None else [{"role": "user", "content": prompt.text}]
        wanted = [plain_message(message) for message in given]
        self._said = [plain_message(message) for message in event["messages"]]
        if self._said != wanted:
            raise ValueError(
                f"its harness begins with other messages than the row has: {_differ(self._said, wanted)}. {WANTED}"
            )
        if prompt.messages is not None and event["tools"] != list(prompt.columns.get(TOOLS) or []):
            raise ValueError(f"its harness offers other tools than the row's column {TOOLS!r} has. {WANTED}")
        self._tools = {schema["function"]["name"]: schema for schema in event["tools"]}

    def step(self, text: str) -> Turn:
        """See ``Environment``. Raises ``ValueError`` and ``VerifiersError``."""
        self._turn += 1
        info: dict[str, float] = {}
        calls: Sequence[ToolCall] = []
        try:
            calls = self._family.calls(text, self._tools) if self._tools else []
        except MalformedCallError:  # as servers do it: what is no call is a text
            info = {"malformed_calls": 1.0}
        if calls:
            info["tool_calls"] = float(len(calls))
        message = self._message(text, calls)
        self._process.tell("answer", episode=self._number, message=message)
        event = self._next()
        if event["event"] == "ended":
            return Turn(done=True, reward=event["reward"], info={**info, **_numbers(event)})
        return self._heard(event, message, info)

    def finish(self) -> float | None:
        """The score of an episode that a limit of ours ended: the harness gets the error that the context is full, and scores what is there."""
        if self._ended:
            return None
        self._process.tell("refuse", episode=self._number, why="the episode's limit of tokens or turns is reached")
        event = self._next()
        if event["event"] != "ended":
            raise ValueError("its harness goes on asking where the context is full")
        reward: float = event["reward"]
        return reward

    def close(self) -> None:
        """Give the episode up, where it is not at its end; the process goes on."""
        self._process.discard(self._number)

    def _next(self) -> Mapping[str, Any]:
        event = self._process.hear(self._number, timeout_seconds=self._timeout_seconds)
        self._ended = event["event"] == "ended"
        if "error" in event:
            raise ValueError(f"verifiers gave the episode up: {event['error']}")
        return event

    def _message(self, text: str, calls: Sequence[ToolCall]) -> dict[str, Any]:
        said = text
        if calls:  # what stands before the first of them
            said = text.partition(self._family.begins)[0] if self._family.begins else ""
        for mark in self._marks if self.reads_special_tokens else ():
            said = said.replace(mark, "")
        message: dict[str, Any] = {"role": "assistant", "content": said}
        if calls:
            message["tool_calls"] = [
                {
                    "id": f"call{self._turn % 1000:03}{place % 100:02}",
                    "type": "function",
                    "function": {"name": call.name, "arguments": json.dumps(dict(call.arguments), ensure_ascii=False)},
                }
                for place, call in enumerate(calls)
            ]
        return message

    def _heard(self, event: Mapping[str, Any], message: Mapping[str, Any], info: Mapping[str, float]) -> Turn:
        """What a request adds to the one before it.

        Raises:
            ValueError: It changes what was said, or adds what can't be put behind it.
        """
        before = [*self._said, plain_message(message)]
        now = [plain_message(one) for one in event["messages"]]
        if now[: len(before)] != before:
            raise ValueError(
                f"its harness has rewritten the conversation, and the policy can't be trained on what it did not say: {_differ(now, before)}"
            )
        added = event["messages"][len(before) :]
        roles = [one["role"] for one in added]
        self._said = now
        names = {call["id"]: call["function"]["name"] for call in message.get("tool_calls") or ()}
        if roles and set(roles) == {"tool"}:
            results = [
                ToolResult(names.get(one.get("tool_call_id"), one.get("name") or ""), one["tool_call_id"], text_of(one))
                for one in added
            ]
            return Turn(results=results, info=info)
        if roles == ["user"]:
            return Turn(text_of(added[0]), info=info)
        raise ValueError(
            f"its harness goes on with messages of the roles {', '.join(roles) or 'none'}; what follows a turn are results of tools, or one "
            "message of the user"
        )


def open_verifiers(settings: VerifiersEnvironmentConfig, at: EnvironmentContext) -> OpenedEnvironment:
    """A process with the environment, which ends with the run.

    Raises:
        ConfigError: It can't be opened; says why.
        ModelError: The chat template does not say how calls are written.
    """
    family = choose_tool_format(settings.tool_format, at.tokenizer, has_messages=at.has_messages)
    process, opened = start_verifiers(settings)
    numbers = itertools.count()
    marks = special_tokens(at.tokenizer) if at.tokenizer is not None else ()
    count = f"{settings.max_sessions} {'episode' if settings.max_sessions == 1 else 'episodes'} at a time"
    return OpenedEnvironment(
        make=lambda: VerifiersEpisode(
            process, next(numbers), TOOL_FORMATS[family],
            timeout_seconds=max(settings.timeout_seconds - SECONDS_LESS, settings.timeout_seconds / 2), marks=marks,
        ),
        sessions=settings.max_sessions,
        parallel=settings.max_sessions,
        notes=[
            f"verifiers {opened['version']}: {opened['name']} of {settings.source!r} with {_harnesses(opened)}; {count}",
            f"calls of tools are read in the format {family!r}, such as {TOOL_FORMATS[family].about}",
        ],
        trial_turn=TRIAL_WORD,
    )  # fmt: skip


def start_verifiers(settings: VerifiersEnvironmentConfig) -> tuple[VerifiersProcess, Mapping[str, Any]]:
    """The process, and what it says of the environment.

    Raises:
        ConfigError: It has none.
    """
    file = Path(settings.source).expanduser()
    is_file = file.suffix == ".py"
    if is_file and not file.is_file():
        raise ConfigError(f"environment.source is {settings.source}, and there is no such file.")
    python = settings.python or sys.executable
    process = VerifiersProcess(python, folder=file.resolve().parent if is_file else None)
    taskset = {**settings.options.get("taskset", {}), "id": file.stem if is_file else settings.source}
    process.tell("open", environment={**settings.options, "taskset": taskset})
    try:
        opened = process.hear(TABLE, timeout_seconds=settings.start_timeout_seconds)
    except VerifiersError as err:
        process.close()
        raise ConfigError(f"The verifiers environment {settings.source!r} can't be opened: {err}.") from None
    if opened["event"] == "failed":
        process.close()
        hint = HINTS[opened["kind"]]
        raise ConfigError(
            f"The verifiers environment {settings.source!r} can't be opened by {python}: {opened['why'].rstrip('.')}. {hint}."
        )
    return process, opened


def plain_message(message: Mapping[str, Any]) -> tuple[Any, ...]:
    """What two writings of one message have in common: role, text, calls, and what it answers."""
    functions = [call["function"] for call in message.get("tool_calls") or ()]
    calls = [(call["name"], _decoded(call["arguments"])) for call in functions]
    return message["role"], text_of(message), calls, message.get("tool_call_id")


def _decoded(arguments: Any) -> Any:
    """Arguments are an object in rows and its JSON in requests."""
    try:
        return json.loads(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        return arguments


def text_of(message: Mapping[str, Any]) -> str:
    """The text of a message.

    Raises:
        ValueError: It holds something else.
    """
    content = message.get("content")
    if content is None or isinstance(content, str):
        return content or ""
    parts = [part.get("text") if isinstance(part, Mapping) and part.get("type") == "text" else None for part in content]
    if None in parts:
        raise ValueError(
            f"a message of the role {message['role']!r} holds more than text, and the policy reads nothing else"
        )
    return "".join(part for part in parts if part is not None)


def _differ(now: Sequence[Any], wanted: Sequence[Any]) -> str:
    place = next((n for n, (a, b) in enumerate(zip(now, wanted, strict=False)) if a != b), min(len(now), len(wanted)))
    return f"they differ in message {place + 1}"


def _harnesses(opened: Mapping[str, Any]) -> str:
    return ", ".join(f"harness {name!r} for {role!r}" for role, name in opened["harnesses"].items())


def _numbers(event: Mapping[str, Any]) -> dict[str, float]:
    """Metrics, and what each reward gave where there are several."""
    rewards = event["rewards"] if len(event["rewards"]) > 1 else {}
    return {**{f"reward_{name}": value for name, value in rewards.items()}, **event["metrics"]}
