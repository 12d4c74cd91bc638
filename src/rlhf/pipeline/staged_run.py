"""A run folder that grows by one stage a call: the recipe is written as it goes."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from rich.console import Console

from rlhf.config.model import AUTO
from rlhf.config.recipe import RecipeConfig
from rlhf.config.stages import POLICY_KINDS
from rlhf.config.yaml_text import read_yaml
from rlhf.errors import ConfigError, kind_of
from rlhf.models.folders import write_folder_aside
from rlhf.pipeline.artifacts import Artifact
from rlhf.pipeline.plan import parents_of
from rlhf.pipeline.run import Pipeline
from rlhf.rewards.in_memory import name_of, settings_of
from rlhf.rewards.types import Scorer

REWARD_KEYS = ("reward", "judge")
"""Settings of a stage that hold a reward's settings, of which a function is one."""


@dataclass(frozen=True, slots=True, repr=False)
class FinishedStage(Artifact):
    """The record of a finished stage, and where its files are."""

    folder: Path = Path()
    """The stage's own."""

    def save_pretrained(self, folder: Path | str) -> Path:
        """Copy the stage's model; what was there is replaced.

        Returns:
            The folder, for ``PolicyModel.from_pretrained`` and the like.

        Raises:
            ConfigError: The stage leaves no model.
        """
        if not (self.folder / "model").is_dir():
            raise ConfigError(f"Stage {self.stage!r} leaves no model to save.")
        return copy_model(self.folder / "model", Path(folder))


def copy_model(source: Path, target: Path) -> Path:
    """Copy a model's folder aside and rename it; what was there is replaced."""
    if source.resolve() != target.resolve():
        with write_folder_aside(target) as aside:
            shutil.copytree(source, aside, dirs_exist_ok=True)
    return target


class StagedRun:
    """What ``RLHFTrainer`` and ``RLHFOrchestrator`` share.

    Args:
        output_dir: The run folder; what another process finished there is known.
        seed: Seeds everything.
        device: Where models are, as in a recipe.
        quiet: Print nothing.

    Raises:
        ConfigError: The run folder holds a recipe that this version can't read.
    """

    def __init__(self, output_dir: str | Path, *, seed: int = 0, device: str = AUTO, quiet: bool = False) -> None:
        self.console = None if quiet else Console()
        self.run_dir = Path(output_dir)
        self.seed = seed
        self.device = device
        self.stages: dict[str, Any] = _finished_stages(self.run_dir)
        """Settings by name: what is finished in the run folder, and what this process made."""

    def run_stage(self, name: str, stage: Mapping[str, Any]) -> FinishedStage:
        """Add a stage to the recipe and run it; what it reads from is kept where it is as the recipe asks.

        Args:
            name: Of the stage; one of that name is replaced.
            stage: Its settings, ``kind`` included. Where a setting names a function, the function itself can stand.

        Raises:
            ConfigError: The settings are wrong; the recipe stays as it was.
        """
        stages = {**self.stages, name: functions_named(stage)}
        tree = {
            "name": self.run_dir.name,
            "output_dir": str(self.run_dir.parent),
            "seed": self.seed,
            "device": self.device,
            "stages": _in_order(stages),
        }
        pipeline = Pipeline(RecipeConfig.of(tree, source=type(self).__name__), console=self.console)
        pipeline.run(only_for=name, brief=True)
        self.stages = stages  # only now: a refused call leaves the others as they were
        return self._finished(pipeline.artifacts[name])

    @property
    def history(self) -> list[FinishedStage]:
        """Records of the finished stages, oldest first: headline, metrics, seconds."""
        records = [Artifact.read(self.run_dir / name) for name in self.stages]
        finished = [self._finished(record) for record in records if record is not None]
        return sorted(finished, key=lambda record: record.finished)

    def _finished(self, record: Artifact) -> FinishedStage:
        values = {item.name: getattr(record, item.name) for item in fields(record)}
        return FinishedStage(**values, folder=self.run_dir / record.stage)

    def newest_policy(self) -> str | None:
        """The policy stage that was finished last."""
        return next((record.stage for record in reversed(self.history) if record.kind in POLICY_KINDS), None)


def functions_named(value: Any, key: str = "") -> Any:
    """Settings with names instead of functions; a reward or judge that has to be called in this process says so.

    Args:
        value: Settings, or one of them.
        key: Of the setting.

    Raises:
        ConfigError: A reward is a scorer or a class of scorers, which no recipe can hold.
    """
    if isinstance(value, Mapping):
        return settings_of(
            {inner: functions_named(item, inner) for inner, item in value.items()}, value.get("function")
        )
    if isinstance(value, list | tuple):
        return [functions_named(item, key) for item in value]
    if key not in REWARD_KEYS:
        return name_of(value) if callable(value) else value
    if isinstance(value, Scorer | type):
        raise ConfigError(
            f"{key} is {kind_of(value)}; expected a function, or a reward's settings as a recipe has them, such as the folder of a "
            "reward model."
        )
    return functions_named({"kind": "function", "function": value}) if callable(value) else value


def _finished_stages(run_dir: Path) -> dict[str, Any]:
    """Settings of the finished stages in a run folder, and of those that they were made from, in their order."""
    path = run_dir / "recipe.yaml"
    if not path.is_file():
        return {}
    recipe = RecipeConfig.of(read_yaml(path), source=str(path))
    needed: set[str] = set()
    for name in reversed(recipe.stages):
        if name in needed or Artifact.read(run_dir / name) is not None:
            needed |= {name, *parents_of(recipe.stages[name])}
    return {name: stage.model_dump(mode="json") for name, stage in recipe.stages.items() if name in needed}


def _in_order(stages: Mapping[str, Any]) -> dict[str, Any]:
    """Each stage behind those that it reads from, else in the order given: calls may come in any order."""
    ordered: dict[str, Any] = {}
    waiting = dict(stages)
    while waiting:
        ready = (name for name, stage in waiting.items() if not waiting.keys() & _references(stage))
        name = next(ready, next(iter(waiting)))  # where they wait for each other the recipe says so, in its words
        ordered[name] = waiting.pop(name)
    return ordered


def _references(stage: Any) -> set[str]:
    return set(re.findall(r'"stage:([A-Za-z0-9_-]+)', json.dumps(stage, default=str)))
