"""Where a stage works and what it reports: all that the kinds of stages share without knowing a model."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlhf.config.base import BaseConfig, Names, named_things
from rlhf.config.model import ModelConfig
from rlhf.config.recipe import STAGE
from rlhf.config.rewards import RewardSpec
from rlhf.config.stages import BY_KIND
from rlhf.errors import DataError, RLHFError
from rlhf.training.log import TrainingLogger


@dataclass(frozen=True, slots=True)
class StageContext:
    """Where a stage works."""

    name: str
    run_dir: Path
    log: TrainingLogger

    @property
    def folder(self) -> Path:
        """The stage's own folder."""
        return self.run_dir / self.name

    def path(self, source: str) -> str:
        """A file or folder: ``stage:NAME/FILE`` and ``stage:NAME`` inside the run, anything else as it is."""
        match = STAGE.match(source)
        if match is None:
            return source
        return str(self.run_dir / match["name"] / (match["file"] or "model"))

    def paths(self, source: str | list[str]) -> str | list[str]:
        """``path`` for one or several."""
        return self.path(source) if isinstance(source, str) else [self.path(item) for item in source]

    @contextmanager
    def naming(self, key: str, kind: type[RLHFError] = DataError, *, what: str = "These rows are") -> Iterator[None]:
        """Inside, an error of a class also names the key of the recipe that it is about."""
        try:
            yield
        except kind as err:
            err.add_note(f"{what} stages.{self.name}.{key}.")
            raise

    def model(self, config: ModelConfig) -> ModelConfig:
        """A model config whose folders are real."""
        changes = {
            key: self.path(value) for key in ("path", "tokenizer") if (value := getattr(config, key)) is not None
        }
        return config.updated(**changes)


@dataclass(frozen=True, slots=True)
class StageOutcome:
    """What a stage reports."""

    headline: str
    metrics: Mapping[str, Any] = field(default_factory=dict)
    about: Mapping[str, Any] = field(default_factory=dict)
    """For the model card."""


def resolved_reward(spec: RewardSpec, at: StageContext) -> RewardSpec:
    """A reward's settings with files and folders where they stood ``stage:`` inputs."""
    reward_spec: RewardSpec = resolved(spec, at)
    return reward_spec


def resolved(value: Any, at: StageContext) -> Any:
    """A setting with files and folders where it names ``stage:`` inputs: a text, settings, or a list or mapping of such."""
    if isinstance(value, Mapping):
        return {name: resolved(item, at) for name, item in value.items()}
    if isinstance(value, list):
        return [resolved(item, at) for item in value]
    if isinstance(value, BaseConfig):
        places = {
            place[0] for place, text, names in named_things(value) if names is not Names.FUNCTION and STAGE.match(text)
        }
        return value.updated(**{key: resolved(getattr(value, key), at) for key in places}) if places else value
    return at.path(value) if isinstance(value, str) else value


def seed_of(seed: int | None) -> int:
    """A stage's seed; only a stage that was built without a recipe has none of its own."""
    return 0 if seed is None else seed


def runner(kind: str) -> Callable[[Any, StageContext], StageOutcome]:
    """The function that ``StageConfig.runs`` names."""
    module, _, name = BY_KIND[kind].runs.partition(":")
    function: Callable[[Any, StageContext], StageOutcome] = getattr(
        importlib.import_module(f"{__package__}.{module}"), name
    )
    return function
