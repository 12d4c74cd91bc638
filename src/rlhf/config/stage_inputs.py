"""What kinds of stages have in common: rows of files, prompts, models and who judges."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator
from pydantic_core import PydanticKnownError

from rlhf.config.base import Config, InputPath
from rlhf.config.environment import EnvironmentSpec
from rlhf.config.model import ModelConfig
from rlhf.config.policy import RLConfig
from rlhf.config.regularisers import EWCConfig
from rlhf.config.rewards import PerhapsRewardSpecs
from rlhf.config.training import OfflineConfig
from rlhf.seeds import derive_seed

RowsFor = Literal["sft", "preference", "comparison", "ranking", "rating", "kto", "stepwise", "grpo"]
"""What a stage makes of rows; keys of ``rlhf.data.plans.PLANS``."""


class DataInputs(Config):
    """Rows to learn from and rows to look at."""

    data: InputPath | list[InputPath]
    """Training rows: JSONL, JSON, CSV, Parquet or Arrow files, a folder of `datasets`, or a hub name."""
    eval_data: InputPath | list[InputPath] | None = None
    """Held-out rows."""
    eval_frac: float = Field(0.0, ge=0, lt=1)
    """Without `eval_data`: hold this share of the rows out."""
    eval_split: Literal["prompt", "row"] = "prompt"
    """How `eval_frac` chooses: `prompt` keeps all rows of a prompt on one side, so that what is measured is about new prompts; `row`
    is for data in which all rows have the same prompt, such as labelled sentences, and holds rows out whatever their prompt."""
    columns: dict[str, str | None] | None = None
    """Other names for columns, theirs to ours, as in `question: prompt`; null drops a column."""
    limit: int | None = Field(None, ge=1)
    """Use only this many rows, the first good ones of the file or files; a share that is held out comes out of these."""
    streaming: bool = False
    """Read rows as they are needed instead of loading the file; needs `max_steps`."""
    shuffle_buffer: int = Field(10_000, ge=0)
    """Rows of a stream that are shuffled together; 0 keeps the order of the file."""
    on_bad_row: Literal["error", "skip"] = "error"
    """Stop at a bad row, or count and list it."""


class PromptInputs(Config):
    """What a policy is asked."""

    model: ModelConfig
    """Where to start."""
    prompts: InputPath | list[InputPath]
    """What to ask."""
    eval_prompts: InputPath | list[InputPath] | None = None
    """Held-out prompts, asked at each evaluation; early stopping can watch what is measured there."""
    columns: dict[str, str | None] | None = None
    """Other names for columns of all prompts, theirs to ours, as in `question: prompt`; null drops a column."""
    limit: int | None = Field(None, ge=1)
    """Use only this many prompts, the first of the file or files."""


class OfflineStage(OfflineConfig, DataInputs):
    """What every stage has that learns from rows of a file."""

    rows_for: ClassVar[RowsFor]
    kind: str
    model: ModelConfig
    """Where to start."""

    @property
    def rows_wanted(self) -> RowsFor:
        """What this stage makes of its rows; of some kinds the loss decides."""
        return self.rows_for

    @property
    def split_seed(self) -> int:
        """Seeds which rows `eval_frac` holds out."""
        return derive_seed(self.seed, "split")


class PolicyTraining(Config):
    """What every stage has that trains a policy, from files or from rewards."""

    ewc: EWCConfig | None = None
    """Hold the weights that other data depends on, so that it is not forgotten (elastic weight consolidation)."""


class PolicyStage(RLConfig, PromptInputs, PolicyTraining):
    """What every stage has in which a policy learns from rewards."""

    kind: str
    reference: ModelConfig | None = None
    """What the KL penalty pulls towards; the starting policy by default."""
    environment: EnvironmentSpec | None = None
    """Whom the policy talks with: tools, games, simulated users; null where a completion is a single turn."""
    reward: PerhapsRewardSpecs = Field(None, validate_default=True)
    """Who judges: a reward model, a built-in rule, a Python function, or a weighted list of them. Required where there is no
    environment; what an environment gives is added."""

    @field_validator("reward", mode="before")
    @classmethod
    def _somebody_judges(cls, reward: Any, info: ValidationInfo) -> Any:
        if info.data.get("environment", "wrong") is None:
            if reward is None:
                raise PydanticKnownError("missing")  # as of any key that is required: here because nobody else judges
            if reward == []:
                raise ValueError("an empty list judges nothing; name a reward")
        return [] if reward is None else reward
