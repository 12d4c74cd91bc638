"""What a stage leaves behind, and how to tell whether it is still what the recipe asks for.

A stage's key is the hash of its resolved settings, the keys of the stages it reads from, the content of the files it
reads (a user's own functions among them) and the code that matters. The artifact record is written last: a folder
without one is unfinished.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import rlhf
from rlhf.config.base import Config
from rlhf.config.recipe import STAGE, RecipeConfig, stage_references
from rlhf.files import sha256, write_json
from rlhf.models.load import EMBEDDED, embedded_folder
from rlhf.training.loop import FREE_TO_CHANGE

RECORD = "artifact.json"
NOT_HASHED = ("checkpoint-", "tensorboard")
CODE_THAT_MATTERS = (
    "config",
    "data",
    "losses",
    "models",
    "rewards",
    "rollout",
    "training",
    "evaluation",
    "seeds.py",
    "files.py",
    "pipeline/stages.py",
)
"""Rooms whose code decides what a stage makes; the report or the command line may change without redoing anything."""
INPUT_KEYS = {
    "data",
    "eval_data",
    "prompts",
    "eval_prompts",
    "test_prompts",
    "pairs",
    "rollouts",
    "path",
    "tokenizer",
    "source",
    "reward_model",
}
FUNCTION_KEYS = {"function", "annotator"}


@dataclass(frozen=True, slots=True)
class Artifact:
    """The record of a finished stage."""

    stage: str
    kind: str
    key: str
    seconds: float
    headline: str
    """One line for people."""
    metrics: Mapping[str, Any]
    parents: Mapping[str, str]
    """Input to where it came from: ``stage:NAME@key`` or ``path@sha256``."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Path inside the stage's folder to sha256."""

    def write(self, folder: Path) -> None:
        """Into the stage's folder, in one step."""
        write_json(folder / RECORD, asdict(self))

    @classmethod
    def read(cls, folder: Path) -> Artifact | None:
        """The record in a folder; None where the stage never finished."""
        try:
            return cls(**json.loads((folder / RECORD).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None


@dataclass(frozen=True, slots=True)
class StagePlan:
    """What a stage depends on."""

    key: str
    parents: Mapping[str, str]


def plan_stage(name: str, recipe: RecipeConfig, keys: Mapping[str, str]) -> StagePlan:
    """Key and parents of a stage.

    Args:
        name: Of the stage.
        recipe: The whole recipe.
        keys: Keys of the stages before it.
    """
    stage = recipe.stages[name]
    parents = {}
    for place, parent, file in stage_references(stage):
        parents[place] = f"stage:{parent}{'/' + file if file else ''}@{keys[parent]}"
    for place, path in local_inputs(stage):
        parents[place] = f"{path}@{content_hash(path)}"
    settings = stage.model_dump(mode="json", exclude=FREE_TO_CHANGE)
    described = {"stage": settings, "parents": parents, "code": code_version()}
    text = json.dumps(described, sort_keys=True, ensure_ascii=False)
    return StagePlan(hashlib.sha256(text.encode()).hexdigest()[:16], parents)


def local_inputs(stage: Config) -> list[tuple[str, Path]]:
    """Files and folders on this machine that a stage names, with the place of the key."""
    found: list[tuple[str, Path]] = []

    def visit(value: Any, place: tuple[str, ...]) -> None:
        if isinstance(value, dict):
            for key, item in value.items():
                visit(item, (*place, str(key)))
        elif isinstance(value, list | tuple):
            for index, item in enumerate(value):
                visit(item, (*place, str(index)))
        elif isinstance(value, str) and (path := _local_file(value, place)) is not None:
            found.append((".".join(place), path))

    visit(stage.model_dump(), ())
    return found


def _local_file(value: str, place: tuple[str, ...]) -> Path | None:
    """What the text at this place of a stage's settings names on this machine, if it names anything."""
    if STAGE.match(value):
        return None
    if place[-1] in FUNCTION_KEYS:
        return _source_file(value)
    if not INPUT_KEYS.intersection(place):
        return None
    path = embedded_folder() if value == EMBEDDED else Path(value).expanduser()
    return path if path.exists() else None


def _source_file(function: str) -> Path | None:
    """The Python file of ``package.module:function`` or ``path/to/file.py:function``."""
    module, _, _ = function.rpartition(":")
    if module.endswith(".py"):
        return path if (path := Path(module).expanduser()).exists() else None
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return None  # whoever calls the function will say so
    return Path(spec.origin) if spec is not None and spec.origin is not None else None


def content_hash(path: Path) -> str:
    """Hash of a file, or of all files in a folder with their names; 16 hex digits."""
    if path.is_file():
        return sha256(path)[:16]
    digest = hashlib.sha256()
    for file in sorted(p for p in path.rglob("*") if p.is_file()):
        digest.update(f"{file.relative_to(path)}={sha256(file)};".encode())
    return digest.hexdigest()[:16]


def stage_files(folder: Path) -> dict[str, str]:
    """Every file a stage left, with its hash; checkpoints and tracker files are working material and left out."""
    found = {}
    for file in sorted(p for p in folder.rglob("*") if p.is_file()):
        relative = file.relative_to(folder)
        if file.name == RECORD or any(part.startswith(NOT_HASHED) or part.startswith(".") for part in relative.parts):
            continue
        found[str(relative)] = sha256(file)
    return found


@cache
def code_version() -> str:
    """Hash of the source files that decide what a stage makes."""
    root = Path(rlhf.__file__).parent
    digest = hashlib.sha256(rlhf.__version__.encode())
    for room in CODE_THAT_MATTERS:
        path = root / room
        for file in [path] if path.is_file() else sorted(path.rglob("*.py")):
            digest.update(f"{file.relative_to(root)}={sha256(file)};".encode())
    return digest.hexdigest()[:16]
