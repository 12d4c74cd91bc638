"""Environments of episodes in a pool of actors: an episode stays with one actor, and all actors step theirs at the same time.

    turns of many episodes, in units ----> the actor that has each episode
    observations, rewards, ends, failures <----
    an actor is lost: the next one plays its episodes from their reset to where they were, and compares what it gets

An episode is what its environment gives to its own turns, so it does not depend on the number of actors and on what happens to them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Self

from rlhf.config.environments import EnvironmentBase
from rlhf.config.launch import PoolConfig
from rlhf.data.contracts import Prompt
from rlhf.distributed.actor_calls import Cluster
from rlhf.distributed.actor_pool import ActorPool, Preparation
from rlhf.distributed.whereabouts import Whereabouts
from rlhf.errors import ConfigError
from rlhf.rollout.environment_worker import Answer, Ask, Past
from rlhf.rollout.environments import EnvironmentContext
from rlhf.rollout.episode_environments import Asked, Event, Outcome, check_hung

ROLE = "environments"
WORKER = "rlhf.rollout.environment_worker:build_worker"
CALLS = {"open": 2, "answer": 1, "end": 2}
"""To the environment, for an event; the first of an episode is preceded by the two that open it."""
LARGEST_UNIT = 32
"""Events that an actor is given at a time; so many as may all take their whole time within the pool's."""
REPLAY_MARGIN = 2.0
"""An actor that plays episodes again may take so many times what they took before."""


@dataclass(slots=True)
class _Episode:
    """What was asked of an environment and came back."""

    name: str
    prompt: Prompt
    events: list[tuple[Event, Outcome]] = field(default_factory=list)
    seconds: float = 0.0
    failed: bool = False


class PooledEnvironments:
    """Environments in actors. See ``rlhf.rollout.episode_environments.EpisodeEnvironments``.

    Args:
        cluster: Where the actors live.
        settings: Of the pool.
        environment: Its settings.
        context: What it is opened with in each actor.
        notify: Called with a message when an actor is replaced.

    Raises:
        ConfigError: An actor has less time than one turn may take, or can't open the environment.
        TrainingError: No actor starts.
    """

    def __init__(
        self,
        cluster: Cluster,
        settings: PoolConfig,
        environment: EnvironmentBase,
        context: EnvironmentContext,
        *,
        notify: Callable[[str], None],
    ) -> None:
        if (problem := environment.problem_in_actors(settings.timeout_seconds)) is not None:
            raise ConfigError(problem)
        self.pool = ActorPool(cluster, ROLE, settings, WORKER, (environment, context, Whereabouts.here()))
        self.pool.notify = notify
        self.pool.preparation = Preparation(
            "episodes", "bring_back", self._pasts, check=lambda answer: None, more_seconds=self._replay_seconds
        )
        self._calls_per_unit = int(settings.timeout_seconds / environment.timeout_seconds)
        self._episodes: dict[int, _Episode] = {}
        self._num_hung = 0
        self.pool.about()

    @contextmanager
    def rollout(self) -> Iterator[Self]:
        """Environments of one rollout; if it fails, the actors end, and another one starts them again."""
        self._num_hung = 0
        try:
            yield self
        except BaseException:
            self.close()
            raise

    def ask(self, asked: Sequence[Asked]) -> list[Outcome]:
        """One event of each of these episodes.

        Raises:
            TrainingError: Too many environments hung; one gave something else when it was played again; or actors were lost too often.
        """
        units = list(self._units(asked))
        outcomes: dict[int, Outcome] = {}

        def take(number: int, answers: Sequence[Answer]) -> None:
            for place, answer in zip(units[number], answers, strict=True):
                outcomes[place] = answer.outcome
                self._keep(asked[place], answer)

        self.pool.run(
            "play",
            [([self._ask(asked[place]) for place in unit],) for unit in units],
            replicas=[self._replica(asked[unit[0]].episode) for unit in units],
            take=take,
        )
        return [outcomes[place] for place in range(len(asked))]

    def close(self) -> None:
        """End the actors; another rollout starts them again."""
        self.pool.close()
        self._episodes = {}

    def _replica(self, episode: int) -> int:
        """Which actor has an episode."""
        return episode % self.pool.settings.replicas

    def _units(self, asked: Sequence[Asked]) -> Iterator[list[int]]:
        """Places of events of one actor that it can answer within its time, whatever its environments take."""
        for replica in range(self.pool.settings.replicas):
            unit: list[int] = []
            calls = 0
            for place, one in enumerate(asked):
                if self._replica(one.episode) != replica:
                    continue
                more = CALLS[one.event.kind]
                if one.event.kind == "answer" and one.episode not in self._episodes:
                    more += CALLS["open"]
                if unit and (calls + more > self._calls_per_unit or len(unit) == LARGEST_UNIT):
                    yield unit
                    unit, calls = [], 0
                unit.append(place)
                calls += more
            if unit:
                yield unit

    def _ask(self, asked: Asked) -> Ask:
        return Ask(asked.episode, asked.event, None if asked.episode in self._episodes else asked.prompt)

    def _keep(self, asked: Asked, answer: Answer) -> None:
        """What must be played again if the actor is lost. Raises ``TrainingError``."""
        if asked.event.kind == "end":
            self._episodes.pop(asked.episode, None)
        else:
            name = f"the prompt {asked.prompt.id!r} (completion {asked.sample})"
            episode = self._episodes.setdefault(asked.episode, _Episode(name, asked.prompt))
            episode.events.append((asked.event, answer.outcome))
            episode.seconds += answer.seconds
            episode.failed = answer.outcome.error is not None
        self._num_hung += answer.outcome.hung
        check_hung(asked, answer.outcome, self._num_hung)

    def _lost_with(self, replica: int) -> dict[int, _Episode]:
        """Episodes that an actor has to play again before its next work; one that failed is over."""
        return {
            number: episode
            for number, episode in self._episodes.items()
            if self._replica(number) == replica and not episode.failed
        }

    def _pasts(self, replica: int) -> tuple[list[Past]]:
        lost = self._lost_with(replica)
        return ([Past(number, one.name, one.prompt, one.events) for number, one in lost.items()],)

    def _replay_seconds(self, replica: int) -> float:
        return REPLAY_MARGIN * sum(episode.seconds for episode in self._lost_with(replica).values())
