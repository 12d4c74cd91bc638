"""Stages that leave files: worlds, preferences, chosen samples, evaluations."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from rlhf.config.base import Config, FunctionName, InputPath
from rlhf.config.engines import EngineSpec, LocalEngineConfig, engine_complaint, is_lowered
from rlhf.config.model import ModelConfig
from rlhf.config.policy import SamplingConfig
from rlhf.config.rewards import JudgeSpec, RewardSpecs


class WorldStage(Config):
    """Build the embedded world: facts, demonstrations, prompts, held-out prompts."""

    kind: Literal["world"]
    split_seed: int = Field(0, ge=0)
    """Seeds which prompts and facts are held out."""
    seed: int | None = Field(None, ge=0)
    """Seeds demonstrations and documents; the recipe's by default."""
    num_documents: int = Field(0, ge=0)
    """Pre-training documents for a new base model (pretrain.jsonl); 0 where the base model is there already."""
    vocab_size: int | None = Field(None, ge=300)
    """Train a tokenizer of this many entries on the documents and write it to `tokenizer/`."""


class CalculatorStage(Config):
    """Build problems for a policy with a calculator (`rlhf.rollout.calculator:Calculator`), and demonstrations of its use."""

    kind: Literal["calculator"]
    seed: int | None = Field(None, ge=0)
    """Seeds problems and demonstrations; the recipe's by default."""
    num_demonstrations: int = Field(8000, ge=1)
    """Problems with a demonstration, for SFT."""
    num_prompts: int = Field(1000, ge=1)
    """Problems to ask in training."""
    num_test_prompts: int = Field(100, ge=1)
    """Problems that no stage trains on."""
    tool_frac: float = Field(0.3, ge=0, le=1)
    """Share of the demonstrations that use the calculator; the others guess, and are rarely right."""


class PreferencesStage(Config):
    """Sample completions and have an annotator compare them: preference pairs."""

    kind: Literal["preferences"]
    model: ModelConfig
    """Who is asked."""
    prompts: InputPath
    """What is asked, for training pairs."""
    test_prompts: InputPath | None = None
    """What is asked for held-out pairs, labelled without noise."""
    annotator: FunctionName = "rlhf.data.world.pairs:annotate"
    """`package.module:function` that turns samples into rows."""
    rows: Literal["preference", "comparison", "ranking", "rating", "unpaired"] = "preference"
    """What the annotator gives of each prompt: which completion is better and which worse; or whole rows of another kind
    (comparisons with ties and strengths, rankings, marks, verdicts), as those of `rlhf.data.world.annotators` are."""
    noise: float = Field(0.1, ge=0, lt=0.5)
    """Share of training pairs that the annotator labels the wrong way round."""
    num_pairs: int = Field(2500, ge=1)
    """Training pairs wanted; prompts are asked in shuffled order until there are as many."""
    num_test_pairs: int = Field(400, ge=1)
    """Held-out pairs wanted."""
    completions_per_prompt: int = Field(4, ge=2)
    """Samples among which the annotator picks the best and the worst."""
    sampling: SamplingConfig = SamplingConfig()
    """How they are drawn."""
    seed: int | None = Field(None, ge=0)
    """The recipe's by default."""


class BestOfNStage(Config):
    """Ask a policy several times and keep what the reward likes best: demonstrations for an `sft` stage.

    Rejection-sampling fine-tuning, also best-of-N distillation (RAFT, Dong et al. 2023, arXiv:2304.06767).
    """

    kind: Literal["best_of_n"]
    model: ModelConfig
    """Who is asked."""
    prompts: InputPath | list[InputPath]
    """What is asked."""
    reward: RewardSpecs
    """Who judges."""
    num_samples: int = Field(8, ge=1)
    """Completions of each prompt."""
    keep: int = Field(1, ge=1)
    """How many of them are kept, best first; equal texts once."""
    min_score: float | None = None
    """Keep none that scores below this; null for no bound."""
    keep_cut: bool = False
    """Also keep completions that the length limit cut: they have no end, so nothing about ending is learned from them."""
    sampling: SamplingConfig = SamplingConfig()
    """How they are drawn."""
    max_prompt_length: int | None = Field(None, ge=1)
    """Longest prompt in tokens; longer ones are left out and counted."""
    limit: int | None = Field(None, ge=1)
    """Use only this many prompts, the first of the file."""
    seed: int | None = Field(None, ge=0)
    """The recipe's by default."""

    @model_validator(mode="after")
    def _can_choose(self) -> Self:
        if self.keep > self.num_samples:
            raise ValueError(f"keep ({self.keep}) must be at most num_samples ({self.num_samples})")
        if self.sampling.temperature == 0 and self.num_samples > 1:
            raise ValueError(
                "at sampling.temperature 0 all completions of a prompt are the same; give a number above 0"
            )
        return self


class EvaluateStage(Config):
    """Compare a policy with where it started, on prompts nobody trained on."""

    kind: Literal["evaluate"]
    policy: ModelConfig
    """The policy after."""
    baseline: ModelConfig
    """The policy before."""
    prompts: InputPath | list[InputPath]
    """Held-out prompts."""
    judge: JudgeSpec
    """Ground truth that no policy stage was trained against: any kind of reward."""
    reward_model: InputPath | None = None
    """The proxy that the policy was trained against: measured before and after, and on `pairs`."""
    pairs: InputPath | None = None
    """Held-out preference pairs, for the reward model's accuracy and calibration."""
    rollouts: InputPath | None = None
    """`rollouts.jsonl` of a policy stage: judged after the fact for the curve of proxy against truth."""
    max_prompt_length: int | None = Field(None, ge=1)
    """Longest prompt in tokens; longer ones are left out and counted."""
    limit: int | None = Field(None, ge=1)
    """Use only this many prompts, the first of the file."""
    samples_per_prompt: int = Field(1, ge=1)
    """Completions of each policy for each prompt."""
    sampling: SamplingConfig = SamplingConfig()
    """How they are drawn."""
    engine: EngineSpec = LocalEngineConfig()
    """Who draws them: `local` or `vllm`, as in stages that train."""
    seed: int | None = Field(None, ge=0)
    """The recipe's by default."""

    @model_validator(mode="after")
    def _engine_can_sample_so(self) -> Self:
        if complaint := engine_complaint(self.engine, self.sampling):
            raise ValueError(complaint)
        if is_lowered(self.engine):
            raise ValueError(
                "engine.weights must be same: an evaluation measures the policy itself, and no correction takes out what a copy of "
                "its weights in a lower precision says differently"
            )
        return self
