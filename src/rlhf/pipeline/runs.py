"""Looking at run folders from outside: which there are, what one holds, what may go. Two next to each other: ``run_comparison``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rlhf.config.yaml_text import read_yaml
from rlhf.errors import ConfigError, RLHFError, did_you_mean
from rlhf.pipeline.archive import FOLDER as PREVIOUS
from rlhf.pipeline.archive import GONE, events_of, previous_of, remove
from rlhf.pipeline.artifacts import RECORD, Artifact, Started
from rlhf.pipeline.kinds import EVALUATION
from rlhf.pipeline.lock import is_locked, locked
from rlhf.pipeline.manifest import alarms
from rlhf.training.checkpoint_names import PREFIX
from rlhf.training.log import EVENTS, read_jsonl

LEFTOVERS = (f"**/{GONE}*", "**/.*.tmp")
"""What killed processes leave of what they wrote or deleted."""
LEFT = "left by a process that was killed"


@dataclass(frozen=True, slots=True)
class StageLook:
    """One stage of a run."""

    name: str
    kind: str
    status: str
    """finished, unfinished or not begun."""
    key: str = ""
    seconds: float | None = None
    finished: str = ""
    headline: str = ""
    alarms: int = 0
    checkpoints: tuple[str, ...] = ()
    previous: int = 0
    """Results moved aside that could be brought back."""
    trouble: str = ""
    """What the last attempt of an unfinished stage failed with."""


@dataclass(frozen=True, slots=True)
class RunLook:
    """One run."""

    name: str
    folder: str
    stages: tuple[StageLook, ...]
    bytes: int
    changed: float
    """Epoch seconds of the newest event."""
    running: bool
    outcome: dict[str, Any]
    """Win rate and the like, as in summary.json; null for what nobody measured, or what several evaluations measured."""
    evaluations: dict[str, dict[str, Any]]
    """The same of each evaluation by its stage, with its policy, baseline, judge and verdict."""

    @property
    def num_finished(self) -> int:
        """Stages that are there."""
        return sum(stage.status == "finished" for stage in self.stages)

    @property
    def result(self) -> str:
        """What went wrong where something did, else the verdict of every evaluation, else what the last finished stage says."""
        if not self.running and (broken := next((stage for stage in self.stages if stage.trouble), None)):
            return f"failed in {broken.name}: {broken.trouble}"
        if lines := [line for each in self.evaluations.values() if (line := _evaluation_line(each))]:
            return "; ".join(lines)
        return next((stage.headline for stage in reversed(self.stages) if stage.status == "finished"), "")

    def to_dict(self) -> dict[str, Any]:
        """For machines."""
        return asdict(self) | {"num_finished": self.num_finished}


@dataclass(frozen=True, slots=True)
class Removable:
    """Something that may go."""

    path: Path
    why: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Pruning:
    """What was found, and what was removed."""

    removable: tuple[Removable, ...]
    busy: tuple[str, ...]
    """Runs that live processes work in; nothing of theirs is touched."""
    deleted: bool

    @property
    def bytes(self) -> int:
        """Of all that may go, or went."""
        return sum(item.bytes for item in self.removable)

    def to_dict(self) -> dict[str, Any]:
        """For machines."""
        removable = [{"path": str(item.path), "why": item.why, "bytes": item.bytes} for item in self.removable]
        return {"deleted": self.deleted, "bytes": self.bytes, "found": removable, "busy": list(self.busy)}


def run_folders(runs: Path) -> list[Path]:
    """Folders of ``runs`` that hold a run, by name; ``runs`` itself where it is one.

    Raises:
        ConfigError: There is no such folder.
    """
    if not runs.is_dir():
        raise ConfigError(f"There is no folder {runs}; give the folder of runs with --runs.")
    if _is_run(runs):
        return [runs]
    return sorted(path for path in runs.iterdir() if not path.name.startswith(".") and _is_run(path))


def find_run(name: str, runs: Path) -> Path:
    """A run by its folder, or by its name in ``runs``.

    Raises:
        ConfigError: There is none; names close ones.
    """
    for path in (Path(name), runs / name):
        if path.is_dir() and _is_run(path):
            return path
    known = [path.name for path in run_folders(runs)] if runs.is_dir() else []
    there = f" Known: {', '.join(known)}." if known else ""
    raise ConfigError(f"There is no run {name!r} in {runs}.{did_you_mean(name, known)}{there}")


def look_at(run: Path) -> RunLook:
    """What a run holds."""
    tree = recipe_of(run)
    asked = tree.get("stages")
    names = dict.fromkeys(asked if isinstance(asked, dict) else [])
    names |= dict.fromkeys(sorted(file.parent.name for file in run.glob(f"*/{RECORD}")))
    raised = alarms(run, names)
    log = read_jsonl(run / EVENTS)
    stages = []
    for name in names:
        settings = asked.get(name) if isinstance(asked, dict) else None
        kind = str(settings.get("kind", "")) if isinstance(settings, dict) else ""
        count = sum(event.get("stage") == name for event in raised)
        stages.append(_look_at_stage(run, name, kind, count, _trouble(events_of(log, name))))
    events, summary = run / EVENTS, json_of(run / "summary.json")
    return RunLook(
        name=run.resolve().name,
        folder=str(run),
        stages=tuple(stages),
        bytes=size_of(run),
        changed=(events if events.exists() else run).stat().st_mtime,
        running=is_locked(run),
        outcome={k: v for k, v in summary.items() if isinstance(v, int | float | None)},
        evaluations=evaluations_of(summary),
    )


def evaluations_of(summary: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Every evaluation in a summary.json by its stage; of an older version as far as it says."""
    evaluations, stages = summary.get("evaluations"), summary.get("stages")
    if isinstance(evaluations, dict):
        return {str(name): each for name, each in evaluations.items() if isinstance(each, dict)}
    metrics_of = {}
    for name, stage in stages.items() if isinstance(stages, dict) else ():
        if isinstance(stage, dict) and stage.get("kind") == EVALUATION and isinstance(stage.get("metrics"), dict):
            metrics_of[str(name)] = stage["metrics"]
    return metrics_of


def _evaluation_line(evaluation: Mapping[str, Any]) -> str:
    """``ppo against sft: The model became better, win rate 0.902 [0.877, 0.923]``."""
    rate, low, high = (evaluation.get(f"win_rate{end}") for end in ("", "_low", "_high"))
    words = [str(evaluation["verdict_title"])] if evaluation.get("verdict_title") else []
    if isinstance(rate, int | float) and isinstance(low, int | float) and isinstance(high, int | float):
        words.append(f"win rate {rate:.3f} [{low:.3f}, {high:.3f}]")
    who = (
        f"{evaluation['policy']} against {evaluation['baseline']} by {evaluation.get('judge')}: "
        if evaluation.get("policy")
        else ""
    )
    return who + ", ".join(words) if words else ""


def prune(runs: Sequence[Path], *, whole: bool = False, delete: bool = False) -> Pruning:
    """Find what no run needs any more, and delete it where that is asked for. Runs in use are left alone.

    Args:
        runs: Run folders.
        whole: The runs themselves may go, with everything in them.
        delete: Do it; otherwise only say what would go.
    """
    removable: list[Removable] = []
    busy = []
    for run in runs:
        if is_locked(run):
            busy.append(run.name)
            continue
        if not delete:
            removable += _removable(run, whole=whole)
            continue
        with locked(run):
            items = _removable(run, whole=whole)
            removable += items
            for item in items:
                _delete(item.path)
    for left in sorted({path for run in runs for path in run.parent.glob(f"{GONE}*")}):
        removable.append(Removable(left, LEFT, size_of(left)))
        if delete:
            _delete(left)
    return Pruning(tuple(removable), tuple(busy), delete)


def size_of(path: Path) -> int:
    """Bytes of a file, or of all files below a folder; links count as themselves."""
    files = [path] if not path.is_dir() or path.is_symlink() else path.rglob("*")
    total = 0
    for file in files:
        try:
            total += file.lstat().st_size if not file.is_dir() or file.is_symlink() else 0
        except OSError:
            continue  # it went while we counted
    return total


def _removable(run: Path, *, whole: bool) -> list[Removable]:
    if whole:
        return [Removable(run, "the whole run, as asked", size_of(run))]
    reasons = {
        entry.folder: "made before the present result"
        for entry in previous_of(run)
        if Artifact.read(run / entry.stage) is not None  # else it is the only finished one
    }
    for record in run.glob(f"*/{RECORD}"):
        if not _keeps_checkpoints(run, record.parent.name):
            reasons |= dict.fromkeys(record.parent.glob(f"{PREFIX}*"), "checkpoint of a finished stage")
    for pattern in LEFTOVERS:
        for path in run.glob(pattern):
            if not any(other in path.parents for other in reasons):
                reasons[path] = LEFT
    return [Removable(path, why, size_of(path)) for path, why in sorted(reasons.items())]


def _keeps_checkpoints(run: Path, stage: str) -> bool:
    """Whether the recipe asks for some of a stage's checkpoints to stay for good (``keep_every``)."""
    try:
        return bool(read_yaml(run / "recipe.yaml")["stages"][stage].get("keep_every"))
    except (RLHFError, KeyError, TypeError, AttributeError):
        return False


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        remove([path])
        if path.parent.name == PREVIOUS and not any(path.parent.iterdir()):
            path.parent.rmdir()
    else:
        path.unlink(missing_ok=True)


def _is_run(path: Path) -> bool:
    return (path / "recipe.yaml").is_file() or any(path.glob(f"*/{RECORD}"))


def _look_at_stage(run: Path, name: str, kind: str, num_alarms: int, trouble: str) -> StageLook:
    folder = run / name
    checkpoints = tuple(sorted(path.name for path in folder.glob(f"{PREFIX}*")))
    previous = sum(entry.finished for entry in previous_of(run, name))
    artifact = Artifact.read(folder)
    if artifact is None:
        started = Started.read(folder)
        status = "unfinished" if folder.is_dir() else "not begun"
        key = started.made_from.key if started is not None else ""
        return StageLook(
            name, kind, status, key, alarms=num_alarms, checkpoints=checkpoints, previous=previous, trouble=trouble
        )
    return StageLook(
        name,
        artifact.kind,
        "finished",
        artifact.key,
        artifact.seconds,
        artifact.finished,
        artifact.headline,
        num_alarms,
        checkpoints,
        previous,
    )


def _trouble(events: Sequence[Mapping[str, Any]]) -> str:
    """With what a stage failed, in one line; empty where its newest attempt did not."""
    ends = [event for event in events if str(event.get("event")).startswith("stage_")]
    if not ends or ends[-1].get("event") != "stage_failed":
        return ""
    return " ".join(str(ends[-1].get("message") or "it does not say why").split())


def recipe_of(run: Path) -> dict[str, Any]:
    """A run's recipe as its file has it; empty where it can't be read."""
    try:
        return read_yaml(run / "recipe.yaml", written_by_us=True)
    except RLHFError:
        return {}


def json_of(path: Path) -> dict[str, Any]:
    """A JSON object; empty where it can't be read."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}
