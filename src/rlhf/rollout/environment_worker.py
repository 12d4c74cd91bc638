"""Environments of episodes in an actor, opened there as the process that trains would open them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from rlhf.config.environments import EnvironmentBase
from rlhf.data.contracts import Prompt
from rlhf.distributed.whereabouts import Whereabouts
from rlhf.errors import TrainingError
from rlhf.rollout.environments import EnvironmentContext, TimedCalls, open_environment
from rlhf.rollout.episode_environments import Event, Outcome, PlayedEnvironment


@dataclass(frozen=True, slots=True)
class Ask:
    """An event for one of the actor's episodes."""

    episode: int
    event: Event
    prompt: Prompt | None
    """With the first event of the episode."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What its environment gave."""

    outcome: Outcome
    seconds: float
    """That it took."""


@dataclass(frozen=True, slots=True)
class Past:
    """An episode that another actor had: what its environment was asked, and gave."""

    episode: int
    name: str
    """As messages call it."""
    prompt: Prompt
    events: Sequence[tuple[Event, Outcome]]


class EnvironmentWorker:
    """See ``rlhf.distributed.actor_pool``; one of its objects.

    Args:
        settings: Of the environment.
        context: What it is opened with.
        where: Modules of classes and relative paths are looked for.
    """

    def __init__(self, settings: EnvironmentBase, context: EnvironmentContext, where: Whereabouts) -> None:
        where.take()
        self._make = open_environment(settings, context).make
        self._source = getattr(settings, "source", settings.kind_name())
        assert context.tokenizer is not None, "episodes are played with a policy"
        self._tokenizer = context.tokenizer
        self._calls = TimedCalls(settings.timeout_seconds)
        self._played: dict[int, PlayedEnvironment] = {}

    def started(self) -> bool:
        """That there is nothing more to say."""
        return True

    def play(self, asked: Sequence[Ask]) -> list[Answer]:
        """One event of each of these episodes, in their order."""
        return [self._answer(ask) for ask in asked]

    def bring_back(self, episodes: Sequence[Past]) -> None:
        """Play episodes again, to where they were when their actor was lost.

        Raises:
            TrainingError: An environment gives something else than before.
        """
        for past in episodes:
            played = self._begin(past.episode, past.prompt)
            for event, before in past.events:
                now = played.hear(event, self._calls)
                if (now.value, now.error) != (before.value, before.error):
                    raise TrainingError(self._differs(past.name, event, before, now))

    def _answer(self, ask: Ask) -> Answer:
        began = time.monotonic()
        played = self._played.get(ask.episode) if ask.prompt is None else self._begin(ask.episode, ask.prompt)
        if played is None:  # it failed, and what it held ended with the actor that had it
            outcome = Outcome(0.0)
        else:
            outcome = played.hear(ask.event, self._calls)
        if ask.event.kind == "end":
            self._played.pop(ask.episode, None)
        return Answer(outcome, time.monotonic() - began)

    def _begin(self, episode: int, prompt: Prompt) -> PlayedEnvironment:
        played = self._played[episode] = PlayedEnvironment(self._make, self._tokenizer, prompt)
        return played

    def _differs(self, name: str, event: Event, before: Outcome, now: Outcome) -> str:
        when = f"turn {event.turn}" if event.kind == "answer" else "its reset"
        return (
            f"The environment {self._source} is not deterministic. An actor of the pool `environments` was lost, and when the episode of "
            f"{name} was played again, {when} gave {_told(now)} where it had given {_told(before)}. What it gives must depend on the row "
            "and the turns alone, with random numbers from a generator that is seeded with prompt.id; or leave "
            "launch.pools.environments out."
        )


def _told(outcome: Outcome) -> str:
    """An outcome in a message."""
    text = outcome.error if outcome.error is not None else repr(outcome.value)
    return text if len(text) <= 200 else f"{text[:200]}..."


def build_worker(settings: EnvironmentBase, context: EnvironmentContext, where: Whereabouts) -> EnvironmentWorker:
    """What an actor of a pool is made of."""
    return EnvironmentWorker(settings, context, where)
