"""Environments that a policy interacts with over several turns: tools, games, simulated users.

    class Calculator:
        def reset(self, prompt): self.wanted = prompt.columns["answer"]
        def step(self, text): return Turn(observation="42") or Turn(done=True, reward=1.0)

One object per episode. The prompt is what the policy sees first; an environment responds to each turn.
"""

from __future__ import annotations

import math
import numbers
import queue
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, Self, runtime_checkable

from rlhf.data.contracts import Prompt


@dataclass(frozen=True, slots=True)
class Turn:
    """An environment's response to the policy's turn."""

    observation: str = ""
    """Text for the policy; ignored if the episode is done."""
    done: bool = False
    """The episode is over."""
    reward: float | None = None
    """Added to the episode's; None adds nothing. Any real number, numpy's own included."""
    info: Mapping[str, float] = field(default_factory=dict)
    """Numbers for the log, added up over the turns; their means over episodes are metrics."""


@runtime_checkable
class Environment(Protocol):
    """One episode's other side."""

    def reset(self, prompt: Prompt) -> None:
        """Start an episode with a prompt and the columns of its row."""
        ...

    def step(self, text: str) -> Turn:
        """Respond to the text of the policy's turn, without special tokens."""
        ...


EnvironmentFactory = Callable[[], Environment]
"""Makes the environment of one episode."""


class EnvironmentFailedError(Exception):
    """An environment raised, hung, or gave an invalid response; the text says which. Not raised to callers."""


class TimedCalls:
    """Calls to environments, one after the other in one thread, each with a time limit.

    A thread can't be killed: one that hangs is left behind, and another takes its place.
    """

    def __init__(self, timeout_seconds: float) -> None:
        self.timeout_seconds = timeout_seconds
        self.num_hung = 0
        self._work: queue.SimpleQueue[Any] | None = None
        self._answers: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def __call__(self, what: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """What the function returns.

        Raises:
            EnvironmentFailedError: It raised, or took too long; the text begins with ``what``.
        """
        if self._work is None:
            self._work, self._answers = queue.SimpleQueue(), queue.SimpleQueue()
            threading.Thread(
                target=_serve, args=(self._work, self._answers), name="rlhf-environment", daemon=True
            ).start()
        self._work.put((function, arguments))
        try:
            value, error = self._answers.get(timeout=self.timeout_seconds)
        except queue.Empty:
            self._work = None
            self.num_hung += 1
            raise EnvironmentFailedError(f"{what} took more than {self.timeout_seconds:g} seconds") from None
        if error is not None:
            raise EnvironmentFailedError(f"{what} raised {type(error).__name__}: {error}") from error
        return value

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._work is not None:
            self._work.put(None)
            self._work = None


def _serve(work: queue.SimpleQueue[Any], answers: queue.SimpleQueue[Any]) -> None:
    while (item := work.get()) is not None:
        function, arguments = item
        try:
            answers.put((function(*arguments), None))
        except BaseException as error:  # any error must be passed on to the waiting caller
            answers.put((None, error))


def checked_turn(what: str, answer: Any) -> Turn:
    """An environment's answer, if it is one.

    Raises:
        EnvironmentFailedError: It is not; the text begins with ``what``.
    """
    if not isinstance(answer, Turn):
        raise EnvironmentFailedError(
            f"{what} returned a {type(answer).__name__}; it must return a rlhf.rollout.environments.Turn"
        )
    if not isinstance(answer.observation, str):
        raise EnvironmentFailedError(
            f"{what} gave an observation that is a {type(answer.observation).__name__}; it must be text"
        )
    if not isinstance(answer.info, Mapping):
        raise EnvironmentFailedError(
            f"{what} gave an info that is a {type(answer.info).__name__}; it must be a dict of numbers, empty for none"
        )
    reward = None if answer.reward is None else _number(what, "reward", answer.reward)
    info = {str(name): _number(what, f"info {name!r}", value) for name, value in answer.info.items()}
    try:
        done = bool(answer.done)
    except Exception as error:  # an array of several, such as of a batch of games
        raise EnvironmentFailedError(f"{what} gave a done that is neither true nor false: {error}") from error
    return Turn(answer.observation, done, reward, info)


def _number(what: str, name: str, value: Any) -> float:
    """A real number as Python's own: what episodes add up ends in files."""
    try:
        number = float(value) if isinstance(value, numbers.Real) else math.nan
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise EnvironmentFailedError(f"{what} gave the {name} {value!r}, which is not a finite number")
    return number
