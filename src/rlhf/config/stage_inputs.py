"""What a kind of stage declares, and what kinds have in common: rows of files, prompts, models and who judges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticKnownError
from typing_extensions import override

from rlhf.config.base import InputPath, Kind
from rlhf.config.environments import EnvironmentSpec
from rlhf.config.formulas import Formula
from rlhf.config.lost_fields import LostField
from rlhf.config.method_hints import MethodHints
from rlhf.config.model import ModelConfig
from rlhf.config.offload_limits import check_offloaded_models
from rlhf.config.policy import RLConfig
from rlhf.config.regularizers import EWCConfig, PtxConfig
from rlhf.config.rewards import JudgeSpec, PerhapsRewardSpecs, training_rewards_of
from rlhf.config.row_filter import RowFilter, check_lifted, lifted_filter
from rlhf.config.training import OfflineConfig
from rlhf.seeds import derive_seed

RowsFor = Literal["sft", "preference", "comparison", "ranking", "rating", "kto", "stepwise", "grpo"]
"""What a stage makes of rows; keys of ``rlhf.data.plans.PLANS``."""
MEASURED_ON_PROMPTS = tuple(
    f"eval/{name}"
    for name in ("score_mean", "score_std", "ref_kl", "length_mean", "eos_frac", "empty_frac", "repetition")
)
MEASURED_ON_PAIRS = ("eval/loss", "eval/accuracy", "eval/reward_margin", "eval/chosen_reward", "eval/rejected_reward")
MEASURED_ON_EPISODES = ("eval/turns_mean", "eval/done_frac")
"""Beside ``MEASURED_ON_PROMPTS``, of a policy that talks with an environment."""


@dataclass(frozen=True, slots=True)
class RowsInput:
    """Rows that a stage reads."""

    key: str
    sources: tuple[str, ...]
    wanted: RowsFor
    columns: Mapping[str, str | None] | None = None
    skips_bad_rows: bool = False
    limit: int | None = None

    @property
    def can_skip(self) -> bool:
        """Whether the stage has the key ``on_bad_row``."""
        return self.key in ("data", "eval_data")


def listed(source: str | list[str]) -> tuple[str, ...]:
    """One source or several, as a tuple."""
    return (source,) if isinstance(source, str) else tuple(source)


class StageConfig(Kind, MethodHints):
    """A stage of a recipe: its settings, and what the library has to know of its kind.

    A new kind is a class like this, its line in ``STAGE_KINDS`` (``rlhf.config.stages``), and the function that ``runs`` names.
    """

    runs: ClassVar[str]
    """``module:function`` below ``rlhf.pipeline.stages``: takes the stage and a ``StageContext``, gives a ``StageOutcome``."""
    trainer: ClassVar[str] = ""
    """``module:Class`` of what trains the model; empty for stages that leave files. A stage's key follows the code of both."""
    leaves: ClassVar[Literal["policy", "judge", "files"]] = "files"
    start_key: ClassVar[str] = "model"
    """Of a stage that leaves a model: the key of the model that it begins with."""
    judges: ClassVar[Literal["completions", "steps"] | None] = None
    """What the model that it leaves gives scores to; None for other stages."""
    samples: ClassVar[bool] = False
    """Whether a model writes completions in it."""
    evaluates: ClassVar[bool] = False
    """Whether it measures policies of other stages, so that what they saw of its prompts is looked for."""
    why_unwritten: ClassVar[Mapping[str, str]] = {}
    """Files that it writes with certain settings only -> what to change to have them, as an imperative."""
    measures: ClassVar[tuple[str, ...]] = ()
    """Metrics of its evaluation while it trains, which early stopping can watch."""

    @property
    def formulas(self) -> Mapping[str, Formula]:
        """Setting -> the formula of the loss that it chooses; the code of formulas is part of the stage's key."""
        return {}

    @property
    def trains(self) -> bool:
        """Whether it leaves a model of its own making."""
        return self.leaves != "files"

    @property
    def start(self) -> ModelConfig:
        """The model that a stage which leaves one begins with."""
        model: ModelConfig = getattr(self, self.start_key)
        return model

    @property
    def measured(self) -> tuple[str, ...]:
        """``measures``, where no setting changes it."""
        return self.measures

    @property
    def asks_reference_once(self) -> bool:
        """Whether a reference scores all rows before the first step, so that they can't be a stream."""
        return False

    @property
    def holds_reference(self) -> bool:
        """Whether the weights of a reference are in memory in addition to those that are trained."""
        return False

    @property
    def measures_reference_point(self) -> bool:
        """Whether each step compares its completions with those of its other prompts, under policy and reference."""
        return False

    @property
    def compares_pairs(self) -> bool:
        """Whether the policy scores the pairs of a step before it learns from them."""
        return False

    @property
    def has_held_out(self) -> bool:
        """Whether a stage that trains has anything to evaluate on."""
        return False

    def rows_read(self) -> list[RowsInput]:
        """Rows that the stage reads, those that it learns from first."""
        return []

    def files_written(self) -> dict[str, str | None]:
        """Files and folders (with ``/`` at the end) that it writes for other stages, each with its kind of row, if it has rows."""
        return {}


class DialogueInputs(StageConfig):
    """Rows that may be dialogues."""

    allow_lost_fields: list[LostField] = Field(default_factory=list)
    """Fields of a dialogue that the chat template may leave out: `content`, `reasoning`, `tool_calls`, `tools`. A row of which it leaves
    out another is an error (docs/data-show.md)."""


class DataInputs(DialogueInputs):
    """Rows to learn from and rows to look at."""

    data: InputPath | list[InputPath]
    """Training rows: JSONL, JSON, CSV, Parquet or Arrow files, a folder of `datasets`, or a hub name."""
    eval_data: InputPath | list[InputPath] | None = None
    """Held-out rows."""
    eval_frac: float = Field(0.0, ge=0, lt=1)
    """Without `eval_data`: hold this share of the rows out."""
    eval_split: Literal["prompt", "row"] = "prompt"
    """How `eval_frac` chooses: `prompt` keeps all rows of a prompt on one side, so that what is measured is about new prompts; `row`
    is for data in which all rows have the same prompt, such as labeled sentences, and holds rows out whatever their prompt."""
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
    row_filter: RowFilter | None = None
    """Rows of `data` that are left out, before a share is held out; `data: {path: FILE, dedup: true}` is short for it."""
    data_workers: int = Field(1, ge=1)
    """Processes that tokenize the rows, for large files; the rows are the same with any number. `data: {path: FILE, workers: 4}` is
    short for it."""

    @model_validator(mode="before")
    @classmethod
    def _with_filter(cls, stage: Any) -> Any:
        return lifted_filter(stage, "data")

    _check_data = field_validator("data", mode="before")(check_lifted)

    @property
    def has_held_out(self) -> bool:
        """Whether there are rows to evaluate on."""
        return self.eval_data is not None or self.eval_frac > 0


class FilteredPrompts(DialogueInputs):
    """Prompts of which some may be left out."""

    row_filter: RowFilter | None = None
    """Rows of `prompts` that are left out; `prompts: {path: FILE, dedup: true}` is short for it."""
    data_workers: int = Field(1, ge=1)
    """Processes that tokenize the prompts, for large files; the rows are the same with any number. `prompts: {path: FILE, workers: 4}`
    is short for it."""

    @model_validator(mode="before")
    @classmethod
    def _with_filter(cls, stage: Any) -> Any:
        return lifted_filter(stage, "prompts")

    _check_prompts = field_validator("prompts", mode="before", check_fields=False)(check_lifted)


class PromptInputs(FilteredPrompts):
    """What a policy is asked."""

    samples = True
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

    @property
    def has_held_out(self) -> bool:
        """Whether there are prompts to evaluate on."""
        return self.eval_prompts is not None

    @property
    def holds_reference(self) -> bool:
        """An adapter that is switched off is one."""
        return self.model.lora is None

    def rows_read(self) -> list[RowsInput]:
        """Prompts, and held-out ones."""
        inputs = [RowsInput("prompts", listed(self.prompts), "grpo", self.columns, limit=self.limit)]
        if self.eval_prompts is not None:
            inputs.append(RowsInput("eval_prompts", listed(self.eval_prompts), "grpo", self.columns))
        return inputs

    def files_written(self) -> dict[str, str | None]:
        """A model, and what it said while it learned."""
        return {"model/": None, "rollouts.jsonl": "completion"}


class OfflineStage(OfflineConfig, DataInputs):
    """What every stage has that learns from rows of a file."""

    rows_for: ClassVar[RowsFor]
    leaves = "policy"
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

    def rows_read(self) -> list[RowsInput]:
        """Training rows, and held-out ones."""
        plain = RowsInput(
            "data", listed(self.data), self.rows_wanted, self.columns, self.on_bad_row == "skip", self.limit
        )
        if self.eval_data is None:
            return [plain]
        return [plain, replace(plain, key="eval_data", sources=listed(self.eval_data), limit=None)]

    def files_written(self) -> dict[str, str | None]:
        """A model."""
        return {"model/": None}


class PolicyTraining(StageConfig):
    """What every stage has that trains a policy, from files or from rewards."""

    ewc: EWCConfig | None = None
    """Hold the weights that other data depends on, so that it is not forgotten (elastic weight consolidation)."""


class PolicyStage(RLConfig, PromptInputs, PolicyTraining):
    """What every stage has in which a policy learns from rewards."""

    leaves = "policy"
    measures = MEASURED_ON_PROMPTS
    kind: str
    reference: ModelConfig | None = None
    """What the KL penalty pulls towards; the starting policy by default."""
    ptx: PtxConfig | None = None
    """Other rows whose language-model loss every step of the policy adds, so that what they show is not forgotten; null for none."""
    environment: EnvironmentSpec | None = None
    """Whom the policy talks with: tools, games, simulated users; null where a completion is a single turn."""
    reward: PerhapsRewardSpecs = Field(None, validate_default=True)
    """Who judges: a reward model, a built-in rule, a Python function, or a weighted list of them. Required where there is no
    environment; what an environment gives is added."""

    judge: JudgeSpec | None = None
    """Who judges completions of `eval_prompts` now and then and teaches nothing: any kind of reward, of other weights and trained on other
    rows than the policy's. Detectors compare it with the reward (`hacking`), and a run whose judge falls while the reward rises stops."""

    @field_validator("reward", mode="before")
    @classmethod
    def _somebody_judges(cls, reward: Any, info: ValidationInfo) -> Any:
        if info.data.get("environment", "wrong") is None:
            if reward is None:
                raise PydanticKnownError("missing")  # as of any key that is required: here because nobody else judges
            if reward == []:
                raise ValueError("an empty list judges nothing; name a reward")
        return [] if reward is None else reward

    @model_validator(mode="after")
    def _judge_is_asked_something(self) -> Self:
        if self.judge is not None and self.eval_prompts is None:
            raise ValueError("judge scores completions of held-out prompts, and there are none; give eval_prompts")
        if self.judge is None and self.hacking is not None and (unheard := self.hacking.without_judge()):
            raise ValueError(
                f"hacking.{unheard[0]} compares with a held-out judge, and there is none; give judge and eval_prompts"
            )
        return self

    @model_validator(mode="after")
    def _siblings_are_there(self) -> Self:
        lonely = next((place for place, spec in training_rewards_of(self) if spec.needs_siblings), None)
        if lonely is None:
            return self
        why = f"{lonely} compares completions of one prompt with each other"
        if self.group_size < 2:
            raise ValueError(f"{why}, and group_size is {self.group_size}; give at least 2")
        if (
            self.curriculum is not None
            and self.environment is None
            and all(spec.needs_siblings for spec in self.reward)
        ):
            raise ValueError(
                f"{why}, so every prompt has the same mean and none a pass rate that a curriculum could go by; leave curriculum out, or take "
                "mode: points"
            )
        if self.eval_prompts is not None and self.evaluation.samples < 2:
            raise ValueError(
                f"{why}, and held-out prompts have one each; give evaluation.samples of at least 2, or no eval_prompts"
            )
        if self.judge is not None:
            raise ValueError(
                f"{why}, and the held-out judge looks at single ones; leave judge out, and give a stage `evaluate` this stage's rollouts"
            )
        if getattr(self, "advantage", None) == "greedy":
            raise ValueError(
                f"{why}, and the greedy completion has no sibling; take another advantage, or mode: points"
            )
        return self

    @model_validator(mode="after")
    def _start_is_what_moves(self) -> Self:
        if self.moving_reference is not None and self.reference is not None:
            raise ValueError(
                "moving_reference begins at the policy, and reference names another model; leave one of the two out"
            )
        return self

    @model_validator(mode="after")
    def _offloaded_models_are_there(self) -> Self:
        judges = [*self.reward, *([] if self.judge is None else [self.judge])]
        check_offloaded_models(self, asks_models=any(spec.models_asked() for spec in judges))
        return self

    @property
    def allows_shared_judge(self) -> bool:
        """Whether the judge may be the reward, or share its rows."""
        return self.hacking is not None and self.hacking.allow_shared

    @property
    @override
    def holds_reference(self) -> bool:
        """Also with an adapter, where it moves."""
        return super().holds_reference or self.moving_reference is not None

    @property
    def formulas(self) -> Mapping[str, Formula]:
        """That of ``policy_loss``."""
        return {"policy_loss": self.policy_formula}

    @property
    def measured(self) -> tuple[str, ...]:
        """With what counts solved problems, and with what an environment reports."""
        episodes = MEASURED_ON_EPISODES if self.environment is not None else ()
        first = ("eval/first_ref_kl",) if self.moving_reference is not None else ()
        return (*self.measures, *self.evaluation.metrics, *episodes, *first)
