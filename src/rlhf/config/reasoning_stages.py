"""Stages around problems whose solutions can be checked: the reasoning world, labeled steps, problems solved."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from rlhf.config.base import FunctionName, InputPath, Names
from rlhf.config.model import ModelConfig
from rlhf.config.policy import SamplingConfig
from rlhf.config.rewards import JudgeSpec
from rlhf.config.stage_inputs import FilteredPrompts, RowsInput, StageConfig, listed


class ReasoningStage(StageConfig):
    """Build the reasoning world: arithmetic problems whose solutions can be checked step by step."""

    kind: Literal["reasoning"]
    runs = "reasoning:run_reasoning"
    split_seed: int | None = Field(None, ge=0)
    """Seeds which problems are held out; `seed` by default, so that every seed is measured on problems of its own."""
    seed: int | None = Field(None, ge=0)
    """Seeds problems, demonstrations and the mistakes in them; the recipe's by default."""
    num_demonstrations: int = Field(12_000, ge=1)
    """Problems with a demonstration for SFT, and with a solution full of mistakes, its steps labeled, for reward models."""
    num_prompts: int = Field(2000, ge=1)
    """Problems to ask in training."""
    num_test_prompts: int = Field(300, ge=1)
    """Problems that no stage trains on."""

    def files_written(self) -> dict[str, str | None]:
        """Demonstrations, prompts, labeled steps and a tokenizer."""
        return {
            "sft.jsonl": "completion",
            "prompts.jsonl": "prompt",
            "stepwise.jsonl": "stepwise",
            "outcome.jsonl": "unpaired",
            "test_prompts.jsonl": "prompt",
            "test_stepwise.jsonl": "stepwise",
            "reasoning.json": None,
            "tokenizer/": None,
        }


class StepLabelsStage(FilteredPrompts):
    """Sample solutions from a model and have a program label every step: rows for models that judge."""

    kind: Literal["step_labels"]
    runs = "step_labels:run_step_labels"
    samples = True
    why_unwritten: ClassVar[Mapping[str, str]] = {"outcome.jsonl": "set its outcomes"}
    model: ModelConfig
    """Who is asked."""
    prompts: InputPath | list[InputPath]
    """What is asked."""
    labeler: FunctionName = "rlhf.data.reasoning.solution_rows:label_completions"
    """`package.module:function` that cuts completions into steps and labels them."""
    arguments: Annotated[dict[str, Any], Names.TEXT_OR_FILE] = Field(default_factory=dict)
    """Given to every call by keyword, in addition to the columns of the prompt rows that it takes; `stage:NAME/FILE` is a file of an
    earlier stage."""
    completions_per_prompt: int = Field(4, ge=1)
    """Solutions sampled for each prompt."""
    outcomes: bool = True
    """Also write `outcome.jsonl`: each solution with one label, for models that judge it as a whole."""
    sampling: SamplingConfig = SamplingConfig()
    """How they are drawn."""
    max_prompt_length: int | None = Field(None, ge=1)
    """Longest prompt in tokens; longer ones are left out and counted."""
    limit: int | None = Field(None, ge=1)
    """Use only this many prompts, the first of the file."""
    seed: int | None = Field(None, ge=0)
    """The recipe's by default."""

    def rows_read(self) -> list[RowsInput]:
        """Prompts."""
        return [RowsInput("prompts", listed(self.prompts), "grpo", limit=self.limit)]

    def files_written(self) -> dict[str, str | None]:
        """Labeled steps; whole solutions with one label where they are wanted."""
        return {"stepwise.jsonl": "stepwise", **({"outcome.jsonl": "unpaired"} if self.outcomes else {})}


class PassAtKStage(FilteredPrompts):
    """Ask a policy every problem many times and count what it solves: pass@k, greedy, and what changed."""

    kind: Literal["pass_at_k"]
    runs = "pass_at_k:run_pass_at_k"
    samples = True
    evaluates = True
    policy: ModelConfig
    """Who is asked."""
    baseline: ModelConfig | None = None
    """Whom it is compared with, on the same problems; null for no comparison."""
    prompts: InputPath | list[InputPath]
    """Held-out problems."""
    judge: JudgeSpec
    """Who says whether a completion solves its problem. Numbers besides the score are averaged and reported."""
    solved_at: float = 1.0
    """The judge's score from which on a problem counts as solved."""
    num_samples: int = Field(32, ge=1)
    """Completions of each problem."""
    ks: list[int] | None = Field(None, min_length=1)
    """Tries for pass@k, each at most `num_samples`; null for 1, 2, 4 ... up to `num_samples`."""
    greedy: bool = True
    """Ask once more at temperature 0."""
    sampling: SamplingConfig = SamplingConfig()
    """How completions are drawn."""
    max_prompt_length: int | None = Field(None, ge=1)
    """Longest prompt in tokens; longer ones are left out and counted."""
    limit: int | None = Field(None, ge=1)
    """Use only this many problems, the first of the file."""
    seed: int | None = Field(None, ge=0)
    """The recipe's by default."""

    @model_validator(mode="after")
    def _samples_can_tell(self) -> Self:
        if self.ks is not None and not 1 <= min(self.ks) <= max(self.ks) <= self.num_samples:
            raise ValueError(f"ks are {self.ks}; wanted numbers from 1 to num_samples ({self.num_samples})")
        if self.sampling.temperature == 0 and self.num_samples > 1:
            raise ValueError("at sampling.temperature 0 all samples of a problem are the same; set num_samples: 1")
        return self

    def rows_read(self) -> list[RowsInput]:
        """Prompts."""
        return [RowsInput("prompts", listed(self.prompts), "grpo", limit=self.limit)]

    def files_written(self) -> dict[str, str | None]:
        """What was measured."""
        return {"evaluation.json": None}
