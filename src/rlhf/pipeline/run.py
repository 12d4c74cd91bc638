"""Runs a recipe: stage after stage, each skipped where its artifact is already what the recipe asks for."""

from __future__ import annotations

import fcntl
import json
import math
import os
import platform
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
import yaml
from rich.console import Console

import rlhf
from rlhf.config.recipe import RecipeConfig
from rlhf.errors import ConfigError, RLHFError
from rlhf.files import write_json, write_text
from rlhf.pipeline.artifacts import Artifact, StagePlan, code_version, plan_stage, stage_files
from rlhf.pipeline.report import write_report
from rlhf.pipeline.stages import STAGES, StageContext
from rlhf.training.log import RunLog

PACKAGES = ("torch", "transformers", "tokenizers", "peft", "datasets", "numpy", "pydantic", "safetensors")


class Pipeline:
    """A recipe and its run folder.

    Args:
        recipe: What to run.
        console: Where people look; None is silent.
    """

    def __init__(self, recipe: RecipeConfig, *, console: Console | None = None) -> None:
        self.recipe = recipe
        self.run_dir = Path(recipe.output_dir) / recipe.name
        self.log = RunLog(self.run_dir, console=console)
        self.artifacts: dict[str, Artifact] = {}

    def run(self) -> dict[str, Any]:
        """Run every stage that is not there yet, write manifest, summary and report.

        Returns:
            The summary (see ``_summary``).
        """
        if self.recipe.threads is not None:
            torch.set_num_threads(self.recipe.threads)
        self.run_dir.mkdir(parents=True, exist_ok=True)
        with locked(self.run_dir):
            return self._run_stages()

    def _run_stages(self) -> dict[str, Any]:
        self._write_recipe()
        keys: dict[str, str] = {}
        for name in self.recipe.stages:
            plan = plan_stage(name, self.recipe, keys)
            keys[name] = plan.key
            self.artifacts[name] = self._run_stage(name, plan)
            self._write_manifest()
            write_json(self.run_dir / "summary.json", self._summary())
        report = write_report(self.run_dir)
        models = [name for name in self.recipe.stages if (self.run_dir / name / "model").is_dir()]
        if models:
            self.log.say(f"[bold]model        [/]{self.run_dir / models[-1] / 'model'}")
        self.log.say(f"[bold]report       [/]{report}")
        return self._summary()

    def _run_stage(self, name: str, plan: StagePlan) -> Artifact:
        stage = self.recipe.stages[name]
        folder = self.run_dir / name
        found = Artifact.read(folder)
        if found is not None and found.key == plan.key:
            self._line(name, found.headline, "kept")
            return found
        if found is not None:
            self.log.say(f"{name}: its settings, inputs or code changed since it was made; doing it again")
        self._prepare(folder, plan.key)
        log = self.log.for_stage(name, log_to=getattr(stage, "log_to", ()))
        log.write("stage_start", kind=stage.kind, key=plan.key)
        began = time.monotonic()
        try:
            outcome = STAGES[stage.kind](stage, StageContext(name, self.run_dir, log))
        except RLHFError as err:
            log.write("stage_failed", message=str(err))
            err.add_note(f"In stage {name!r} of {self.run_dir}; what was finished before it is kept.")
            raise
        seconds = time.monotonic() - began
        artifact = Artifact(
            stage=name,
            kind=stage.kind,
            key=plan.key,
            seconds=round(seconds, 2),
            headline=outcome.headline,
            metrics=_finite(outcome.metrics),
            parents=plan.parents,
            files=stage_files(folder),
        )
        artifact.write(folder)
        for checkpoint in folder.glob("checkpoint-*"):
            shutil.rmtree(checkpoint)  # the model folder is the result; a finished stage is never resumed
        log.write("stage_end", seconds=artifact.seconds, message=outcome.headline)
        self._line(name, outcome.headline, f"{seconds:.0f} s")
        return artifact

    def _prepare(self, folder: Path, key: str) -> None:
        """An empty folder for the stage, or one with checkpoints of the same key, from which it goes on."""
        marker = folder / "key.txt"
        if folder.exists() and (not marker.exists() or marker.read_text(encoding="utf-8") != key):
            shutil.rmtree(folder)
        write_text(marker, key)

    def _line(self, name: str, headline: str, note: str) -> None:
        self.log.say(f"[bold]{name:<12}[/] {headline} [dim]({note})[/]")

    def _write_recipe(self) -> None:
        tree = self.recipe.model_dump(mode="json")
        write_text(self.run_dir / "recipe.yaml", yaml.safe_dump(tree, sort_keys=False, allow_unicode=True, width=120))

    def _write_manifest(self) -> None:
        write_json(
            self.run_dir / "manifest.json",
            {
                "run": self.recipe.name,
                "created": datetime.now(UTC).isoformat(timespec="seconds"),
                "machine": machine(),
                "versions": versions(),
                "code": {"rlhf": rlhf.__version__, "sha256": code_version()},
                "artifacts": {
                    name: {
                        "kind": a.kind,
                        "key": a.key,
                        "parents": a.parents,
                        "seconds": a.seconds,
                        "files": a.files,
                    }
                    for name, a in self.artifacts.items()
                },
            },
        )

    def _summary(self) -> dict[str, Any]:
        """The outcome for machines; a number that no stage measured is null."""
        measured: dict[str, Any] = {}
        for artifact in self.artifacts.values():
            if artifact.kind == "evaluate":
                measured.update(artifact.metrics)
        alarms = [e for e in read_events(self.run_dir) if e.get("event") == "alarm"]
        wanted = ("win_rate", "win_rate_low", "win_rate_high", "reward_accuracy", "kl", "gold_before", "gold_after")
        return {
            "run": self.recipe.name,
            **{name: measured.get(name) for name in wanted},
            "gates": [],
            "alarms": [{"stage": e["stage"], "message": e.get("message", "")} for e in alarms],
            "stages": {
                name: {"kind": a.kind, "seconds": a.seconds, "headline": a.headline, "metrics": a.metrics}
                for name, a in self.artifacts.items()
            },
        }


@contextmanager
def locked(run_dir: Path) -> Iterator[None]:
    """Keep other processes out of a run folder; the system lets go of the lock however this process ends.

    Raises:
        ConfigError: Another live process has the folder.
    """
    with (run_dir / ".lock").open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.seek(0)
            raise ConfigError(
                f"{run_dir} is in use by another run ({file.read().strip() or 'owner unknown'}); wait for it, or give another name=."
            ) from None
        file.truncate(0)
        file.write(f"process {os.getpid()} since {datetime.now().isoformat(timespec='seconds')}\n")
        file.flush()
        yield


def read_events(run_dir: Path) -> list[dict[str, Any]]:
    """All whole lines of events.jsonl."""
    path = run_dir / "events.jsonl"
    events = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            events.append(json.loads(line))
        except json.JSONDecodeError:
            continue  # the last line of a killed process may be half written
    return events


def machine() -> dict[str, Any]:
    """What the run ran on."""
    found: dict[str, Any] = {
        "system": f"{platform.system()} {platform.release()}",
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "python": sys.version.split()[0],
    }
    if torch.cuda.is_available():
        found["gpus"] = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return found


def versions() -> dict[str, str]:
    """Installed versions of the packages that decide results."""
    return {"rlhf": rlhf.__version__, **{name: metadata.version(name) for name in PACKAGES}}


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.processor()
    )


def _finite(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """JSON has no NaN; what was not measured is null."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in metrics.items()
    }
