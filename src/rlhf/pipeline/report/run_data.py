"""Reads a run folder for the report: whatever exists, and why the rest is missing.

Nothing here computes results. An absent or unreadable part becomes a line under ``missing``, which the report
shows; no part of a run folder can make the report fail.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlhf.config.yaml_text import parse_yaml
from rlhf.errors import ConfigError, with_article
from rlhf.evaluation.verdict import Verdict, verdict
from rlhf.evaluation.verdict_inputs import Evidence
from rlhf.formatting import mapping, number
from rlhf.pipeline.kinds import EVALUATION, REWARD_MODEL, UNCERTIFIED
from rlhf.pipeline.leakage import Leakage, recorded_leakage
from rlhf.pipeline.lock import is_locked
from rlhf.pipeline.verdicts import independence_of

RECORD = "artifact.json"
"""As in ``rlhf.pipeline.artifacts``, which imports torch."""


@dataclass(slots=True)
class StageRecord:
    """What is known about one stage, from any file."""

    name: str
    kind: str = ""
    seconds: float | None = None
    headline: str = ""
    status: str = "not run"
    """not run, running, broken off, stopped, failed, kept, done."""
    started: float | None = None
    """Epoch seconds of the newest start."""
    curves: dict[str, dict[int, float]] = field(default_factory=dict)
    """Metric -> step -> value; of the newest attempt with the present settings."""
    alarms: list[Mapping[str, Any]] = field(default_factory=list)
    notes: list[Mapping[str, Any]] = field(default_factory=list)
    uncertified: list[str] = field(default_factory=list)
    """Why judges of its newest start are not to be relied on yet, a sentence each."""
    evaluation: Mapping[str, Any] | None = None
    """Its evaluation.json."""
    seen: Leakage | None = None
    """What training saw of the data and models that it is measured with; None if not recorded."""
    capabilities: Mapping[str, Any] | None = None
    """Its capabilities.json: suites before and after."""
    gate: Mapping[str, Any] | None = None
    """Its gate.json: what a gate decided, and why."""
    releases: Mapping[str, Any] | None = None
    """Its registry.json: the registry's history after the decision."""
    profile: Mapping[str, Any] | None = None
    """Its profile.json: where its time went."""
    judge_rewards: Mapping[str, Any] | None = None
    """Its judge_rewards.json: what its judges were asked."""

    @property
    def verdict(self) -> Verdict:
        """On its evaluation."""
        return verdict(Evidence.of(self.evaluation or {}, independence_of(self.seen)))

    @property
    def state(self) -> str:
        """Its status; while it runs, with its progress (``running, step 120``)."""
        steps = [max(curve) for curve in self.curves.values() if curve] if self.status == "running" else []
        return f"{self.status}, step {max(steps):,}" if steps else self.status


@dataclass(slots=True)
class RunRecord:
    """A run folder."""

    folder: Path
    name: str
    description: str = ""
    recipe: str | None = None
    """recipe.yaml as text."""
    manifest: Mapping[str, Any] = field(default_factory=dict)
    summary: Mapping[str, Any] = field(default_factory=dict)
    stages: dict[str, StageRecord] = field(default_factory=dict)
    """In the order of the recipe."""
    missing: dict[str, str] = field(default_factory=dict)
    """File -> why it could not be used."""
    running: bool = False
    """Whether another process is currently running it."""

    @property
    def evaluations(self) -> list[tuple[StageRecord, Mapping[str, Any]]]:
        """Every comparison of two policies, with its stage, in the order of the recipe."""
        return self._parted("win_rate")

    @property
    def compares(self) -> bool:
        """Whether policies were compared, or should have been: if the recipe has no such stage, nothing is missing."""
        return not (self.recipe and self.stages) or any(
            s.evaluation or s.kind == EVALUATION for s in self.stages.values()
        )

    @property
    def reward_models(self) -> list[tuple[list[StageRecord], Mapping[str, Any]]]:
        """Every measurement of a reward model, with the stages that made it; equal ones of several stages are listed once."""
        models: list[tuple[list[StageRecord], Mapping[str, Any]]] = []
        for stage, evaluation in self._parted("reward_model"):
            same = next((stages for stages, quality in models if quality == evaluation["reward_model"]), None)
            if same is None:
                models.append(([stage], evaluation["reward_model"]))
            else:
                same.append(stage)
        return models

    @property
    def accuracy_in_training(self) -> tuple[StageRecord, float] | None:
        """The accuracy on held-out rows with which the last training of a reward model ended, with its stage."""
        accuracies = [
            (s, curve[max(curve)])
            for s in self.stages.values()
            if s.kind == REWARD_MODEL
            and (curve := s.curves.get("eval/accuracy"))  # preference stages have one of the policy
        ]
        return accuracies[-1] if accuracies else None

    @property
    def judged(self) -> list[tuple[StageRecord, Mapping[str, Any]]]:
        """Every evaluation that judged a training run's rollouts, with its stage."""
        return self._parted("curve")

    def _parted(self, name: str) -> list[tuple[StageRecord, Mapping[str, Any]]]:
        """Every evaluation.json with a part of that name."""
        return [(s, s.evaluation) for s in self.stages.values() if s.evaluation and has(s.evaluation, name)]

    def parts(self, name: str) -> list[tuple[StageRecord, Mapping[str, Any]]]:
        """Every part of that name in an evaluation, with its stage."""
        return [
            (s, mapping(s.evaluation[name])) for s in self.stages.values() if s.evaluation and has(s.evaluation, name)
        ]


def read_run(folder: Path | str) -> RunRecord:
    """Read a run folder."""
    folder = Path(folder)
    run = RunRecord(folder=folder, name=folder.resolve().name)
    recipe = _read_recipe(run)
    run.manifest = _read_object(run, "manifest.json", "lineage, versions and machine are unknown")
    run.summary = _read_object(run, "summary.json", "the outcome of stages is taken from the log")
    if isinstance(name := run.manifest.get("run") or recipe.get("name"), str):
        run.name = name
    run.description = str(recipe.get("description") or "")
    artifacts, summaries = mapping(run.manifest.get("artifacts")), mapping(run.summary.get("stages"))
    asked = mapping(recipe.get("stages"))
    for stage in dict.fromkeys((*asked, *artifacts, *summaries)):
        record = _stage(run, stage)
        for source in (mapping(asked.get(stage)), mapping(artifacts.get(stage)), mapping(summaries.get(stage))):
            record.kind = str(source.get("kind") or record.kind)
            record.seconds = number(source.get("seconds"), record.seconds)
            record.headline = str(source.get("headline") or record.headline)
        if stage in artifacts or stage in summaries:
            record.status = "done"
    _read_events(run)
    run.running = is_locked(folder, by_others=True)
    for stage, record in run.stages.items():
        if record.status != "broken off":
            continue
        if (folder / stage / RECORD).is_file():  # killed between its record and the log's last line
            record.status, record.headline = "done", str(mapping(summaries.get(stage)).get("headline") or "")
        elif run.running:
            record.status = "running"
    for path in sorted(folder.glob("*/evaluation.json")):
        document = _read_object(run, str(path.relative_to(folder)), "")
        _stage(run, path.parent.name).evaluation = document or None
    for path in sorted(folder.glob("*/capabilities.json")):
        document = _read_object(run, str(path.relative_to(folder)), "")
        _stage(run, path.parent.name).capabilities = document or None
    for path in sorted(folder.glob("*/gate.json")):
        gated = _stage(run, path.parent.name)
        gated.gate = _read_object(run, str(path.relative_to(folder)), "") or None
        history = path.with_name("registry.json")
        if history.is_file():
            gated.releases = _read_object(run, str(history.relative_to(folder)), "") or None
    for path in sorted(folder.glob("*/judge_rewards.json")):
        document = _read_object(run, str(path.relative_to(folder)), "")
        _stage(run, path.parent.name).judge_rewards = document or None
    for path in sorted(folder.glob("*/profile.json")):
        document = _read_object(run, str(path.relative_to(folder)), "")
        _stage(run, path.parent.name).profile = document or None
    for record, _ in run.evaluations:
        record.seen = recorded_leakage(folder / record.name) or _leakage_by_names(recipe, record.name)
    return run


def _leakage_by_names(recipe: Mapping[str, Any], name: str) -> Leakage | None:
    from rlhf.pipeline.validate.independence import (
        leakage_in_recipe,
    )  # imported here: the settings of all stages take a second to load

    return leakage_in_recipe(recipe, name)


def _read_recipe(run: RunRecord) -> Mapping[str, Any]:
    try:
        text = (run.folder / "recipe.yaml").read_text(encoding="utf-8")
        recipe = parse_yaml(text, "recipe.yaml", quick=True)
        if isinstance(recipe, Mapping):
            run.recipe = text
            return recipe
        run.missing["recipe.yaml"] = "it does not contain a recipe"
    except FileNotFoundError:
        run.missing["recipe.yaml"] = "there is no such file, so what was asked for is not known"
    except (OSError, UnicodeDecodeError, ConfigError) as err:
        run.missing["recipe.yaml"] = f"it can't be read ({type(err).__name__})"
    return {}


def _read_object(run: RunRecord, name: str, consequence: str) -> Mapping[str, Any]:
    try:
        record = json.loads((run.folder / name).read_text(encoding="utf-8"))
    except FileNotFoundError:
        run.missing[name] = f"there is no such file: {consequence}"
        return {}
    except (OSError, ValueError) as err:
        run.missing[name] = f"it can't be read ({type(err).__name__}: {err})"
        return {}
    if not isinstance(record, dict):
        run.missing[name] = f"it holds {with_article(type(record).__name__)}, not an object"
        return {}
    return record


def _read_events(run: RunRecord) -> None:
    try:
        # Not splitlines(): texts may hold line separators of Unicode that are no ends of JSON lines.
        lines = (run.folder / "events.jsonl").read_bytes().split(b"\n")
    except OSError:
        run.missing["events.jsonl"] = "there is no such file: curves, alarms and timings are unknown"
        return
    bad = 0
    keys: dict[str, Any] = {}
    for line in lines:
        if not line.strip():
            continue
        try:
            event = json.loads(line)
            _take_event(_stage(run, str(event["stage"])), event, keys)
        except (ValueError, KeyError, TypeError, AttributeError):
            bad += 1
    if bad:
        run.missing[f"{bad} line{'s' * (bad > 1)} of events.jsonl"] = "not readable, as after a crash; skipped"
    if "" in run.stages and not run.stages[""].curves:
        general = run.stages.pop("")
        if general.alarms or general.notes:
            run.stages["run"] = general


def _take_event(stage: StageRecord, event: Mapping[str, Any], keys: dict[str, Any]) -> None:
    kind = event.get("event")
    if kind == "stage_start":
        # The same key is a resumed attempt, which continues; another key (or none) starts from scratch.
        if event.get("key") is None or keys.get(stage.name) != event["key"]:
            stage.curves, stage.alarms, stage.notes = {}, [], []
        stage.uncertified = []
        keys[stage.name] = event.get("key")
        stage.kind = str(event.get("kind") or stage.kind)
        stage.status, stage.headline, stage.started = "broken off", "", number(event.get("time"))
    elif kind == "stage_end":
        stage.status = "done"
        stage.seconds = number(event.get("seconds"), stage.seconds)
        if stage.seconds is None and stage.started is not None:
            stage.seconds = float(event["time"]) - stage.started
        stage.headline = stage.headline or str(event.get("message") or "")
    elif kind == "stage_skipped":
        stage.status = "kept"
        stage.headline = stage.headline or str(event.get("message") or "")
    elif kind in ("stage_failed", "stage_interrupted"):
        stage.status = "failed" if kind == "stage_failed" else "stopped"
        stage.headline = str(event.get("message") or "")
    elif kind in ("metrics", "eval"):
        step = int(event["step"])
        for name, value in event["metrics"].items():
            if (y := number(value)) is not None:
                stage.curves.setdefault(name, {})[step] = y
    elif kind == "alarm":
        stage.alarms.append(event)
    elif kind == "note":
        stage.notes.append(event)
    elif kind == UNCERTIFIED:
        stage.uncertified.append(str(event["message"]))


def _stage(run: RunRecord, name: str) -> StageRecord:
    return run.stages.setdefault(name, StageRecord(name))


def has(document: Mapping[str, Any] | None, name: str) -> bool:
    """Whether a document holds a part that is not null."""
    return document is not None and document.get(name) is not None


def sorted_points(curve: Mapping[int, float], *, limit: int = 300) -> tuple[list[int], list[float]]:
    """Steps and values in order; more than ``limit`` points are averaged over neighbors, so that a file stays small."""
    steps = sorted(curve)
    if len(steps) <= limit:
        return steps, [curve[step] for step in steps]
    size = math.ceil(len(steps) / limit)
    parts = [steps[i : i + size] for i in range(0, len(steps), size)]
    return [part[len(part) // 2] for part in parts], [mean(curve[step] for step in part) for part in parts]


def mean(values: Iterable[float]) -> float:
    """Of at least one value."""
    numbers = list(values)
    return sum(numbers) / len(numbers)
