"""Kills runs with SIGKILL at random moments, starts them again with the same command, and compares with a run that nobody killed.

    python tools/kill_proof.py                                           the table: every recipe below, 50 kills, about 20 minutes
    python tools/kill_proof.py --recipe recipes/quickstart.yaml --kills 5 --seed 3
    python tools/kill_proof.py --write docs/results/kills.md

A run must end with the same bits: every file of every stage (weights, rollouts, evaluation), every metric of every step, and the
summary, all without their times. Kills fall on random places of the run's log; every fourth one waits for a checkpoint that is
just being written, and every fifth one falls while the process starts.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
TABLE = (
    ("recipes/quickstart.yaml", (), 20),
    ("recipes/quickstart_grpo.yaml", (), 10),
    ("recipes/quickstart_dpo.yaml", (), 10),
    ("recipes/quickstart.yaml", ("--until", "reward"), 10),
)
"""Recipe, options, kills."""
POLL_SECONDS = 0.002
TIMES = {"seconds", "created", "time", "finished"}
"""Keys of records that say when or how long."""
LOG_WITH_TIMES = "inspect_log.json"
"""Inspect's own format has the time in it, and two names that are made of the time."""
PATIENCE_EVENTS = 120
"""Lines of the log after which a kill no longer waits for a checkpoint to be written."""
PATIENCE_SECONDS = 900.0
"""A process that shows no progress for this long hangs."""


@dataclass
class Kill:
    """One process that was killed."""

    how: str
    """``log``: at a place of the log; ``saving``: while a checkpoint was written; ``start``: soon after the start."""
    seconds: float
    """It had lived."""
    stage: str
    """That was under way."""


@dataclass
class Proof:
    """What became of one recipe."""

    command: str
    kills: list[Kill] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)
    seconds_whole: float = 0.0
    seconds_killed: float = 0.0
    files: int = 0
    metrics: int = 0

    @property
    def same(self) -> bool:
        """Whether nothing differs."""
        return not self.differences


class Run:
    """One run folder, worked on by one process after another."""

    def __init__(self, command: Sequence[str], folder: Path) -> None:
        self.command, self.folder = list(command), folder
        self.console = folder.parent / f"{folder.name}.log"
        self.process: subprocess.Popen[bytes] | None = None
        self.began = 0.0
        self.log_before: tuple[int, int] | None = None

    def start(self) -> None:
        """A new process, in a group of its own so that its children die with it."""
        with self.console.open("ab") as out:
            self.process = subprocess.Popen(
                self.command, stdout=out, stderr=subprocess.STDOUT, start_new_session=True, cwd=ROOT
            )
        self.began = time.monotonic()
        self.log_before = self.log_state()

    def log_state(self) -> tuple[int, int] | None:
        """Another one whenever something was written to the log."""
        path = self.folder / "events.jsonl"
        try:
            status = path.stat()
        except FileNotFoundError:
            return None
        return status.st_mtime_ns, status.st_size

    @property
    def alive(self) -> bool:
        """Whether the process still runs."""
        assert self.process is not None
        return self.process.poll() is None

    def kill(self) -> float:
        """SIGKILL; how long it had lived."""
        assert self.process is not None
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        return time.monotonic() - self.began

    def finish(self) -> None:
        """Wait for the end; anything but success is our failure."""
        assert self.process is not None
        if self.process.wait() != 0:
            raise SystemExit(
                f"{shlex.join(self.command)} failed; see {self.console}:\n{self.console.read_text()[-2000:]}"
            )

    def num_events(self) -> int:
        """Whole lines in the log."""
        path = self.folder / "events.jsonl"
        return path.read_bytes().count(b"\n") if path.exists() else 0

    def is_saving(self) -> bool:
        """Whether a checkpoint is being written."""
        return any(self.folder.glob("*/.checkpoint-*.tmp"))

    def stage(self) -> str:
        """That is under way."""
        started = [event["stage"] for event in events(self.folder) if event["event"] == "stage_start"]
        return started[-1] if started else "none"


def prove(
    recipe: str, options: Sequence[str], kills: int, *, seed: int, work: Path, overrides: Sequence[str] = ()
) -> Proof:
    """Run a recipe twice, once in peace and once with kills, and compare."""
    program = [sys.executable, "-m", "rlhf", "run", recipe, *options, *overrides]
    proof = Proof(shlex.join(["rlhf", "run", recipe, *options, *overrides]))
    whole = Run([*program, f"output_dir={work / 'whole'}"], work / "whole" / _name_of(recipe, overrides))
    hurt = Run([*program, f"output_dir={work / 'killed'}"], work / "killed" / _name_of(recipe, overrides))
    for run in (whole, hurt):
        run.folder.parent.mkdir(parents=True)
    whole.start()
    whole.finish()
    proof.seconds_whole = time.monotonic() - whole.began
    began = time.monotonic()
    for how, place in plan_kills(kills, whole.num_events(), random.Random(f"kills {seed} {whole.folder.name}")):
        hurt.start()
        came = wait_for(hurt, how, place)
        if came is None:
            break  # it came to its end first
        stage, lived = hurt.stage(), hurt.kill()
        proof.kills.append(Kill(came, lived, stage))
    else:
        hurt.start()
    hurt.finish()
    proof.seconds_killed = time.monotonic() - began
    proof.differences = list(differences(whole.folder, hurt.folder, proof))
    if len(proof.kills) < kills:
        proof.differences.append(f"only {len(proof.kills)} of {kills} kills came before the end")
    return proof


def plan_kills(count: int, num_events: int, rng: random.Random) -> list[tuple[str, float]]:
    """How and where: places of the log in rising order, or seconds after the start."""
    places = sorted(rng.uniform(0, 0.97 * num_events) for _ in range(count))
    kills: list[tuple[str, float]] = []
    for number, place in enumerate(places, start=1):
        if number % 5 == 0:
            kills.append(("start", rng.uniform(0.2, 6.0)))
        else:
            kills.append(("saving" if number % 4 == 0 else "log", place))
    return kills


def wait_for(run: Run, how: str, place: float) -> str | None:
    """Wait for the moment; which kind it was, or None where the run ended before it came."""
    since, seen, now = time.monotonic(), run.log_before, run.num_events()
    while run.alive:
        time.sleep(POLL_SECONDS)
        if how == "start" and time.monotonic() - run.began >= place:
            return how
        if (state := run.log_state()) != seen:
            since, seen, now = time.monotonic(), state, run.num_events()
        elif time.monotonic() - since > PATIENCE_SECONDS:
            run.kill()
            raise SystemExit(f"{shlex.join(run.command)} hangs; see {run.console}")
        if how == "start" or seen == run.log_before:
            continue  # before it has written anything a kill would only hit its start
        if how == "saving" and now >= place and run.is_saving():
            return how
        if now >= place + (PATIENCE_EVENTS if how == "saving" else 0):
            time.sleep(place % 1)  # not always just after a line was written
            return "log" if run.alive else None
    return None


def differences(whole: Path, hurt: Path, proof: Proof) -> Iterator[str]:
    """Everything that is not the same, in words; counts what was compared."""
    for record in sorted(whole.glob("*/artifact.json")):
        stage = record.parent.name
        mine, theirs = (_without_times(json.loads(path.read_text())) for path in (record, hurt / stage / record.name))
        proof.files += len(mine["files"])
        for name in sorted({*mine["files"], *theirs["files"]}):
            if bits_of(record.parent / name, mine["files"].get(name)) != bits_of(
                hurt / stage / name, theirs["files"].get(name)
            ):
                yield f"{stage}/{name} has other bytes"
        if {**mine, "files": 0} != {**theirs, "files": 0}:
            yield f"{stage}: the record differs in {[key for key in mine if mine[key] != theirs.get(key)]}"
    mine_metrics, their_metrics = metrics_of(whole), metrics_of(hurt)
    proof.metrics = sum(len(metrics) for *_, metrics in mine_metrics)
    if mine_metrics != their_metrics:
        odd = next((a for a, b in zip(mine_metrics, their_metrics, strict=False) if a != b), "one is longer")
        yield f"events.jsonl: {len(mine_metrics)} and {len(their_metrics)} records, the first difference at {str(odd)[:200]}"
    first, second = (_without_times(json.loads((folder / "summary.json").read_text())) for folder in (whole, hurt))
    if first != second:
        yield f"summary.json differs in {[key for key in first if first[key] != second.get(key)]}"


def bits_of(path: Path, recorded: str | None) -> str | None:
    """What two runs have in common of a file: the hash that its stage recorded, or, of a log that says when, all but its times."""
    if path.name != LOG_WITH_TIMES or recorded is None:
        return recorded
    log = json.loads(path.read_text(encoding="utf-8"))
    log["eval"] = {key: value for key, value in log["eval"].items() if key not in ("created", "eval_id", "run_id")}
    log["stats"] = {key: value for key, value in log["stats"].items() if key not in ("started_at", "completed_at")}
    return json.dumps(log, sort_keys=True)


def events(folder: Path) -> list[dict[str, Any]]:
    """Whole lines of a run's log."""
    rows = []
    path = folder / "events.jsonl"
    for line in path.read_bytes().split(b"\n") if path.exists() else ():
        try:
            rows.append(json.loads(line))
        except ValueError:
            continue  # the line that the kill cut
    return rows


def metrics_of(folder: Path) -> list[tuple[str, str, int, dict[str, Any]]]:
    """Stage, kind, step and numbers of every metric and alarm, in the order of the log."""
    kinds = ("metrics", "eval", "alarm")
    return [
        (e["stage"], e["event"], e.get("step", 0), e.get("metrics") or {"message": e.get("message")})
        for e in events(folder)
        if e["event"] in kinds
    ]


def _without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_times(item) for key, item in value.items() if key not in TIMES}
    return [_without_times(item) for item in value] if isinstance(value, list) else value


def _name_of(recipe: str, overrides: Sequence[str]) -> str:
    from rlhf.config.recipe import load_recipe

    return load_recipe(ROOT / recipe, list(overrides)).name


def to_markdown(proofs: Sequence[Proof], seed: int) -> str:
    """The page."""
    from rlhf.pipeline.run import machine, versions

    about, packages = machine(), versions()
    lines = [
        "# Killed and gone on: the same bits",
        "",
        "<!-- written by tools/kill_proof.py; do not edit by hand -->",
        "",
        f"Made by `python tools/kill_proof.py --seed {seed} --write docs/results/kills.md` on {about['cpu']}, "
        f"{about['threads']} thread{'' if about['threads'] == 1 else 's'}; "
        f"torch {packages['torch']}.",
        "",
        "Each recipe runs once in peace and once with SIGKILL at random moments, started again each time with the same command.",
        "Compared are the sha256 of every file of every stage, every metric of every step, and the summary, without their times.",
        "",
        "| command | kills | while saving | while starting | stages hit | files | numbers | differences | in peace, s | killed, s |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for proof in proofs:
        how = [kill.how for kill in proof.kills]
        stages = ", ".join(dict.fromkeys(kill.stage for kill in proof.kills if kill.stage != "none"))
        lines.append(
            f"| `{proof.command}` | {len(how)} | {how.count('saving')} | {how.count('start')} | {stages} | {proof.files} "
            f"| {proof.metrics} | {len(proof.differences) or 'none'} | {proof.seconds_whole:.0f} | {proof.seconds_killed:.0f} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """See the top of this file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--recipe", help="Only this one.")
    parser.add_argument("--kills", type=int, default=10, help="With --recipe: how many.")
    parser.add_argument("--until", help="With --recipe: stop after this stage.")
    parser.add_argument("--seed", type=int, default=0, help="Decides the moments.")
    parser.add_argument("--write", type=Path, help="Page to write.")
    parser.add_argument("--keep", type=Path, help="Folder for the runs, which then stay.")
    arguments = parser.parse_args()
    options = ("--until", arguments.until) if arguments.until else ()
    table = [(arguments.recipe, options, arguments.kills)] if arguments.recipe else TABLE
    proofs = []
    for number, (recipe, more, kills) in enumerate(table):
        work = (arguments.keep or Path(tempfile.mkdtemp(prefix="rlhf-kills-"))) / str(number)
        work.mkdir(parents=True)
        proof = prove(recipe, more, kills, seed=arguments.seed, work=work)
        proofs.append(proof)
        verdict = "the same bits" if proof.same else "DIFFERENT: " + "; ".join(proof.differences)
        print(
            f"{proof.command}: {len(proof.kills)} kills, {verdict} ({proof.seconds_whole:.0f} s in peace)", flush=True
        )
        for kill in proof.kills:
            print(f"    {kill.how:<8} after {kill.seconds:5.1f} s, in {kill.stage}", flush=True)
        if arguments.keep is None and proof.same:
            shutil.rmtree(work.parent)
    if arguments.write:
        arguments.write.write_text(to_markdown(proofs, arguments.seed), encoding="utf-8")
    sys.exit(0 if all(proof.same for proof in proofs) else 1)


if __name__ == "__main__":
    main()
