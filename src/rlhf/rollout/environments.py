"""Environments that a policy interacts with over several turns: tools, games, simulated users.

    class Calculator:
        def reset(self, prompt): self.wanted = prompt.columns["answer"]
        def step(self, text): return Turn(observation="42") or Turn(done=True, reward=1.0)

One object per episode. The prompt is what the policy sees first; an environment responds to each turn. Tools and servers are
wrapped into such objects (``rlhf.rollout.tool_session``).
"""

from __future__ import annotations

import math
import numbers
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar, runtime_checkable

from rlhf.config.environments import EnvironmentBase
from rlhf.data.contracts import Prompt
from rlhf.errors import with_article

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a tool gave for one call: a message with the role ``tool``."""

    name: str
    """Of the tool."""
    call_id: str
    """Nine letters and digits, as templates of Mistral want them; new in each turn."""
    content: str


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
    results: Sequence[ToolResult] = ()
    """In place of the observation: what the tools gave that the policy called."""


@runtime_checkable
class Environment(Protocol):
    """One episode's other side."""

    def reset(self, prompt: Prompt) -> None:
        """Start an episode with a prompt and the columns of its row."""
        ...

    def step(self, text: str) -> Turn:
        """Respond to the text of the policy's turn, without special tokens."""
        ...


class EnvironmentSession:
    """What an environment of another interface may have besides: base of the wrappers of this library."""

    reads_special_tokens = False
    """Whether a turn's text is given with its special tokens, which some families write around a call."""

    def reset(self, prompt: Prompt) -> str | None:
        """Start an episode; a text is what the environment says first, behind the prompt."""
        raise NotImplementedError

    def step(self, text: str) -> Turn:
        """Respond to the text of the policy's turn, without special tokens."""
        raise NotImplementedError

    def finish(self) -> float | None:
        """A last reward, asked once the episode is over; None adds nothing."""
        return None

    def close(self) -> None:
        """Give back what the episode holds; called also for one that failed."""


AnyEnvironment = Environment | EnvironmentSession
EnvironmentFactory = Callable[[], AnyEnvironment]
"""Makes the environment of one episode."""


@dataclass(frozen=True, slots=True)
class EnvironmentContext:
    """What an environment is opened with."""

    tokenizer: PreTrainedTokenizerBase | None
    """The policy's; None where an environment is only tried, and calls are written in plain text."""
    load: Callable[[str], Callable[..., Any]]
    """Finds what ``package.module:name`` names."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """For the constructor, with files where the recipe names inputs."""
    has_messages: bool = False
    """The prompts are conversations."""
    is_rewarded: bool = False
    """The recipe has a ``reward:`` besides."""
    seed: int = 0
    """The run's."""


@dataclass(frozen=True, slots=True)
class OpenedEnvironment:
    """An environment ready for episodes."""

    make: EnvironmentFactory
    tools: Callable[[Mapping[str, Any]], list[dict[str, Any]]] | None = None
    """JSON schemas of the tools for a row with these columns; None without tools."""
    speaks_first: bool = False
    """``reset`` may give a text, which the policy reads before its first turn."""
    sessions: int | None = None
    """Episodes at a time; None for any number."""
    parallel: int = 1
    """Calls at a time, each in a thread of its own."""
    notes: Sequence[str] = ()
    """What was decided, for the log."""
    trial_turn: str = ""
    """A turn of the policy with which the environment can be tried; calls are written in plain text."""

    @property
    def trial_notes(self) -> Sequence[str]:
        """Of the notes, those that do not depend on the policy: the first."""
        return self.notes[:1] if self.sessions is not None else ()


def open_environment(settings: EnvironmentBase, at: EnvironmentContext) -> OpenedEnvironment:
    """An environment of any kind; its module is imported here.

    Raises:
        ConfigError: It can't be used as asked; says what it lacks.
    """
    module, _, function = settings.builds.partition(":")
    opened: OpenedEnvironment = getattr(import_module(module), function)(settings, at)
    return opened


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


class ParallelCalls:
    """Several ``TimedCalls`` side by side."""

    def __init__(self, timeout_seconds: float, *, parallel: int = 1) -> None:
        """Settle how many.

        Args:
            timeout_seconds: For one call.
            parallel: Calls at a time; 1 keeps them in their order.
        """
        self._all = [TimedCalls(timeout_seconds) for _ in range(parallel)]
        self._free: queue.SimpleQueue[TimedCalls] = queue.SimpleQueue()
        for calls in self._all:
            self._free.put(calls)
        self._pool = ThreadPoolExecutor(parallel, thread_name_prefix="rlhf-episodes") if parallel > 1 else None

    @property
    def num_hung(self) -> int:
        """Calls that took too long."""
        return sum(calls.num_hung for calls in self._all)

    def map(self, function: Callable[[Item, TimedCalls], Result], items: Sequence[Item]) -> list[Result]:
        """``function`` of each item and of calls that it has for itself, in the order of the items."""
        if self._pool is None:
            return [function(item, self._all[0]) for item in items]
        return list(self._pool.map(lambda item: self._with_calls(function, item), items))

    def _with_calls(self, function: Callable[[Item, TimedCalls], Result], item: Item) -> Result:
        calls = self._free.get()
        try:
            return function(item, calls)
        finally:
            self._free.put(calls)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._pool is not None:
            self._pool.shutdown()
        for calls in self._all:
            calls.__exit__(*error)


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
            f"{what} returned {with_article(type(answer).__name__)}; it must return a rlhf.rollout.environments.Turn"
        )
    if not isinstance(answer.observation, str):
        raise EnvironmentFailedError(
            f"{what} gave an observation that is {with_article(type(answer.observation).__name__)}; it must be text"
        )
    if not isinstance(answer.info, Mapping):
        raise EnvironmentFailedError(
            f"{what} gave an info that is {with_article(type(answer.info).__name__)}; it must be a dict of numbers, empty for none"
        )
    reward = None if answer.reward is None else checked_number(what, "reward", answer.reward)
    info = {str(name): checked_number(what, f"info {name!r}", value) for name, value in answer.info.items()}
    try:
        done = bool(answer.done)
    except Exception as error:  # an array of several, such as of a batch of games
        raise EnvironmentFailedError(f"{what} gave a done that is neither true nor false: {error}") from error
    return Turn(answer.observation, done, reward, info, answer.results)


def checked_number(what: str, name: str, value: Any) -> float:
    """A real number as Python's own: what episodes add up ends in files.

    Raises:
        EnvironmentFailedError: It is none; the text begins with ``what``.
    """
    try:
        number = float(value) if isinstance(value, numbers.Real) else math.nan
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise EnvironmentFailedError(f"{what} gave the {name} {value!r}, which is not a finite number")
    return number
