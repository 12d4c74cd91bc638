"""Starts two sides, lets them step in turns, compares what they computed, and only then their seconds."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from benchmarks.peer import models
from benchmarks.peer.agreement import CHECKED, Disagreement, check_lengths, check_rounding, compare
from benchmarks.peer.cases import PLAIN, Candidate, Case, candidates_of
from benchmarks.peer.channel import Channel, Step
from benchmarks.peer.work import Row, count_tokens, draw_rows, force_completions, steps_of, useful_flop
from rlhf.allocator import KERNELS, LARGEST_KEPT, MOST_FREE, PRIMITIVES, WRAPPED, WRAPPED_KERNELS

ROOT = Path(__file__).resolve().parents[2]
BENCH = ROOT / ".bench"
WARM_UP = 2
"""Steps of each side before any is timed: the first fills caches and allocates the optimizer's state."""
TRIAL = 2
"""Timed steps of each candidate for the peer's settings."""
LEARNING_RATE = {"grpo": 1e-6, "ppo": 1e-6}
OTHERS_LEARNING_RATE = 2e-5
"""Enough that the losses of the second and third step differ from the first by more than is allowed between the two sides."""


FORCED = 2
"""Steps on given completions that the two sides of a method that samples are compared on."""
FORCED_LEARNING_RATE = 1e-5
"""So small that rounding, which Adam makes of a gradient near 0, stays below what is allowed over the steps of one rollout."""


class SideFailed(RuntimeError):
    """A side could not do its work; the message is its own."""


@dataclass(slots=True)
class Plan:
    """How much of everything."""

    steps: int = 8
    """Timed steps of each side."""
    seed: int = 0
    candidate: str | None = None
    """Take this one of the peer's settings instead of looking for the fastest."""
    sides: tuple[str, ...] = ("rlhf", "trl")
    in_turns: bool = True
    """Step by step (A B A B); False for one whole run after the other, where both would not fit into a GPU's memory."""


@dataclass(slots=True)
class SideResult:
    """What one side reported."""

    resident_mib: float = 0.0
    """With everything loaded, before the first step."""
    warm_up: list[Step] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    values: dict[str, list[float]] = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict)
    ready: dict[str, Any] = field(default_factory=dict)
    """What it said before its first step."""

    @property
    def peak_mib(self) -> float:
        """Above the loaded model, over all steps."""
        return max(step.peak_mib for step in [*self.warm_up, *self.steps])


class Side:
    """A process of its own that stands still between steps."""

    def __init__(self, name: str, case: Case, task: dict[str, Any], log: Path) -> None:
        self.name = name
        self.result = SideResult()
        down, up = os.pipe(), os.pipe()
        log.parent.mkdir(parents=True, exist_ok=True)
        self.log = log
        with log.open("w") as file:
            self.process = subprocess.Popen(
                [str(python_of(name)), "-m", module_of(name, case)],
                cwd=ROOT, env=environment(name, case, down[0], up[1]), pass_fds=(down[0], up[1]), stdin=subprocess.DEVNULL,
                stdout=file, stderr=subprocess.STDOUT,
            )  # fmt: skip
        os.close(down[0])
        os.close(up[1])
        self.channel = Channel(up[0], down[1])
        self.channel.send(**task)
        self.result.ready = self._receive("ready")
        self.result.resident_mib = self.result.ready["resident_mib"]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.channel.send(do="stop")
            self.process.wait(timeout=20)
        except (OSError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()
        self.channel.close()

    def take(self, count: int, *, timed: bool) -> None:
        """Let it take steps, and wait for them."""
        self.channel.send(do="steps", count=count)
        report = self._receive("steps")
        steps = [Step(**step) for step in report["steps"]]
        (self.result.steps if timed else self.result.warm_up).extend(steps)
        self.result.losses, self.result.values = report["losses"], report["values"]
        self.result.notes |= report["notes"]

    def _receive(self, kind: str) -> dict[str, Any]:
        try:
            message = self.channel.receive()
        except EOFError:
            raise SideFailed(f"{self.name} ended without a word; its log is {self.log}") from None
        if message["kind"] != kind:
            said = message.get("error", f"{message['kind']} instead of {kind}")
            raise SideFailed(f"{self.name}: {said} (log: {self.log})")
        return message


PEER_ALLOCATOR = {
    "MALLOC_MMAP_THRESHOLD_": str(LARGEST_KEPT), "MALLOC_TRIM_THRESHOLD_": str(MOST_FREE),
    PRIMITIVES: str(KERNELS), WRAPPED: str(WRAPPED_KERNELS),
}  # fmt: skip
"""We make these settings of glibc and oneDNN for ourselves (``rlhf.allocator``); anybody may make them for the peer, so it has them too."""


def python_of(side: str) -> Path:
    """The interpreter of a side's environment."""
    return Path(sys.executable) if side == "rlhf" else BENCH / side / "bin" / "python"


def module_of(side: str, case: Case) -> str:
    """What a side runs."""
    return f"benchmarks.peer.side_{ {'rlhf': 'rlhf', 'trl-ppo': 'trl_ppo'}.get(side, 'trl') }"


def environment(side: str, case: Case, reader: int, writer: int) -> dict[str, str]:
    """Of a side: as many threads as the case says, offline unless kernels may come from the hub, and no cache of another run."""
    return {
        **os.environ, **({} if side == "rlhf" else PEER_ALLOCATOR),
        "OMP_NUM_THREADS": str(case.threads), "MKL_NUM_THREADS": str(case.threads), "TOKENIZERS_PARALLELISM": "false",
        "PYTHONPATH": str(ROOT), "BENCH_READ_FD": str(reader), "BENCH_WRITE_FD": str(writer),
        "HF_HUB_OFFLINE": "1" if case.device == "cpu" else "0", "HF_HOME": str(BENCH / "hf"), "HF_DATASETS_DISABLE_CACHING": "1",
        "TRL_EXPERIMENTAL_SILENCE": "1", "TRANSFORMERS_VERBOSITY": "error", "PYTHONWARNINGS": "ignore",
    }  # fmt: skip


def build_model(case: Case) -> Path:
    """The folder of a case's model, made if it is not there."""
    folder = models.folder_of(BENCH, case)
    if not (folder / "model.safetensors").exists():
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run([sys.executable, *models.arguments_of(folder, case)], cwd=ROOT, check=True)
    return folder


def build_task(case: Case, rows: Sequence[Row], candidate: Candidate = PLAIN, **more: Any) -> dict[str, Any]:
    """What both sides are told."""
    return {
        "case": case.to_json(), "model": str(build_model(case)), "rows": list(rows), "candidate": dict(candidate.settings),
        "candidate_model": dict(candidate.model), "learning_rate": LEARNING_RATE.get(case.method, OTHERS_LEARNING_RATE),
        "beta": 2.0 if case.method == "simpo" else 0.1, "target_margin": 1.0, "simpo_gamma": 1.0, "forced": False, **more,
    }  # fmt: skip


def peer_of(case: Case) -> str:
    """The environment of the peer."""
    if case.device == "cuda":
        return "trl-gpu"
    return "trl-ppo" if case.method == "ppo" else "trl"


def run_case(case: Case, plan: Plan) -> dict[str, Any]:
    """One row: the peer's best settings, then both sides in turns.

    Returns:
        What goes into the row's file. Where the two sides did not compute the same, ``error`` says so and there is no ratio.
    """
    rows = draw_rows(case, count=case.rows * (WARM_UP + plan.steps), seed=plan.seed)
    record: dict[str, Any] = {"case": case.to_json(), "name": case.name, "plan": asdict(plan)}
    sides = [peer_of(case) if side == "trl" else side for side in plan.sides]
    candidate, trials = PLAIN, {}
    if len(sides) == 2 or sides[0] != "rlhf":
        candidate, trials = best_candidate(case, plan)
    record |= {"candidate": candidate.name, "candidates": trials}
    logs = BENCH / "logs" / case.name
    if len(sides) == 2 and case.method in ("grpo", "ppo"):
        record["asserted"] = compare_forced(case, sides, logs)
    task = build_task(case, rows, candidate)
    run = in_turns if plan.in_turns else one_after_the_other
    agreement = Agreement(case, task, sides, logs) if len(sides) == 2 and "asserted" not in record else None
    results = run(case, task, sides, logs, steps=plan.steps, agreement=agreement)
    for side, result in zip(sides, results, strict=True):
        drawn = [n for step in [*result.warm_up, *result.steps] for _, lengths in step.sequences or () for n in lengths]
        if drawn:
            check_lengths(case, side, drawn)
    if len(results) == 2:
        if agreement is not None:
            record["asserted"] = agreement.check(results)
        record |= summary(case, rows[WARM_UP * case.rows :], *results)
    if sides[0] == "rlhf":
        record["activities"] = activities_of(results[0])
    for result in results:
        result.ready = {}  # ids, compared by now
    names = ["rlhf" if side == "rlhf" else "trl" for side in sides]
    record["sides"] = dict(zip(names, map(asdict, results), strict=True))
    return record


def in_turns(
    case: Case, task: dict[str, Any], sides: Sequence[str], logs: Path, *, steps: int, agreement: Agreement | None
) -> list[SideResult]:
    """Let sides step in turns; they are compared after the first timed step, so that hours are not lost."""
    with ExitStack() as stack:
        running = [stack.enter_context(Side(side, case, task, logs / f"{side}.log")) for side in sides]
        for side in running:
            side.take(WARM_UP, timed=False)
        for step in range(steps):
            for side in running:
                side.take(1, timed=True)
            if step == 0 and agreement is not None:
                agreement.check([side.result for side in running])
    return [side.result for side in running]


class Agreement:
    """``compare`` for two sides; where they part in bf16, both take the same steps in float32 too, once, and are compared there."""

    def __init__(self, case: Case, task: dict[str, Any], sides: Sequence[str], logs: Path) -> None:
        self.case, self.task, self.sides, self.logs = case, task, sides, logs
        self.in_fp32: list[SideResult] = []

    def check(self, results: Sequence[SideResult]) -> str:
        """Assert that what both sides have done so far is the same.

        Returns:
            What was asserted, in words.
        """
        case = self.case
        try:
            return compare(case, self.task, *results)
        except Disagreement:
            if case.dtype != "bf16" or case.method == "generate":
                raise
        exact = replace(case, dtype="fp32")
        if not self.in_fp32:
            task = {**self.task, "case": exact.to_json()}
            steps = FORCED if task["forced"] else CHECKED
            self.in_fp32 = [
                alone(exact, task, name, self.logs / f"float32-{name}.log", steps=steps) for name in self.sides
            ]
        told = compare(exact, self.task, *self.in_fp32)
        return f"in float32, {told}; {check_rounding(case, (results[0], results[1]), self.in_fp32[1])}"


def alone(case: Case, task: dict[str, Any], side: str, log: Path, *, steps: int) -> SideResult:
    """What one side reports of its first steps, for a comparison."""
    with Side(side, case, task, log) as running:
        running.take(steps, timed=False)
    return running.result


def one_after_the_other(
    case: Case, task: dict[str, Any], sides: Sequence[str], logs: Path, *, steps: int, agreement: Agreement | None
) -> list[SideResult]:
    """Let each side run alone on the machine; the same steps on the same rows. They are compared afterwards."""
    results = []
    for name in sides:
        with Side(name, case, task, logs / f"{name}.log") as side:
            side.take(WARM_UP, timed=False)
            for _ in range(steps):
                side.take(1, timed=True)
        results.append(side.result)
    return results


def compare_forced(case: Case, sides: Sequence[str], logs: Path) -> str:
    """Let two sides that sample learn from the same completions for a few steps, and assert that they computed the same.

    Returns:
        What was asserted, in words.
    """
    rows = force_completions(draw_rows(case, count=case.rows * FORCED, seed=7), case, whole=case.method == "ppo")
    task = build_task(case, rows, forced=True, learning_rate=FORCED_LEARNING_RATE)
    results = [alone(case, task, name, logs / f"forced-{name}.log", steps=FORCED) for name in sides]
    return "on given completions, " + Agreement(case, task, sides, logs).check(results)


def run_row(case: Case, plan: Plan) -> dict[str, Any]:
    """``run_case``, and what went wrong in place of a ratio where something did."""
    try:
        return run_case(case, plan)
    except (SideFailed, Disagreement) as err:
        return {"case": case.to_json(), "name": case.name, "plan": asdict(plan), "error": str(err)}


def best_candidate(case: Case, plan: Plan) -> tuple[Candidate, dict[str, float | str]]:
    """The fastest of the peer's settings, by a few steps of each.

    Returns:
        The settings, and the seconds a step of all of them, or why one could not be tried. A pass of the reference that is made
        before the first step is spread over the steps of one epoch.

    Raises:
        SideFailed: None of them runs.
    """
    candidates = candidates_of(case)
    if plan.candidate is not None:
        return next(c for c in candidates if c.name == plan.candidate), {}
    if len(candidates) == 1:
        return candidates[0], {}
    there = packages_of(peer_of(case), {name for candidate in candidates for name in candidate.needs})
    told: dict[str, float | str] = {}
    seconds = {}
    for number, candidate in enumerate(candidates):
        missing = sorted(set(candidate.needs) - there)
        if missing:
            told[candidate.name] = f"{' and '.join(missing)} not installed"
            continue
        log = BENCH / "logs" / case.name / f"candidate-{number}.log"
        try:
            seconds[candidate.name] = told[candidate.name] = seconds_a_step(case, candidate, log, seed=plan.seed + 1)
        except SideFailed as err:
            told[candidate.name] = str(err)
    if not seconds:
        raise SideFailed(f"{peer_of(case)} runs with none of its settings: {told}")
    return min((c for c in candidates if c.name in seconds), key=lambda candidate: seconds[candidate.name]), told


def seconds_a_step(case: Case, candidate: Candidate, log: Path, *, seed: int) -> float:
    """Of the peer with some settings; where completions are sampled, for each of their tokens."""
    rows = draw_rows(case, count=case.rows * (1 + TRIAL), seed=seed)
    with Side(peer_of(case), case, build_task(case, rows, candidate), log) as side:
        side.take(1, timed=False)
        side.take(TRIAL, timed=True)
    reference = side.result.notes.get("reference_seconds", 0.0) / (1 + TRIAL)
    return statistics.median(map(per_unit, side.result.steps)) + reference


def packages_of(side: str, names: Collection[str]) -> set[str]:
    """Those of the packages that a side's environment has."""
    if not names:
        return set()
    code = "import sys, importlib.util as u; print(*(name for name in sys.argv[1:] if u.find_spec(name)))"
    command = [str(python_of(side)), "-c", code, *sorted(names)]
    return set(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())


def per_unit(step: Step) -> float:
    """Seconds of a step; where completions were sampled, for each of their tokens, because each side samples its own."""
    return step.seconds / (step.completion_tokens or 1)


def summary(case: Case, rows: Sequence[Row], ours: SideResult, theirs: SideResult) -> dict[str, Any]:
    """Ratios of pairs of steps, and what each side did with its time."""
    pairs = list(zip(ours.steps, theirs.steps, strict=True))
    ratios = [per_unit(their) / per_unit(our) for our, their in pairs]
    walls = [
        (their.wall_seconds / (their.completion_tokens or 1)) / (our.wall_seconds / (our.completion_tokens or 1))
        for our, their in pairs
    ]
    figures: dict[str, Any] = {
        "ratio": statistics.median(ratios), "ratios": ratios, "wall_ratio": statistics.median(walls),
        "memory_ratio": ours.peak_mib / theirs.peak_mib,
        "seconds": {"rlhf": statistics.median(o.seconds for o, _ in pairs), "trl": statistics.median(t.seconds for _, t in pairs)},
        "peak_mib": {"rlhf": ours.peak_mib, "trl": theirs.peak_mib},
        "resident_mib": {"rlhf": ours.resident_mib, "trl": theirs.resident_mib},
    }  # fmt: skip
    steps = len(ours.steps) + len(ours.warm_up)
    references = [side.notes.get("reference_seconds", 0.0) / steps for side in (ours, theirs)]
    if any(references):
        figures["ratio_one_epoch"] = statistics.median(
            (their.seconds + references[1]) / (our.seconds + references[0]) for our, their in pairs
        )
        figures["reference_seconds_per_step"] = {"rlhf": references[0], "trl": references[1]}
    flops = [useful_flop(case, tokens) for tokens in tokens_of(case, rows, ours)]
    rates = [flop / step.seconds for flop, step in zip(flops, ours.steps, strict=True)]
    figures["useful_flop"], figures["flop_per_second"] = statistics.median(flops), statistics.median(rates)
    figures["tokens"] = [asdict(tokens) for tokens in tokens_of(case, rows, ours)]
    return figures


def activities_of(ours: SideResult) -> dict[str, float]:
    """Processor seconds of each activity of the loop, a timed step on average."""
    told: list[dict[str, float]] = ours.notes["activities"]
    every = len(told) // (len(ours.warm_up) + len(ours.steps))  # optimizer steps in one step of the comparison
    before, after = told[every * len(ours.warm_up) - 1], told[-1]
    return {what: (seconds - before.get(what, 0.0)) / len(ours.steps) for what, seconds in after.items()}


def tokens_of(case: Case, rows: Sequence[Row], ours: SideResult) -> list[Any]:
    """What each timed step of ours worked on."""
    if not case.is_sampled:
        return [count_tokens(part, scores_tokens=case.method != "reward") for part in steps_of(rows, case)]
    return [
        count_tokens(
            [
                {"prompt": range(prompt), "completions": [range(n) for n in lengths]}
                for prompt, lengths in step.sequences or []
            ]
        )
        for step in ours.steps
    ]
