"""The environments of a rollout's episodes: what each is asked, and what it gave or why it failed.

open      it is made, and reset with the prompt     what it says first, or None
answer    it hears a turn of the policy             a ``Turn``
end       it is asked for a last reward and closed  the reward
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, Protocol, Self

from transformers import PreTrainedTokenizerBase

from rlhf.data.contracts import Prompt
from rlhf.errors import TrainingError
from rlhf.rollout.environments import (
    AnyEnvironment,
    EnvironmentFactory,
    EnvironmentFailedError,
    EnvironmentSession,
    ParallelCalls,
    TimedCalls,
    Turn,
    checked_number,
    checked_turn,
)

MAX_HUNG = 3
"""Calls to environments that may hang in one rollout, each for the whole time limit, before the run is stopped."""


@dataclass(frozen=True, slots=True)
class Event:
    """What an episode's environment is asked."""

    kind: Literal["open", "answer", "end"]
    turn: int = 0
    """Of the policy, from 1; 0 where it has none."""
    text: str = ""
    """Of the turn, without special tokens."""
    tokens: Sequence[int] = ()
    """Of the turn."""
    failed: bool = False
    """An ended episode has failed, and no reward is asked for."""


@dataclass(frozen=True, slots=True)
class Asked:
    """An event of one episode."""

    episode: int
    """Its number in the rollout."""
    prompt: Prompt
    sample: int
    """Which of its prompt's."""
    event: Event


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an environment gave for an event."""

    value: Any = None
    error: str | None = None
    """Why it gave nothing."""
    hung: int = 0
    """Calls that took too long."""


class EpisodeEnvironments(Protocol):
    """The environments of one rollout, wherever they are."""

    def ask(self, asked: Sequence[Asked]) -> list[Outcome]:
        """One event of each of these episodes; an episode's environment is made at its first.

        Raises:
            TrainingError: ``MAX_HUNG`` calls took too long; names the last.
        """
        ...


OpensEnvironments = Callable[[], AbstractContextManager[EpisodeEnvironments]]
"""Gives the environments of one rollout, for the length of it."""


class PlayedEnvironment:
    """The environment of one episode, from its making to its end."""

    def __init__(self, make: EnvironmentFactory, tokenizer: PreTrainedTokenizerBase, prompt: Prompt) -> None:
        """Nothing is made yet.

        Args:
            make: The environment.
            tokenizer: The policy's.
            prompt: What the episode begins with.
        """
        self._make = make
        self._tokenizer = tokenizer
        self._prompt = prompt
        self._environment: AnyEnvironment | None = None
        """None before it was first spoken to, and where it hangs."""

    def hear(self, event: Event, calls: TimedCalls) -> Outcome:
        """The environment's answer to an event; a failure is returned as an outcome and not raised."""
        hung = calls.num_hung
        actions = {"open": self._open, "answer": self._answer, "end": self._end}
        try:
            value = actions[event.kind](event, calls)
        except EnvironmentFailedError as err:
            if calls.num_hung > hung:
                self._environment = None  # whatever is asked of it would hang, too
            return Outcome(error=str(err), hung=calls.num_hung - hung)
        return Outcome(value, hung=calls.num_hung - hung)

    def _open(self, event: Event, calls: TimedCalls) -> str | None:
        environment: AnyEnvironment = calls("making the environment", self._make)
        words = calls("the environment's reset", lambda: environment.reset(self._prompt))
        self._environment = environment
        return words if isinstance(environment, EnvironmentSession) else None

    def _answer(self, event: Event, calls: TimedCalls) -> Turn:
        if self._environment is None and self._open(event, calls):
            raise EnvironmentFailedError(
                "the environment's reset returned a text, and it returned none for the first prompt; it must do one of the two"
            )
        speaker = self._environment
        assert speaker is not None
        has_marks = isinstance(speaker, EnvironmentSession) and speaker.reads_special_tokens
        text = str(self._tokenizer.decode(list(event.tokens), skip_special_tokens=False)) if has_marks else event.text
        what = f"the environment's step, in turn {event.turn},"
        return checked_turn(what, calls(what, lambda: speaker.step(text)))

    def _end(self, event: Event, calls: TimedCalls) -> float:
        """What goes wrong while it is closed changes nothing any more."""
        session, hung = self._environment, calls.num_hung
        if not isinstance(session, EnvironmentSession):
            return 0.0
        what = "the environment's last reward"
        try:
            reward = None if event.failed else calls(what, session.finish)
            return 0.0 if reward is None else checked_number(what, "number", reward)
        finally:
            if calls.num_hung == hung:
                with contextlib.suppress(EnvironmentFailedError):
                    calls("closing the environment", session.close)


class LocalEnvironments:
    """Environments in this process, called one after the other, or in a few threads. See ``EpisodeEnvironments``."""

    def __init__(
        self,
        make: EnvironmentFactory,
        tokenizer: PreTrainedTokenizerBase,
        *,
        timeout_seconds: float,
        parallel: int = 1,
    ) -> None:
        """Settle how.

        Args:
            make: The environment of one episode.
            tokenizer: The policy's.
            timeout_seconds: For one call.
            parallel: Calls at a time; 1 keeps them in their order.
        """
        self._make = make
        self._tokenizer = tokenizer
        self._calls = ParallelCalls(timeout_seconds, parallel=parallel)
        self._played: dict[int, PlayedEnvironment] = {}

    def ask(self, asked: Sequence[Asked]) -> list[Outcome]:
        """One event of each of these episodes. Raises ``TrainingError``."""
        return self._calls.map(self._one, asked)

    def _one(self, asked: Asked, calls: TimedCalls) -> Outcome:
        played = self._played.get(asked.episode)
        if played is None:
            played = self._played[asked.episode] = PlayedEnvironment(self._make, self._tokenizer, asked.prompt)
        outcome = played.hear(asked.event, calls)
        if asked.event.kind == "end":
            del self._played[asked.episode]
        check_hung(asked, outcome, self._calls.num_hung)
        return outcome

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._calls.__exit__(*error)


def check_hung(asked: Asked, outcome: Outcome, num_hung: int) -> None:
    """Stop a rollout whose environments hang, one after the other.

    Args:
        asked: The newest event.
        outcome: Of it.
        num_hung: Calls of the rollout that took too long.

    Raises:
        TrainingError: They are ``MAX_HUNG``.
    """
    if outcome.error is not None and num_hung >= MAX_HUNG:
        raise TrainingError(
            f"{num_hung} environments of one rollout hung; the last, of prompt {asked.prompt.id!r} (completion {asked.sample}): "
            f"{outcome.error}. Raise environment.timeout_seconds, or fix the environment."
        )
