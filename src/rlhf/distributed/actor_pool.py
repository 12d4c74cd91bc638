"""A pool of actors: work is dealt to them, and those that die or hang are replaced.

Nothing here depends on Ray. An actor is started, made ready by ``prepare`` (engines take the current weights), given one piece of work
at a time, and replaced when a call of it fails or takes too long; what it was doing is given to another one.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Literal

from rlhf.config.launch import PoolConfig
from rlhf.distributed.actor_calls import Actor, ActorLostError, Call, Cluster
from rlhf.errors import TrainingError

logger = logging.getLogger(__name__)

TICK_SECONDS = 0.5
"""Longest wait for an answer between two looks at deadlines and signals."""
SHORTEST_STRAGGLER_SECONDS = 1.0
"""A unit that takes less is not given to a second actor, whatever was expected."""


@dataclass(frozen=True, slots=True)
class Preparation:
    """What an actor must have done before it is given work."""

    key: Any
    """Of this preparation; an actor that did one of the same key does not do it again."""
    method: str
    arguments: tuple[Any, ...] | Callable[[int], tuple[Any, ...]]
    """Of the method; or what gives those of a replica by its number, asked when an actor is about to be prepared."""
    check: Callable[[Any], str | None]
    """What is wrong with its answer, which completes "replica 0 ..."; None where nothing is."""
    more_seconds: Callable[[int], float] = lambda replica: 0.0
    """What a replica of this number may take in addition to ``timeout_seconds``."""

    def arguments_for(self, replica: int) -> tuple[Any, ...]:
        """Of the method, for the replica of this number."""
        return self.arguments(replica) if callable(self.arguments) else self.arguments


@dataclass(slots=True, eq=False)
class _Unit:
    """A piece of work."""

    number: int
    arguments: tuple[Any, ...]
    cost: float
    only_for: int | None
    """The replica that must do it; None for any."""
    losses: int = 0


@dataclass(slots=True, eq=False)
class _Replica:
    number: int
    actor: Actor | None = None
    doing: Literal["start", "prepare", "work"] | None = None
    call: Call | None = None
    unit: _Unit | None = None
    began: float = 0.0
    deadline: float = 0.0
    preparing: Preparation | None = None
    prepared: Any = None
    """Key of the newest preparation that it did."""
    losses: int = 0
    """In a row, without work finished."""
    about: Any = None
    """What its start answered."""


@dataclass(slots=True, eq=False)
class _Round:
    """One ``run``."""

    method: str
    units: list[_Unit]
    take: Callable[[int, Any], None] | None = None
    waiting: deque[_Unit] = field(default_factory=deque)
    results: dict[int, Any] = field(default_factory=dict)


class ActorPool:
    """Replicas of one object, each in a process of its own.

    Args:
        cluster: Where they live.
        role: What the pool is for, as the recipe calls it.
        settings: How many, their resources and timeouts.
        builds: ``package.module:function`` that makes the object there.
        arguments: Of the function; the object's ``started()`` answers what ``about`` holds.
        reissue_after: A unit that takes so many times as long as its cost lets expect is given to an idle replica, too; None for never.
    """

    def __init__(
        self,
        cluster: Cluster,
        role: str,
        settings: PoolConfig,
        builds: str,
        arguments: Sequence[Any],
        *,
        reissue_after: float | None = None,
    ) -> None:
        self.cluster = cluster
        self.role = role
        self.settings = settings
        self.builds = builds
        self.arguments = tuple(arguments)
        self.reissue_after = reissue_after
        self.notify: Callable[[str], None] = logger.warning
        """Called with a message when an actor is replaced."""
        self.restarts = 0
        """Actors that were replaced."""
        self.reissued = 0
        """Units that were given to a second actor."""
        self.preparation: Preparation | None = None
        """Every actor does it before its next work."""
        self._replicas = [_Replica(number) for number in range(settings.replicas)]
        self._abandoned = False
        self._pace: list[float] = []
        """Seconds for each unit of cost, of the newest units."""

    def run(
        self,
        method: str,
        arguments: Sequence[tuple[Any, ...]],
        *,
        costs: Sequence[float] | None = None,
        replicas: Sequence[int] | None = None,
        take: Callable[[int, Any], None] | None = None,
    ) -> list[Any]:
        """Call a method once for each tuple of arguments, on whichever actor is free; the most expensive first.

        Args:
            method: Of the object.
            arguments: Of each call.
            costs: What each is expected to take, in any unit; equal by default.
            replicas: The number of the one that must do each; any by default.
            take: Called with the place and the answer of each call as it comes.

        Returns:
            The answers, in the order of the arguments.

        Raises:
            TrainingError: An actor, or those that were given one piece of work, were lost more than ``max_restarts`` times in a row.
            RLHFError: What an actor refused its work for.
        """
        costs = costs or [1.0] * len(arguments)
        only_for: Sequence[int | None] = replicas or [None] * len(arguments)
        units = [
            _Unit(n, tuple(given), cost, replica)
            for n, (given, cost, replica) in enumerate(zip(arguments, costs, only_for, strict=True))
        ]
        return self._run(_Round(method, units, take, deque(sorted(units, key=lambda unit: -unit.cost))))

    def each(self, method: str, *arguments: Any) -> list[Any]:
        """Call a method of every actor; raises as ``run`` does."""
        units = [_Unit(replica.number, arguments, 1.0, replica.number) for replica in self._replicas]
        return self._run(_Round(method, units, waiting=deque(units)))

    def about(self) -> Any:
        """What the first actor said of itself when it started; started where it was not."""
        while self._replicas[0].about is None:
            self._step(_Round("", []))
        return self._replicas[0].about

    @property
    def alive(self) -> int:
        """Actors that were started and not lost."""
        return sum(replica.actor is not None for replica in self._replicas)

    def close(self) -> None:
        """End all actors; the next request starts them again."""
        for replica in self._replicas:
            if replica.actor is not None:
                replica.actor.kill()
        self._replicas = [_Replica(number) for number in range(self.settings.replicas)]

    def abandon(self) -> None:
        """Let what another thread runs, or is about to run, end with an error, soon; this pool does nothing any more."""
        self._abandoned = True

    def _run(self, work: _Round) -> list[Any]:
        while len(work.results) < len(work.units):
            if self._abandoned:
                raise TrainingError(f"What the pool `{self.role}` did is not wanted any more.")
            self._step(work)
        return [work.results[unit.number] for unit in work.units]

    def _step(self, work: _Round) -> None:
        """Give everyone something to do, and take what is done."""
        for replica in self._replicas:
            if replica.call is None:
                self._employ(replica, work)
        busy = {id(replica.call): replica for replica in self._replicas if replica.call is not None}
        if not busy:
            return
        calls = [replica.call for replica in busy.values() if replica.call is not None]
        nearest = min(replica.deadline for replica in busy.values()) - time.monotonic()
        for call in self.cluster.wait(calls, max(0.0, min(TICK_SECONDS, nearest))):
            self._take(busy[id(call)], work)
        now = time.monotonic()
        for replica in self._replicas:
            if replica.call is not None and now > replica.deadline:
                self._lose(replica, self._overdue(replica), work)

    def _employ(self, replica: _Replica, work: _Round) -> None:
        """Start, prepare, or give work to an actor that does nothing."""
        if replica.actor is None:
            began = self.cluster.start_actor(self.role, replica.number, self.builds, self.arguments)
            replica.actor, replica.call = began
            self._note(replica, "start", self.settings.start_timeout_seconds)
        elif self.preparation is not None and replica.prepared != self.preparation.key:
            replica.preparing = self.preparation
            more = replica.preparing.more_seconds(replica.number)
            replica.call = replica.actor.ask(replica.preparing.method, *replica.preparing.arguments_for(replica.number))
            self._note(replica, "prepare", self.settings.timeout_seconds + more)
        elif (unit := self._next_unit(replica, work)) is not None:
            replica.call = replica.actor.ask(work.method, *unit.arguments)
            replica.unit = unit
            self._note(replica, "work", self.settings.timeout_seconds)

    def _note(self, replica: _Replica, doing: Literal["start", "prepare", "work"], seconds: float) -> None:
        replica.doing, replica.began = doing, time.monotonic()
        replica.deadline = replica.began + seconds

    def _next_unit(self, replica: _Replica, work: _Round) -> _Unit | None:
        for unit in work.waiting:
            if unit.only_for in (None, replica.number):
                work.waiting.remove(unit)
                return unit
        return self._straggler(work)

    def _straggler(self, work: _Round) -> _Unit | None:
        """A unit that one other actor has for longer than could be expected."""
        if self.reissue_after is None or not self._pace:
            return None
        now, pace = time.monotonic(), median(self._pace)
        held = [replica for replica in self._replicas if replica.unit in work.units and replica.doing == "work"]
        for replica in sorted(held, key=lambda each: each.began):
            unit = replica.unit
            if unit is None or unit.only_for is not None or sum(other.unit is unit for other in held) > 1:
                continue
            if now - replica.began > max(SHORTEST_STRAGGLER_SECONDS, self.reissue_after * pace * unit.cost):
                self.reissued += 1
                return unit
        return None

    def _take(self, replica: _Replica, work: _Round) -> None:
        """The answer of an actor."""
        assert replica.call is not None
        try:
            answer = replica.call.result()
        except ActorLostError as err:
            self._lose(replica, str(err), work)
            return
        except BaseException:  # refused: the actor lives
            replica.call = replica.unit = replica.doing = None
            raise
        doing, unit, preparing = replica.doing, replica.unit, replica.preparing
        if doing == "prepare" and preparing is not None and (wrong := preparing.check(answer)) is not None:
            self._lose(replica, wrong, work)
            return
        replica.call = replica.unit = replica.doing = None
        if doing == "start":
            replica.about = answer
        elif doing == "prepare" and preparing is not None:
            replica.prepared = preparing.key
        elif unit is not None:
            replica.losses = 0
            if unit in work.units and unit.number not in work.results:
                self._pace = [*self._pace[-15:], (time.monotonic() - replica.began) / max(unit.cost, 1e-9)]
                work.results[unit.number] = answer
                if work.take is not None:
                    work.take(unit.number, answer)

    def _lose(self, replica: _Replica, why: str, work: _Round) -> None:
        """Kill an actor, put back what it had, and end the run where that happened too often."""
        unit, doing = replica.unit, replica.doing
        if replica.actor is not None:
            replica.actor.kill()
        replica.actor = replica.call = replica.unit = replica.doing = replica.prepared = None
        replica.losses += 1
        self.restarts += 1
        who = f"replica {replica.number} of the pool `{self.role}`"
        if unit is not None and unit in work.units and unit.number not in work.results:
            unit.losses += 1
            if not any(other.unit is unit for other in self._replicas):
                work.waiting.appendleft(unit)
        worst = max(replica.losses, unit.losses if unit is not None else 0)
        if worst > self.settings.max_restarts:
            raise TrainingError(
                f"{who[0].upper()}{who[1:]} {why}. That is the loss number {worst} in a row, and max_restarts is "
                f"{self.settings.max_restarts}. The same command goes on from the newest checkpoint."
            )
        when = {"start": " while it started", "prepare": "", "work": " in the middle of its work"}[doing or "prepare"]
        self.notify(f"{who[0].upper()}{who[1:]} {why}{when}; starting another one.")

    def _overdue(self, replica: _Replica) -> str:
        seconds = replica.deadline - replica.began
        if replica.doing == "start":
            return f"was not ready within {seconds:g} seconds (start_timeout_seconds)"
        return f"did not answer within {seconds:g} seconds (timeout_seconds)"
