"""An episode in which the policy calls tools: what it writes becomes calls, and what they give becomes messages.

A turn without a call is the last one. A call that is not well written, of a tool that is not there, or with wrong arguments is
answered with one message that says so, and no call of that turn is made.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from typing_extensions import override

from rlhf.data.contracts import Prompt
from rlhf.errors import did_you_mean
from rlhf.rollout.environments import EnvironmentSession, ToolResult, Turn
from rlhf.rollout.tool_arguments import check_arguments
from rlhf.rollout.tool_formats.tool_call import MalformedCallError, ToolCall, ToolFormat

NO_TOOL = "tool"
"""Name of the message that answers what is no call."""


class ToolFailedError(Exception):
    """A tool could not do what it was asked; the text is for the policy. Not raised to callers."""


class UnknownToolError(MalformedCallError):
    """The policy called a tool that is not there."""


class ToolBox(Protocol):
    """The tools of one episode, and whatever stands behind them."""

    def reset(self, prompt: Prompt) -> str | None:
        """Start an episode; a text is what the policy reads first."""
        ...

    def schemas(self) -> Sequence[Mapping[str, Any]]:
        """JSON schemas of the tools, known once ``reset`` was called."""
        ...

    def call(self, name: str, arguments: Mapping[str, Any]) -> Turn:
        """Call a tool; the turn's observation is its result. Raises ``ToolFailedError``."""
        ...

    def finish(self) -> float | None:
        """A last reward, asked once the episode is over; None adds nothing."""
        ...

    def close(self) -> None:
        """Give back what the episode holds; called also for one that failed."""
        ...


class ToolSession(EnvironmentSession):
    """See ``rlhf.rollout.environments.Environment``. Counts calls, those that were malformed, of no tool, or failed."""

    def __init__(self, box: ToolBox, family: ToolFormat) -> None:
        """Prepare for one episode.

        Args:
            box: The tools.
            family: How the policy writes calls.
        """
        self._box = box
        self._family = family
        self.reads_special_tokens = family.reads_special_tokens
        self._tools: dict[str, Mapping[str, Any]] = {}
        self._turn = 0

    @override
    def reset(self, prompt: Prompt) -> str | None:
        words = self._box.reset(prompt)
        self._tools = {schema["function"]["name"]: schema for schema in self._box.schemas()}
        return words

    @override
    def step(self, text: str) -> Turn:
        self._turn += 1
        try:
            calls = self._family.calls(text, self._tools)
            for call in calls:
                self._check(call)
        except UnknownToolError as err:
            return Turn(results=[self._error(0, NO_TOOL, err)], info={"unknown_tools": 1.0})
        except MalformedCallError as err:
            return Turn(results=[self._error(0, NO_TOOL, err)], info={"malformed_calls": 1.0})
        if not calls:
            return Turn(done=True)
        results: list[ToolResult] = []
        done, rewards, failed = False, [], 0
        for place, call in enumerate(calls):
            try:
                given = self._box.call(call.name, call.arguments)
            except ToolFailedError as err:
                failed += 1
                results.append(self._error(place, call.name, err))
                continue
            results.append(ToolResult(call.name, self._id(place), given.observation))
            rewards += [] if given.reward is None else [given.reward]
            done = given.done
            if done:
                break
        info = {"tool_calls": float(len(results)), **({"tool_errors": float(failed)} if failed else {})}
        return Turn(done=done, reward=sum(rewards) if rewards else None, results=results, info=info)

    @override
    def finish(self) -> float | None:
        return self._box.finish()

    @override
    def close(self) -> None:
        self._box.close()

    def _check(self, call: ToolCall) -> None:
        if call.name not in self._tools:
            known = ", ".join(self._tools) or "none"
            raise UnknownToolError(
                f"There is no tool {call.name!r}.{did_you_mean(call.name, self._tools)} Known: {known}."
            )
        check_arguments(call.name, call.arguments, self._tools[call.name]["function"].get("parameters", {}))

    def _error(self, place: int, name: str, err: Exception) -> ToolResult:
        return ToolResult(name, self._id(place), error_text(err))

    def _id(self, place: int) -> str:
        return f"call{self._turn % 1000:03}{place % 100:02}"


def error_text(err: Exception) -> str:
    """What the policy reads of an error."""
    return json.dumps({"error": str(err)}, ensure_ascii=False)
