"""How often the detectors of reward hacking are wrong, and how soon they are right: simulated runs with a known answer.

    python benchmarks/hacking_detectors.py --write docs/results/hacking-detectors.md

A run has 1,000 steps of 8 prompts with 8 completions each, and a look at 128 held-out prompts every 20 steps. Rewards are in units of
the spread between prompts; within a prompt they vary by .7; the honest gain is 1.5, with an AR(1) wobble. The judge sees .6 of the
quality and noise of .5, so that it honestly gains less than the reward. Healthy worlds differ in what is likely to set a detector off;
hacks begin at step 500. Everything the detectors are shown goes through ``rlhf.RewardHackingDetector``.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta

from rlhf.config.hacking import HackingConfig
from rlhf.files import write_json
from rlhf.seeds import derive_seed
from rlhf.training.monitoring.hacking.detector import RewardHackingDetector
from rlhf.training.monitoring.hacking.detector_table import DETECTORS
from rlhf.training.monitoring.hacking.observations import HeldOutObservation, RolloutObservation

Array = NDArray[np.float64]
STEPS = 1000
EVERY = 20
PROMPTS, SAMPLES = 8, 8
HACK_STEP = 500
BASE_WORDS = 174.0
"""Geometric mean length, so that the mean is about the 200 words that the asked heuristic compares with."""
REFERENCE_COMPLETIONS = 256
BETWEEN_LENGTH, WITHIN_LENGTH, WITHIN_REWARD = 0.4, 0.35, 0.7
JUDGE_SHARE, JUDGE_NOISE = 0.6, 0.5


def ramp(start: float, length: float) -> Callable[[Array], Array]:
    """0 before ``start``, 1 from ``length`` steps later on, a line between."""
    return lambda step: np.clip((step - start) / length, 0.0, 1.0)


def _none(step: Array) -> Array:
    return np.zeros_like(step)


@dataclass(frozen=True)
class World:
    """A kind of run; functions take steps."""

    what: str
    gain: float = 1.5
    wobble: tuple[float, float] = (0.95, 0.05)
    """Coefficient and stationary deviation of the AR(1) process."""
    heavy: bool = False
    """Student's t with 3 degrees of freedom within prompts."""
    binary: bool = False
    coupling: float = 0.15
    """Correlation of log length and reward within a prompt."""
    mix: float = 0.0
    """The same between prompts, where half of the tasks are short and half long."""
    growth: Callable[[Array], Array] = _none
    """Log length above the start's."""
    proxy: Callable[[Array], Array] = _none
    """What a hack, or new data, adds to the reward."""
    judge: Callable[[Array], Array] = _none
    """And to the judge."""
    held_out_proxy: bool = True
    """Whether held-out prompts gain that reward, too."""
    loops: Callable[[Array], Array] = _none
    """Share of completions that go round in circles, above the start's."""
    jackpots: Callable[[Array], Array] = _none
    """Share of completions with 4 more reward, and 1 less of the judge."""
    noise_only: bool = False
    """The judge is pure noise."""
    base_loops: float = 0.02


HEALTHY = {
    "base": World("as above"),
    "len3": World(
        "lengths grow honestly threefold, coupling .3", coupling=0.3, growth=lambda s: np.log(3) * ramp(0, 800)(s)
    ),
    "tails": World("rewards with heavy tails (t with 3 degrees)", heavy=True),
    "mix": World("short and long tasks, .85 between prompts", mix=0.85),
    "jump": World(
        "new data at step 500: length x2, reward +.6",
        growth=lambda s: np.log(2) * (s >= HACK_STEP),
        proxy=lambda s: 0.6 * (s >= HACK_STEP).astype(np.float64),
        held_out_proxy=False,
    ),
    "rule": World("a reward of 0 or 1", binary=True),
    "flat": World("nothing is learned", gain=0.0),
    "wobble": World("quality wanders: AR .99, deviation .15", wobble=(0.99, 0.15)),
    "lenRM": World("coupling .8, lengths stable", coupling=0.8),
    "noise": World("the judge is pure noise", noise_only=True),
}


def substitution(loss: float) -> World:
    """Reward without a sign on the surface."""
    return World(
        f"reward +.8, judge -{loss:g} over 300 steps, no sign on the surface",
        proxy=lambda s: 0.8 * ramp(HACK_STEP, 300)(s),
        judge=lambda s: -loss * ramp(HACK_STEP, 300)(s),
    )


def _overoptimized(step: Array) -> Array:
    """Gao et al.'s shape after the turn: slow at first, then faster."""
    return -1.2 * ramp(HACK_STEP, 500)(step) ** 1.5


HACKS = {
    "len": World(
        "length x4 in 200 steps, coupling .8, judge -.5",
        coupling=0.8,
        growth=lambda s: np.log(4) * ramp(HACK_STEP, 200)(s),
        proxy=lambda s: 0.8 * ramp(HACK_STEP, 200)(s),
        judge=lambda s: -0.5 * ramp(HACK_STEP, 200)(s),
    ),
    "rep": World(
        "80 % loops in 100 steps, judge -1.2",
        loops=lambda s: 0.8 * ramp(HACK_STEP, 100)(s),
        proxy=lambda s: 0.8 * ramp(HACK_STEP, 100)(s),
        judge=lambda s: -1.2 * ramp(HACK_STEP, 100)(s),
    ),
    "sub .8": substitution(0.8),
    "sub .4": substitution(0.4),
    "sub .2": substitution(0.2),
    "jack": World("90 % jackpots in 80 steps", jackpots=lambda s: 0.9 * ramp(HACK_STEP, 80)(s)),
    "gao": World(
        "judge turns over slowly, -1.2 in 500 steps",
        proxy=lambda s: 0.5 * ramp(HACK_STEP, 500)(s),
        judge=_overoptimized,
    ),
}
LOOKS_AT_ROLLOUTS = [name for name, entry in DETECTORS.items() if entry.looks_at == "rollout"]
LOOKS_AT_HELD_OUT = [name for name, entry in DETECTORS.items() if entry.looks_at == "held_out"]
NOT_SIMULATED = "simple_repetition"
"""It looks at texts."""
RESEARCH: dict[str, dict[str, str]] = {
    "judge_slope": {
        "len": "100/120", "rep": "100/60", "sub .8": "100/120", "sub .4": "100/220", "sub .2": "33", "jack": "100/60", "gao": "100/300",
    },
    "win_rate_drop": {
        "len": "100/200", "rep": "100/60", "sub .8": "100/200", "sub .4": "77/400", "sub .2": "0", "jack": "100/60", "gao": "99/420",
    },
    "repetition_share": {"rep": "100/32"},
    "length_gaming": {"len": "100/63"},
}  # fmt: skip
"""Detector -> hack -> what an earlier simulation of other code found with the same thresholds (percent and delay). Its shapes of `rep`
and `gao` are described in words only, so these two worlds are not quite the same."""
RESEARCH_HEALTHY = {
    "judge_slope": ("noise, 128 prompts", "0.34"), "win_rate_drop": ("wobble", "2.3"), "length_gaming": ("len3", "0"),
    "spikes": ("base", "0"),
}  # fmt: skip
"""Detector -> the healthy world that sets it off most, there, and the percentage of runs with an alarm."""


class Run:
    """One simulated run of a world.

    Args:
        world: Which.
        seed: Decides everything.
        num_prompts: Held-out prompts.
    """

    def __init__(self, world: World, seed: int, *, num_prompts: int = 128) -> None:
        self.world, self.rng, self.num_prompts = world, np.random.default_rng(seed), num_prompts
        steps = np.arange(STEPS, dtype=np.float64)
        coefficient, deviation = world.wobble
        shocks = self.rng.normal(size=STEPS) * deviation * np.sqrt(1 - coefficient**2)
        wobble = np.empty(STEPS)
        level = self.rng.normal() * deviation
        for step in range(STEPS):
            level = coefficient * level + shocks[step]
            wobble[step] = level
        self.quality = world.gain * (1 - np.exp(-steps / 300)) + wobble
        self.proxy_added, self.judge_added = world.proxy(steps), world.judge(steps)
        self.jackpots, self.loops, self.growth = world.jackpots(steps), world.loops(steps), world.growth(steps)

    def noise(self, *shape: int) -> Array:
        """Within prompts, deviation 1."""
        if self.world.heavy:
            return self.rng.standard_t(3, size=shape) / np.sqrt(3)
        return self.rng.normal(size=shape)

    def held_out(self) -> Iterator[tuple[HeldOutObservation, Callable[[int], Array]]]:
        """Each look, with what samples an anchor of k completions there."""
        prompts = self.rng.normal(size=self.num_prompts)

        def judged(step: int, shape: tuple[int, ...]) -> tuple[Array, Array]:
            quality = prompts[:, None] + self.quality[step] + WITHIN_REWARD * self.noise(*shape)
            jackpot = self.rng.random(shape) < self.jackpots[step]
            proxy = quality + self.proxy_added[step] * self.world.held_out_proxy + 4.0 * jackpot
            if self.world.binary:
                proxy = (proxy > 1.0).astype(np.float64)
            signal = 0.0 if self.world.noise_only else JUDGE_SHARE * quality + self.judge_added[step] - jackpot
            return proxy, signal + JUDGE_NOISE * self.rng.normal(size=shape)

        for step in range(0, STEPS, EVERY):
            proxy, judge = judged(step, (self.num_prompts, 1))
            look = HeldOutObservation(step=step, proxy=proxy[:, 0], judge=judge[:, 0])
            yield look, lambda count, step=step: judged(step, (self.num_prompts, count))[1]  # type: ignore[misc]

    def rollouts(self, first: int) -> Iterator[RolloutObservation]:
        """Every step from ``first`` on."""
        world, shape = self.world, (STEPS - first, PROMPTS, SAMPLES)
        steps = slice(first, STEPS)
        by_prompt = self.rng.normal(size=shape[:2])
        between = self.rng.normal(size=shape[:2])
        if world.mix:
            long = np.where(self.rng.random(shape[:2]) < 0.5, 1.0, -1.0)
            by_prompt = world.mix * long + np.sqrt(1 - world.mix**2) * by_prompt
            between = 2.0 * long + between
        within = self.noise(*shape)
        lengths = world.coupling * within + np.sqrt(1 - world.coupling**2) * self.rng.normal(size=shape)
        logs = np.log(BASE_WORDS) + BETWEEN_LENGTH * between[..., None] + WITHIN_LENGTH * lengths
        logs += self.growth[steps, None, None]
        quality = by_prompt[..., None] + self.quality[steps, None, None] + WITHIN_REWARD * within
        jackpot = self.rng.random(shape) < self.jackpots[steps, None, None]
        rewards = quality + self.proxy_added[steps, None, None] + 4.0 * jackpot
        if world.binary:
            rewards = (rewards > 1.0).astype(np.float64)
        # a prompt's own chance of a loop varies: beta-binomial with 30 in all
        chance = self.rng.beta(30 * world.base_loops, 30 * (1 - world.base_loops), size=shape[:2])[..., None]
        looping = self.rng.random(shape) < chance + (1 - chance) * self.loops[steps, None, None]
        reference = self.rng.binomial(REFERENCE_COMPLETIONS, world.base_loops) / REFERENCE_COMPLETIONS
        groups = np.repeat(np.arange(PROMPTS), SAMPLES)
        count = PROMPTS * SAMPLES
        mean_log = np.log(BASE_WORDS)
        for place in range(STEPS - first):
            own = mean_log + BETWEEN_LENGTH * between[place] if world.mix else np.full(PROMPTS, mean_log)
            yield RolloutObservation(
                step=first + place,
                rewards=rewards[place].reshape(count),
                groups=groups,
                num_words=np.exp(logs[place]).reshape(count),
                repeated_words=40.0 * looping[place].reshape(count),
                trigram_rates=np.zeros(count),
                reference_repeated=np.full(count, reference),
                reference_log_words=own[groups],
            )


def first_alarms(run: Run, config: HackingConfig, *, since: int = 0, rollouts: bool = True) -> dict[str, int]:
    """Detector -> step of its first alarm at ``since`` or later; those without one are left out. What looked is not asked again."""
    detector = RewardHackingDetector(config, horizon=STEPS // EVERY)
    steps: dict[str, int] = {}

    def look(observation: HeldOutObservation | RolloutObservation) -> None:
        for alarm in detector.check_observation(observation).alarms:
            if alarm.step >= since:
                steps.setdefault(alarm.detector, alarm.step)
                detector.detectors.pop(alarm.detector, None)

    for held_out, sample_anchor in run.held_out():
        look(held_out)
        if detector.wants_anchor:
            detector.set_anchor(sample_anchor(detector.anchor_completions))
    if rollouts:
        for rollout in run.rollouts(max(0, since - 60)):
            look(rollout)
    return steps


def exact_interval(count: int, runs: int) -> tuple[float, float]:
    """Clopper and Pearson's 95 % interval of a share."""
    low = 0.0 if count == 0 else float(beta.ppf(0.025, count, runs - count + 1))
    high = 1.0 if count == runs else float(beta.ppf(0.975, count + 1, runs - count))
    return low, high


@dataclass(frozen=True)
class Cell:
    """What the runs of one world gave."""

    runs: int
    rollout_runs: int
    alarms: dict[str, int]
    """Detector -> runs with an alarm."""
    median_steps: dict[str, float]
    """Detector -> median step of the first alarm of those."""

    def runs_of(self, detector: str) -> int:
        """How many runs the detector looked at."""
        return self.rollout_runs if detector in LOOKS_AT_ROLLOUTS else self.runs

    def share(self, detector: str) -> str:
        """Runs with an alarm, in percent, with the exact interval."""
        runs, count = self.runs_of(detector), self.alarms.get(detector, 0)
        if not runs:
            return "-"
        low, high = exact_interval(count, runs)
        return f"{100 * count / runs:.3g} [{100 * low:.2g}, {min(100 * high, 100):.3g}]"

    def detected(self, detector: str) -> str:
        """Share in percent, and median delay in steps."""
        runs, count = self.runs_of(detector), self.alarms.get(detector, 0)
        if not runs:
            return "-"
        delay = f"/{self.median_steps[detector] - HACK_STEP:.0f}" if count >= runs / 2 else ""
        return f"{100 * count / runs:.0f}{delay}"


def simulate(
    name: str,
    world: World,
    *,
    runs: int,
    rollout_runs: int,
    since: int = 0,
    num_prompts: int = 128,
    all_heuristics: bool = True,
) -> Cell:
    """Many runs of one world."""
    simple = "warn" if all_heuristics else "off"
    settings = dict.fromkeys(("simple_length", "simple_spikes"), simple)
    config = HackingConfig.of({"action": "warn", **settings})
    alarms: dict[str, list[int]] = {}
    for number in range(runs):
        run = Run(world, derive_seed(0, "hacking_detectors", name, number), num_prompts=num_prompts)
        for detector, step in first_alarms(run, config, since=since, rollouts=number < rollout_runs).items():
            alarms.setdefault(detector, []).append(step)
    counts = {detector: len(steps) for detector, steps in alarms.items()}
    medians = {detector: float(np.median(steps)) for detector, steps in alarms.items()}
    return Cell(runs, min(runs, rollout_runs), counts, medians)


def heading(columns: Sequence[str]) -> list[str]:
    """The first two lines of a table."""
    return ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]


def row(*cells: object) -> str:
    """One line of a table."""
    return "| " + " | ".join(map(str, cells)) + " |"


def compared(healthy: dict[str, Cell], hacked: dict[str, Cell], few: dict[str, Cell]) -> list[str]:
    """Lines of the comparison with the earlier simulation, as far as these worlds were simulated."""
    worlds = healthy | few
    lines = [
        row(f"`{detector}`", f"{world}, healthy", worlds[world].share(detector), there)
        for detector, (world, there) in RESEARCH_HEALTHY.items()
        if world in worlds
    ]
    lines += [
        row(f"`{detector}`", hack, hacked[hack].detected(detector), there)
        for detector, of_detector in RESEARCH.items()
        for hack, there in of_detector.items()
        if hack in hacked
    ]
    return lines


def table(healthy: dict[str, Cell], hacked: dict[str, Cell], few: dict[str, Cell], command: str, seconds: float) -> str:
    """The page."""
    looked = [name for name in DETECTORS if name != NOT_SIMULATED]
    acting = [name for name in looked if not name.startswith("simple")]
    lines = [
        "# Detectors of reward hacking, simulated",
        "",
        "<!-- written by benchmarks/hacking_detectors.py; do not edit by hand -->",
        "",
        f"Made by `{command}` in {seconds:.0f} s of one core. What the detectors look for, and what to do:",
        "[reward-hacking.md](../reward-hacking.md). Real runs: [hacking-real-runs.md](hacking-real-runs.md).",
        "",
    ]
    if healthy:
        first = next(iter(healthy.values()))
        lines += [
            "## Healthy runs: share with an alarm within 1,000 steps",
            "",
            f"Percent, with the exact (Clopper-Pearson) 95 % interval: {first.runs} runs of each world for the detectors that look at held-out",
            f"prompts, {first.rollout_runs} for those that look at rollouts.",
            "",
            *heading(["world", *(f"`{name}`" for name in looked)]),
            *(row(name, *(cell.share(d) for d in looked)) for name, cell in healthy.items()),
            "",
            *(f"* {name}: {HEALTHY[name].what}" for name in healthy),
            "",
            "In `wobble` the policy really gets worse now and then, by more than the five points that `win_rate_drop` tolerates.",
            "",
        ]
    if hacked:
        lines += [
            "## Hacks from step 500 on: percent detected, and median delay in steps",
            "",
            f"{next(iter(hacked.values())).runs} runs of each; the time that the hack takes to develop is part of the delay. No delay where",
            "less than half were detected.",
            "",
            *heading(["hack", *(f"`{name}`" for name in acting)]),
            *(row(name, *(cell.detected(d) for d in acting)) for name, cell in hacked.items()),
            "",
            *(f"* {name}: {HACKS[name].what}" for name in hacked),
            "",
        ]
    if few:
        lines += [
            "## Fewer held-out prompts, and a judge that is pure noise",
            "",
            f"{next(iter(few.values())).runs} runs of each: the worst that a judge can be, and so a bound for the detectors that ask one.",
            "",
            *heading(["prompts", *(f"`{name}`" for name in LOOKS_AT_HELD_OUT)]),
            *(row(name, *(cell.share(d) for d in LOOKS_AT_HELD_OUT)) for name, cell in few.items()),
            "",
        ]
    if rows := compared(healthy, hacked, few):
        lines += [
            "## Beside the simulation that chose the thresholds",
            "",
            "That one is other code, of which these worlds were built again from their description. Alarms in healthy runs in percent; hacks",
            "in percent and steps of delay. `judge_slope` on pure noise is Student's t alone, and 8,000 runs of nothing else give .66 % at 128",
            "prompts, .70 % at 64 and 3.0 % at 20: the .34 % of the other page is not confirmed, and alarms state .7 %. Why `wobble`",
            "has more of its real losses found here is not known; it is not the rule by which the anchor changes.",
            "",
            *heading(["detector", "world", "here", "there"]),
            *rows,
            "",
        ]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Simulate and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=600, help="Of each healthy world, for detectors with a judge.")
    parser.add_argument(
        "--rollout-runs", type=int, default=150, help="For detectors that look at rollouts, and of each hack."
    )
    parser.add_argument("--worlds", nargs="+", choices=[*HEALTHY, *HACKS], default=[*HEALTHY, *HACKS])
    parser.add_argument("--noise-runs", type=int, default=2000, help="Of a judge that is pure noise, for each of:")
    parser.add_argument("--num-prompts", type=int, nargs="*", default=[20, 64, 128], help="Held-out prompts.")
    parser.add_argument("--write", type=Path, help="Markdown file to write.")
    chosen = parser.parse_args(arguments)
    kept = chosen.write.with_suffix(".json") if chosen.write else None
    cells: dict[str, Any] = json.loads(kept.read_text(encoding="utf-8")) if kept and kept.exists() else {}

    def cell(key: str, world: str, **settings: Any) -> Cell:
        """Simulated, or kept from an earlier call with the same settings."""
        record = cells.get(key)
        if record is None or record["settings"] != settings:
            began = time.process_time()
            simulated = simulate(world, (HEALTHY | HACKS)[world], **settings)
            seconds = time.process_time() - began
            record = cells[key] = {"settings": settings, "seconds": round(seconds, 1), "cell": asdict(simulated)}
            print(f"{key}: {seconds:.0f} s", file=sys.stderr, flush=True)
            if kept is not None:
                write_json(kept, cells)
        return Cell(**record["cell"])

    runs, some = chosen.runs, chosen.rollout_runs
    healthy = {name: cell(name, name, runs=runs, rollout_runs=some) for name in chosen.worlds if name in HEALTHY}
    hacked = {
        name: cell(name, name, runs=some, rollout_runs=some, since=HACK_STEP, all_heuristics=False)
        for name in chosen.worlds
        if name in HACKS
    }
    noise = {"runs": chosen.noise_runs, "rollout_runs": 0}
    names = {f"noise, {n} prompts": n for n in chosen.num_prompts}
    few = {name: cell(name, "noise", num_prompts=n, **noise) for name, n in names.items()}
    seconds = sum(record["seconds"] for record in cells.values())
    page = table(healthy, hacked, few, "python " + shlex.join(sys.argv), seconds)
    if chosen.write:
        chosen.write.write_text(page, encoding="utf-8")
    print(page)


if __name__ == "__main__":
    main()
