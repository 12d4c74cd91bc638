"""A stage's inputs before it runs: real files if they exist, otherwise the closest known substitute."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlhf.config.model import ModelConfig
from rlhf.config.recipe import STAGE, RecipeConfig
from rlhf.config.stages import MODEL_STAGES
from rlhf.models.sources import MODEL_FILES


@dataclass(slots=True)
class Sources:
    """A recipe's inputs, and what had to be assumed of them."""

    recipe: RecipeConfig
    assumed: list[str] = field(default_factory=list)
    """Sentences about the current stage."""

    @property
    def run_dir(self) -> Path:
        """Where the recipe's stages leave what they make."""
        return Path(self.recipe.output_dir) / self.recipe.name

    def assume(self, sentence: str) -> None:
        """Note it once."""
        if sentence not in self.assumed:
            self.assumed.append(sentence)

    def files(self, source: str | list[str]) -> list[str] | None:
        """Files and folders that can be read now; None where one is still to be made."""
        files = []
        for text in [source] if isinstance(source, str) else source:
            match = STAGE.match(text)
            path = self.run_dir / match["name"] / (match["file"] or "model") if match else None
            if path is not None and not path.exists():
                return None
            files.append(text if path is None else str(path))
        return files

    def model(self, config: ModelConfig) -> ModelConfig:
        """A model config whose path is real: where a stage is still to make it, that of the model it starts from."""
        seen: set[str] = set()
        while config.path is not None and (match := STAGE.match(config.path)):
            name = match["name"]
            parent: Any = self.recipe.stages.get(name)
            made = self.run_dir / name / (match["file"] or "model")
            if any((made / file).is_file() for file in (*MODEL_FILES, "member-0/config.json")):
                return config.updated(path=str(made))
            if parent is None or name in seen or parent.kind not in MODEL_STAGES:
                break
            seen.add(name)
            self.assume(f"stage:{name} is not there yet: its model has the shape of the one that it starts from")
            config = self._start_of(parent, config)
        return config

    def tokenizer(self, config: ModelConfig) -> ModelConfig | None:
        """A config whose tokenizer can be loaded now; None where a stage is still to make it."""
        config = self.model(config)
        if config.tokenizer is not None:
            files = self.files(config.tokenizer)
            return config.updated(tokenizer=files[0]) if files else None
        return config

    def vocabulary(self, config: ModelConfig) -> int | None:
        """Number of tokens of a stage's tokenizer, if its settings give it."""
        match = STAGE.match(config.tokenizer or "")
        made_by = self.recipe.stages.get(match["name"]) if match else None
        return getattr(made_by, "vocab_size", None)

    def ancestors(self, config: ModelConfig) -> Iterator[tuple[str, Any]]:
        """The stages that a model went through, newest first."""
        seen: set[str] = set()
        while config.path is not None and (match := STAGE.match(config.path)) and match["name"] not in seen:
            seen.add(match["name"])
            parent: Any = self.recipe.stages.get(match["name"])
            if parent is None or parent.kind not in MODEL_STAGES:
                return
            yield match["name"], parent
            config = parent.start

    def _start_of(self, parent: Any, config: ModelConfig) -> ModelConfig:
        """The model that a stage starts from, with the settings of the stage that reads it."""
        changes: Mapping[str, Any] = {
            "path": parent.start.path,
            "init": parent.start.init,
            "tokenizer": config.tokenizer or parent.start.tokenizer,
            "trust_remote_code": config.trust_remote_code or parent.start.trust_remote_code,
        }
        return config.updated(**changes)
