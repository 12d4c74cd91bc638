"""Runs of `recipes/cluster_ppo.yaml` in short, to whose processes a drill does something from outside (``tools/ray_drills.py``)."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RECIPE = "recipes/cluster_ppo.yaml"
SHORT = (
    "stages.sft.max_steps=20", "stages.preferences.num_pairs=100", "stages.reward.epochs=1", "stages.ppo.rollouts=6",
    "stages.ppo.prompts_per_rollout=64", "device=cpu", "launch.pools.engines.cpus=0.5", "launch.pools.engines.prompts_per_unit=16",
)  # fmt: skip
"""Of the recipe, so that a run takes seconds."""
MARK = "RLHF_RAY_DRILL"
"""Environment variable that tells the processes of one drill from everyone else's."""
PATIENCE_SECONDS = 300.0
ACTOR = "ray::Host"
"""How the title of an actor's process begins; while it answers a call, ``.`` and the method's name follow."""
CATCHES = 4
"""Runs in which an engine may be missed: a rollout takes a second."""


class DrillRun:
    """The recipe in a process, and the processes that Ray started for it."""

    def __init__(self, work: Path, name: str, *settings: str, variables: Mapping[str, str] | None = None) -> None:
        self.name = name
        self.folder = work / name / "cluster_ppo"
        if not self.folder.exists():
            shutil.copytree(prepared(work), self.folder)
        self.mark = uuid.uuid4().hex
        self.console = work / f"{name}.log"
        command = [
            sys.executable,
            "-m",
            "rlhf",
            "run",
            RECIPE,
            "--until",
            "ppo",
            *SHORT,
            *settings,
            f"output_dir={work / name}",
        ]
        with self.console.open("ab") as out:
            self.process = subprocess.Popen(
                command,
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
                start_new_session=True,
                env={**os.environ, **(variables or {}), MARK: self.mark},
            )
        atexit.register(self.kill)

    def kill(self) -> None:
        """End it, where a drill was broken off; Ray's processes end with it."""
        if self.process.poll() is None:
            self.process.kill()

    def events(self, kind: str) -> list[dict[str, Any]]:
        """Of the stage `ppo`."""
        lines = (self.folder / "events.jsonl").read_text(encoding="utf-8").splitlines()
        rows = []
        for line in lines:
            with contextlib.suppress(ValueError):
                rows.append(json.loads(line))
        return [row for row in rows if row.get("stage") == "ppo" and row["event"] == kind]

    def processes(self) -> list[int]:
        """Numbers of the actors' processes."""
        return [number for number, _ in marked(self.mark, titles=ACTOR)]

    def scored(self) -> list[dict[str, Any]]:
        """Rollouts that were learned from."""
        return [event for event in self.events("metrics") if "ppo/score_mean" in event["metrics"]]

    def wait_for_rollout(self, count: int) -> int | None:
        """Until so many rollouts were learned from and an engine samples the next; that engine's process, None where the run ended first."""
        self.wait_for_score(count)
        deadline = time.monotonic() + PATIENCE_SECONDS
        actors = self.processes()  # once: a machine may have thousands of processes, and a rollout takes a second
        while self.process.poll() is None:
            for number in actors:
                with contextlib.suppress(OSError):
                    if title(number).startswith(f"{ACTOR}."):
                        return number
            if time.monotonic() > deadline:
                raise SystemExit(f"no engine sampled rollout {count}{self._state()}")
            time.sleep(0.002)
        return None

    def wait_for_score(self, count: int) -> None:
        """Until so many rollouts were learned from."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while len(self.scored()) < count:
            if time.monotonic() > deadline or self.process.poll() is not None:
                raise SystemExit(f"rollout {count} was not learned from{self._state()}")
            time.sleep(0.01)

    def _state(self) -> str:
        """What one wants to know of a run that did not do what a drill waited for."""
        end = self.console.read_text(encoding="utf-8", errors="replace")[-4000:]
        return f": {len(self.scored())} rollouts done, exit code {self.process.poll()}, processes {marked(self.mark)}; its output ends:\n{end}"

    def finish(self) -> tuple[int, str]:
        """Exit code, and what was printed."""
        code = self.process.wait(PATIENCE_SECONDS)
        return code, self.console.read_text(encoding="utf-8", errors="replace")

    def wait_for_alarm(self) -> float | None:
        """Seconds until the log has an alarm about the pool; None for a run that ended without one."""
        began = time.monotonic()
        while time.monotonic() - began < PATIENCE_SECONDS and self.process.poll() is None:
            if any("pool `engines`" in str(event.get("message")) for event in self.events("alarm")):
                return time.monotonic() - began
            time.sleep(0.01)
        if self.process.poll() is None:
            raise SystemExit(f"no alarm came{self._state()}")
        return None


def title(number: int) -> str:
    """Of a process; OSError where it is gone."""
    return Path(f"/proc/{number}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")


def marked(mark: str, *, titles: str = "") -> list[tuple[int, str]]:
    """(number, title) of the processes that live with this mark in their environment, and whose titles begin so."""
    processes = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):
                found = title(int(folder.name))
                if found.startswith(titles) and f"{MARK}={mark}".encode() in (folder / "environ").read_bytes():
                    processes.append((int(folder.name), found))
    return processes


def wait_until_gone(mark: str) -> float:
    """Seconds until no process of a drill lives."""
    began = time.monotonic()
    while marked(mark):
        if time.monotonic() - began > PATIENCE_SECONDS:
            raise SystemExit(f"left behind: {marked(mark)}")
        time.sleep(0.05)
    return time.monotonic() - began


def prepared(work: Path) -> Path:
    """A run folder whose stages before `ppo` are done; made once."""
    folder = work / "prepared" / "cluster_ppo"
    if not folder.exists():
        command = [sys.executable, "-m", "rlhf", "run", RECIPE, "--until", "reward", "--quiet", *SHORT]
        subprocess.run([*command, f"output_dir={work / 'prepared'}"], cwd=ROOT, check=True)
    return folder


def undisturbed(work: Path) -> Path:
    """The folder of the undisturbed run; made once."""
    folder = work / "peace" / "cluster_ppo"
    if not (folder / "ppo" / "artifact.json").exists():
        code, said = DrillRun(work, "peace").finish()
        if code:
            raise SystemExit(said)
    return folder


def bits(folder: Path) -> tuple[dict[str, str], list[Any]]:
    """Hashes of the files of the stage `ppo`, and its metrics."""
    artifact = json.loads((folder / "ppo" / "artifact.json").read_text(encoding="utf-8"))
    rows = map(json.loads, (folder / "events.jsonl").read_text(encoding="utf-8").splitlines())
    return artifact["files"], [
        (row["step"], row["metrics"]) for row in rows if (row["event"], row["stage"]) == ("metrics", "ppo")
    ]


def same_bits(run: DrillRun, work: Path) -> str:
    """In words; empty where they differ."""
    code, _ = run.finish()
    return "same bits" if code == 0 and bits(run.folder) == bits(undisturbed(work)) else ""


def sampling(work: Path, name: str, *settings: str) -> tuple[DrillRun, int]:
    """A run, and the process of an engine that samples its third rollout; once more where it ended before one was seen at that."""
    for attempt in range(CATCHES):
        run = DrillRun(work, f"{name}-{attempt}", *settings)
        if (engine := run.wait_for_rollout(2)) is not None:
            return run, engine
    raise SystemExit(f"{name}: no engine was caught at work in {CATCHES} runs")


def caught(work: Path, name: str, how: signal.Signals, *settings: str) -> tuple[DrillRun, float]:
    """A run of which an engine was sent a signal while it sampled, and seconds to the alarm; once more where its work was done by then."""
    for attempt in range(CATCHES):
        run, engine = sampling(work, f"{name}-{attempt}", *settings)
        os.kill(engine, how)
        if (seconds := run.wait_for_alarm()) is not None:
            return run, seconds
    raise SystemExit(f"{name}: no engine was caught at work in {CATCHES} runs")
