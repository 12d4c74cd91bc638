"""Sampling and learning as an event-driven simulation: synchronous, one step off, and asynchronous up to a staleness.

    pipeline       when a batch begins to be sampled
    synchronous    when the weights that learned from the batch before have arrived
    one-step-off   when the batch before was sampled and scored, beside the learning from it
    asynchronous   when at most k batches before it are still to be learned from

The trainer takes batches in their order, so that nothing is older than k versions: a long completion has k phases to end. Where new weights
arrive in the middle of one, it goes on with them after the push, and counts as old as its first token.

Sources: Noukhovitch et al. 2024, section 3, arXiv:2410.18252 (one step off); Fu et al. 2025 (AReaL), eq. 3, arXiv:2505.24298 (the bound on
what is begun, and completions that go on with new weights). Events and processes are simpy's (https://simpy.readthedocs.io).
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import simpy

from rlhf.scale.engine_speed import EngineRows, EngineSpeed, Row

Kind = Literal["synchronous", "one-step-off", "asynchronous"]
Batch = Sequence[Sequence[Row]]
"""Groups of siblings that one phase learns from."""
Events = Generator[Any, Any, None]


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSpec:
    """What is simulated."""

    kind: Kind
    max_staleness: int
    """k; 0 for ``synchronous``, 1 for ``one-step-off``."""
    num_engines: int
    speed: EngineSpeed
    score_seconds: Callable[[int], float]
    """Tokens of a batch, prompts of groups counted once, -> seconds of rewards and passes without gradient."""
    learn_seconds: Callable[[int], float]
    """The same of its optimizer steps."""
    push_seconds: float
    """Of giving new weights to the engines, which sample nothing meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineResult:
    """What came of it, from the first phase on that is not the pipeline's start."""

    kind: Kind
    max_staleness: int
    seconds_per_phase: float
    engine_utilization: float
    """Share of the time in which an engine samples, the mean of all."""
    trainer_utilization: float
    """Share of the time in which the trainer scores or learns."""
    staleness: dict[int, float]
    """Versions between a completion's first token and learning from it -> share of completions."""

    @property
    def mean_staleness(self) -> float:
        """In versions."""
        return sum(age * share for age, share in self.staleness.items())


def simulate(spec: PipelineSpec, batches: Sequence[Batch]) -> PipelineResult:
    """Run a pipeline over batches, in their order.

    Args:
        spec: The pipeline.
        batches: One for each phase; at least ``max_staleness + 3``, as the first ones are a start and are not counted.
    """
    if len(batches) < spec.max_staleness + 3:
        raise ValueError(f"{len(batches)} batches are too few to leave out the start of {spec.max_staleness + 1}")
    return _Pipeline(spec, batches).run()


class _Engine:
    """One engine as a process."""

    def __init__(self, env: simpy.Environment, speed: EngineSpeed, finished: Callable[[Row], None]) -> None:
        self.env, self.finished = env, finished
        self.rows = EngineRows(speed)
        self.busy = 0.0
        self.pause = 0.0
        self._idle: simpy.Event | None = None
        self._sampling = False
        self.process = env.process(self._run())

    def ask(self, rows: Sequence[Row]) -> None:
        """More to sample."""
        self.rows.waiting.extend(rows)
        if self._idle is not None:
            self._idle.succeed()
            self._idle = None
        elif self._sampling and self.rows.num_rows < self.rows.speed.max_rows:
            self.process.interrupt()

    def stop_for(self, seconds: float) -> None:
        """Sample nothing for so long; one that has nothing to sample loses nothing."""
        if self._idle is None:
            self.pause += seconds
        if self._sampling:
            self.process.interrupt()

    def _run(self) -> Events:
        while True:
            if self.pause:
                seconds, self.pause = self.pause, 0.0
                yield self.env.timeout(seconds)
            prefill = self.rows.admit()
            if prefill:
                self.busy += prefill
                yield self.env.timeout(prefill)
            if not self.rows.num_rows:
                self._idle = self.env.event()
                yield self._idle
                continue
            yield from self._sample()

    def _sample(self) -> Events:
        """Until the next completion ends, or something comes between."""
        tokens, seconds = self.rows.until_next()
        began = self.env.now
        self._sampling = True
        try:
            yield self.env.timeout(seconds)
        except simpy.Interrupt:
            tokens *= (self.env.now - began) / seconds if seconds else 1.0
        self._sampling = False
        self.busy += self.env.now - began
        for row in self.rows.advance(tokens):
            self.finished(row)


@dataclass(slots=True)
class _Marks:
    """When a phase ended, and how much everyone had worked by then."""

    time: float
    engines: float
    trainer: float


@dataclass(slots=True)
class _Counts:
    """Of rows that are still sampled, by group."""

    left: dict[int, int] = field(default_factory=dict)
    rows: dict[int, list[Row]] = field(default_factory=dict)


def _is_group(number: int, item: tuple[int, list[Row]]) -> bool:
    """Whether a finished group is the one of this number."""
    return item[0] == number


class _Pipeline:
    """Engines, trainer and what is between them."""

    def __init__(self, spec: PipelineSpec, batches: Sequence[Batch]) -> None:
        self.spec, self.batches = spec, batches
        self.env = simpy.Environment()
        self.engines = [_Engine(self.env, spec.speed, self._finished) for _ in range(spec.num_engines)]
        self.ready: simpy.FilterStore = simpy.FilterStore(self.env)
        self.begun = 0
        """Groups."""
        self.groups = [(index, list(group)) for index, batch in enumerate(batches) for group in batch]
        self.counts = _Counts()
        self.unused: list[int] = []
        """Groups that were begun and not learned from, in their order."""
        self.version = 0
        self.trained = 0.0
        self.marks: list[_Marks] = []
        self.ages: Counter[int] = Counter()

    def run(self) -> PipelineResult:
        self.env.run(until=self.env.process(self._train()))
        warm = self.spec.max_staleness + 1
        first, last = self.marks[warm - 1], self.marks[-1]
        time = last.time - first.time
        total = sum(self.ages.values())
        return PipelineResult(
            kind=self.spec.kind,
            max_staleness=self.spec.max_staleness,
            seconds_per_phase=time / (len(self.marks) - warm),
            engine_utilization=(last.engines - first.engines) / time / len(self.engines),
            trainer_utilization=(last.trainer - first.trainer) / time,
            staleness={age: count / total for age, count in sorted(self.ages.items())},
        )

    def _train(self) -> Events:
        streams = self.spec.kind == "asynchronous"
        self._begin(self.spec.max_staleness if streams else 0)
        for phase, batch in enumerate(self.batches):
            groups = []
            for number in self.unused[: len(batch)]:
                _, rows = yield self.ready.get(functools.partial(_is_group, number))
                groups.append(rows)
            del self.unused[: len(batch)]
            rows = [row for group in groups for row in group]
            if phase > self.spec.max_staleness:
                self.ages.update(self.version - row.version for row in rows)
            tokens = sum(row.length for row in rows) + sum(group[0].prompt_tokens for group in groups)
            yield from self._work(self.spec.score_seconds(tokens))
            if self.spec.kind == "one-step-off":
                self._begin(phase + 1)
            yield from self._work(self.spec.learn_seconds(tokens))
            self.version += 1
            for engine in self.engines:
                engine.stop_for(self.spec.push_seconds)
            yield self.env.timeout(self.spec.push_seconds)
            if self.spec.kind == "synchronous":
                self._begin(phase + 1)
            elif streams:
                self._begin(self.version + self.spec.max_staleness)
            self.marks.append(_Marks(self.env.now, sum(engine.busy for engine in self.engines), self.trained))

    def _work(self, seconds: float) -> Events:
        self.trained += seconds
        yield self.env.timeout(seconds)

    def _begin(self, last_batch: int) -> None:
        """Ask for all groups of the batches up to this one that were not asked for yet; each engine with the fewest rows takes the next."""
        asked: dict[int, list[Row]] = {}
        load = [engine.rows.num_asked for engine in self.engines]
        while self.begun < len(self.groups) and self.groups[self.begun][0] <= last_batch:
            rows = self.groups[self.begun][1]
            for row in rows:
                row.version, row.group = self.version, self.begun
            self.unused.append(self.begun)
            self.counts.left[self.begun], self.counts.rows[self.begun] = len(rows), rows
            place = load.index(min(load))
            load[place] += len(rows)
            asked.setdefault(place, []).extend(rows)
            self.begun += 1
        for place, wanted in asked.items():
            self.engines[place].ask(wanted)

    def _finished(self, row: Row) -> None:
        self.counts.left[row.group] -= 1
        if not self.counts.left[row.group]:
            self.ready.put((row.group, self.counts.rows.pop(row.group)))
