"""How often does a gate refuse a model that lost nothing, and how often does it promote one that lost? By simulation.

    python benchmarks/gate_rates.py --write docs/results/gates.md

Every row draws what a gate measures from a world with a known truth and asks ``rlhf.evaluation.gates.gate.decide``. ``--scale 0.1``
takes a tenth of the runs. tests/unit/evaluation/gates holds a short form.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rlhf.config.requirements import REQUIREMENTS, Requirement
from rlhf.evaluation.decision import Decision
from rlhf.evaluation.gates.gate import GateDecision, decide
from rlhf.evaluation.gates.measurements import Measurements, MetricMeasurement, SuiteMeasurement
from rlhf.evaluation.suites.suite_run import SuiteRun
from rlhf.seeds import derive_seed

Generator = np.random.Generator
RUNS = 1000
N, MARGIN, DISCORDANT, BASE = 500, 0.05, 0.15, 0.7
"""Items or prompts, margin, share of them on which two models of one quality differ, and how many the champion solves."""
KINDS = {kind.kind_name(): kind for kind in REQUIREMENTS}
STATED = 0.05
COST = 2
"""Of gates of several suites."""
CHEAP = 0.25
"""Of gates that read a metric."""
HEAVY = 0.035
"""Of ``better`` with numbers that have no bound and heavy tails: t intervals are approximate there."""
HALF = 0.025
"""Of ``better``, whose interval is two-sided."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """A truth, and a gate that is asked about it."""

    name: str
    requirements: Sequence[Requirement]
    draw: Callable[[Generator], Measurements]
    most_pass: float | None = None
    """Stated: a candidate that misses the requirement passes in at most this share of runs."""
    most_fail: float | None = None
    """Stated: one that meets it fails in at most this share."""
    cost: float = 1
    """Such a world gets so many times fewer runs."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Shares of the runs."""

    passed: float
    failed: float
    naive_passed: float
    """Where a gate passes whatever is not significantly worse."""
    naive_failed: float
    """Where each requirement fails at its own level."""

    @property
    def undecided(self) -> float:
        """Neither."""
        return 1 - self.passed - self.failed


def rates(world: World, runs: int) -> Rates:
    """What the gate says of the world."""
    rng = np.random.default_rng(derive_seed(0, "gates", world.name))
    decisions = [decide(world.requirements, world.draw(rng)) for _ in range(max(1, round(runs / world.cost)))]
    failed_alone = [_fails_alone(each) for each in decisions]
    return Rates(
        passed=float(np.mean([each.decision is Decision.PASS for each in decisions])),
        failed=float(np.mean([each.decision is Decision.FAIL for each in decisions])),
        naive_passed=float(np.mean([not failed for failed in failed_alone])),
        naive_failed=float(np.mean(failed_alone)),
    )


def _fails_alone(decision: GateDecision) -> bool:
    limits = (
        (ruling.evidence.get("p_beyond"), 1 - ruling.evidence.get("confidence", 0.95))
        for ruling in decision.rulings.values()
    )
    return any(p is not None and p < limit for p, limit in limits)


def required(kind: str, **settings: Any) -> Requirement:
    """One requirement."""
    return KINDS[kind].of({"kind": kind, **settings})


# ------------------------------------------------------------------------------------------------------------ worlds


def outcomes(rng: Generator, loss: float, n: int) -> tuple[np.ndarray, np.ndarray]:
    """0 or 1 of champion and candidate on the same items: they differ on ``DISCORDANT`` of them, and the candidate loses ``loss``."""
    spread = max(DISCORDANT, abs(loss))
    change = rng.choice([-1, 0, 1], size=n, p=[(spread + loss) / 2, 1 - spread, (spread - loss) / 2])
    champion = np.where(change == -1, 1, np.where(change == 1, 0, rng.random(n) < BASE)).astype(float)
    return champion, champion + change


def suites(losses: Sequence[float], n: int = N, missing: float = 0.0) -> Callable[[Generator], Measurements]:
    """Suites of which the candidate loses so much of each; a share of its scores is missing at random."""

    def draw(rng: Generator) -> Measurements:
        measured = {}
        for place, loss in enumerate(losses):
            champion, candidate = outcomes(rng, loss, n)
            holes = rng.random(n) < missing
            name = f"suite{place}"
            measured[name] = SuiteMeasurement(
                name=name, fingerprint=name, margin=MARGIN, candidate=suite_run(name, candidate, holes),
                champion=suite_run(name, champion),
            )  # fmt: skip
        return Measurements(has_champion=True, suites=measured)

    return draw


def suite_run(name: str, scores: np.ndarray, holes: np.ndarray | None = None) -> SuiteRun:
    """One model's scores."""
    known: list[list[float | None]] = [
        [None] if holes is not None and holes[place] else [float(score)] for place, score in enumerate(scores)
    ]
    items = [str(place) for place in range(len(scores))]
    return SuiteRun(
        suite=name, version="1", fingerprint=name, model="m", model_fingerprint="m", seed=0,
        scores=dict(zip(items, known, strict=True)), groups=dict(zip(items, items, strict=True)),
    )  # fmt: skip


def repeated(loss: float) -> Callable[[Generator], Measurements]:
    """A suite that samples, the champion asked twice: all three runs of a model of one quality are equally far apart."""

    def draw(rng: Generator) -> Measurements:
        chance = 1 / (1 + np.exp(-rng.normal(1.0, 2.0, N)))
        old, again = ((rng.random(N) < chance).astype(float) for _ in range(2))
        new = (rng.random(N) < np.clip(chance - loss, 0, 1)).astype(float)
        measured = SuiteMeasurement(
            name="suite0", fingerprint="suite0", margin=MARGIN, candidate=suite_run("suite0", new),
            champion=suite_run("suite0", old), again=suite_run("suite0", again),
        )  # fmt: skip
        return Measurements(has_champion=True, suites={"suite0": measured})

    return draw


def win_rate(rate: float, ties: float = 0.3, n: int = N) -> Callable[[Generator], Measurements]:
    """Outcomes 1, 1/2, 0 with a true mean."""
    win, loss = rate - ties / 2, 1 - rate - ties / 2

    def draw(rng: Generator) -> Measurements:
        values = rng.choice([1.0, 0.5, 0.0], size=n, p=[win, ties, loss])
        return _metric("win_rate", values, compares=True, neutral=0.5)

    return draw


def raw_scores(gain: float, n: int = 200) -> Callable[[Generator], Measurements]:
    """Skewed scores without bounds; prompts differ in difficulty."""

    def draw(rng: Generator) -> Measurements:
        difficulty = rng.normal(0, 2, n)
        old, new = (difficulty + rng.exponential(size=n) for _ in range(2))
        return _metric("judge_score", new + gain, champion=old)

    return draw


def share(truth: float, n: int = N) -> Callable[[Generator], Measurements]:
    """0 or 1 with a true mean."""
    return lambda rng: _metric("judge_score", (rng.random(n) < truth).astype(float))


def _metric(name: str, candidate: np.ndarray, *, champion: np.ndarray | None = None, **fields: Any) -> Measurements:
    values, others = (
        {str(place): float(value) for place, value in enumerate(part)}
        for part in (candidate, () if champion is None else champion)
    )
    return Measurements(
        has_champion=True, metrics={name: MetricMeasurement(name=name, candidate=values, champion=others, **fields)}
    )


def lasting(count: int) -> list[Requirement]:
    """Nothing is lost of so many suites."""
    return [required("non_inferior", suite=f"suite{place}") for place in range(count)]


def worlds() -> Iterator[World]:
    """All rows of the table."""

    one = lasting(1)
    points = f"{100 * MARGIN:g} points"
    yield World(name=f"non_inferior, n = {N}, unchanged", requirements=one, draw=suites([0.0]), most_fail=STATED)
    yield World(
        name=f"non_inferior, n = {N}, lost {points}",
        requirements=one,
        draw=suites([MARGIN]),
        most_pass=STATED,
        most_fail=STATED,
    )
    yield World(
        name=f"non_inferior, n = {N}, lost {2 * 100 * MARGIN:g} points",
        requirements=one,
        draw=suites([2 * MARGIN]),
        most_pass=STATED,
    )
    yield World(
        name=f"non_inferior, n = 60, lost {points}",
        requirements=one,
        draw=suites([MARGIN], 60),
        most_pass=STATED,
        most_fail=STATED,
    )
    yield World(
        name=f"non_inferior, 4 % missing, lost {points}",
        requirements=one,
        draw=suites([MARGIN], missing=0.04),
        most_pass=STATED,
    )
    yield World(
        name="non_inferior, sampled, asked twice, unchanged", requirements=one, draw=repeated(0.0), most_fail=STATED
    )
    for count in (5, 20):
        several = lasting(count)
        yield World(
            name=f"{count} suites, unchanged",
            requirements=several,
            draw=suites([0.0] * count),
            most_fail=STATED,
            cost=COST,
        )
        on_the_edge = [MARGIN] * count
        yield World(
            name=f"{count} suites, {points} lost of each",
            requirements=several,
            draw=suites(on_the_edge),
            most_pass=STATED,
            most_fail=STATED,
            cost=COST,
        )
        yield World(
            name=f"{count} suites, {points} lost of one",
            requirements=several,
            draw=suites([MARGIN, *[0.0] * (count - 1)]),
            most_pass=STATED,
            cost=COST,
        )
    wins = [required("better", metric="win_rate")]
    yield World(
        name=f"better, win rate, n = {N}, unchanged",
        requirements=wins,
        draw=win_rate(0.5),
        cost=CHEAP,
        most_pass=HALF,
        most_fail=HALF,
    )
    yield World(
        name="better, win rate, n = 60, unchanged",
        requirements=wins,
        draw=win_rate(0.5, n=60),
        cost=CHEAP,
        most_pass=HALF,
        most_fail=HALF,
    )
    yield World(
        name=f"better, win rate, n = {N}, truly 45 %",
        requirements=wins,
        draw=win_rate(0.45),
        cost=CHEAP,
        most_pass=HALF,
    )
    yield World(
        name=f"better, win rate, n = {N}, truly 58 %",
        requirements=wins,
        draw=win_rate(0.58),
        cost=CHEAP,
        most_fail=HALF,
    )
    scores = [required("better", metric="judge_score")]
    for n in (60, 200):
        name = f"better, heavy-tailed scores without bounds, n = {n}, unchanged"
        yield World(
            name=name, requirements=scores, draw=raw_scores(0.0, n), most_pass=HEAVY, most_fail=HEAVY, cost=CHEAP
        )
    least, most = ([required(kind, metric="judge_score", value=0.8)] for kind in ("at_least", "at_most"))
    yield World(
        name=f"at_least .8, n = {N}, truly .8",
        requirements=least,
        draw=share(0.8),
        cost=CHEAP,
        most_pass=STATED,
        most_fail=STATED,
    )
    yield World(
        name="at_least .8, n = 60, truly .8",
        requirements=least,
        draw=share(0.8, 60),
        cost=CHEAP,
        most_pass=STATED,
        most_fail=STATED,
    )
    yield World(
        name=f"at_least .8, n = {N}, truly .75", requirements=least, draw=share(0.75), cost=CHEAP, most_pass=STATED
    )
    yield World(
        name=f"at_most .8, n = {N}, truly .8",
        requirements=most,
        draw=share(0.8),
        cost=CHEAP,
        most_pass=STATED,
        most_fail=STATED,
    )
    rare = [required("at_most", metric="judge_score", value=0.01)]
    yield World(
        name=f"at_most .01, n = {N}, truly .01",
        requirements=rare,
        draw=share(0.01),
        cost=CHEAP,
        most_pass=STATED,
        most_fail=STATED,
    )


# -------------------------------------------------------------------------------------------------------------- page

HEAD = """# How often gates err, by simulation

<!-- written by benchmarks/gate_rates.py; do not edit by hand -->

Made by `python benchmarks/gate_rates.py --write docs/results/gates.md` in {seconds:.0f} s on one core, {runs:,} runs a row
(of several suites {few:,}, of metrics {many:,}): a share of 5 % is known to within {error:.1f} points, of several suites {wide:.1f}, of
metrics {narrow:.1f}. What is stated is in
[gates.md](../gates.md). The truth of each row is known; the gate is the library's own (`decide`). A suite has a margin of {margin:g} points,
the champion solves {base:g} % of it, and two models of one quality differ on {discordant:g} % of its items. `no_alarm` has no rate of its
own: it fails as often as the guards that it names give a false alarm.

The last two columns are what not to do, on the same draws: pass whatever is not shown to miss its bound (trap 16), and let each requirement
fail at its own level (trap 17).

| truth | passes | stated: at most | fails | stated: at most | undecided | *naive: passes* | *naive: fails* |
|---|---|---|---|---|---|---|---|
"""


def row(world: World, measured: Rates) -> str:
    """A line of the table."""

    def stated(value: float | None) -> str:
        return "" if value is None else f"{100 * value:.1f} %"

    cells = [
        world.name, f"{100 * measured.passed:.1f} %", stated(world.most_pass), f"{100 * measured.failed:.1f} %", stated(world.most_fail),
        f"{100 * measured.undecided:.1f} %", f"*{100 * measured.naive_passed:.1f} %*", f"*{100 * measured.naive_failed:.1f} %*",
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """See the top of this file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--write", type=Path, help="the page to write")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the runs")
    arguments = parser.parse_args()
    runs, began = max(1, round(RUNS * arguments.scale)), time.monotonic()
    lines = []
    for world in worlds():
        lines.append(row(world, rates(world, runs)))
        print(lines[-1], flush=True)
    error = 100 * 1.96 * (0.05 * 0.95 / runs) ** 0.5
    page = HEAD.format(
        seconds=time.monotonic() - began, runs=runs, few=runs // COST,
        many=round(runs / CHEAP),
        narrow=error * CHEAP**0.5, error=error, wide=error * COST**0.5,
        margin=100 * MARGIN, base=100 * BASE, discordant=100 * DISCORDANT,
    )  # fmt: skip
    if arguments.write is not None:
        arguments.write.write_text(page + "\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
