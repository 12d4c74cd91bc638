"""The kinds of stages that a recipe is made of: their settings, and where their inputs come from.

What a method's own settings are stands in ``sft``, ``reward_model``, ``preference``, ``policy``, ``groups`` and
``on_policy``; a stage adds models, data and who judges.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticKnownError

from rlhf.config.base import Config, FunctionName, InputPath
from rlhf.config.environment import EnvironmentSpec
from rlhf.config.groups import (
    CISPOConfig,
    DAPOConfig,
    DrGRPOConfig,
    GRPOConfig,
    GSPOConfig,
    ReinforcePPConfig,
    ReMaxConfig,
    RLOOConfig,
    SAPOConfig,
)
from rlhf.config.model import ModelConfig
from rlhf.config.on_policy import DistillConfig, OnlineDPOConfig
from rlhf.config.policy import PPOConfig, RLConfig, SamplingConfig, TRPOConfig, VAPOConfig
from rlhf.config.preference import CPOConfig, DPOConfig, KTOConfig, ORPOConfig, SimPOConfig
from rlhf.config.problems import PassAtKStage, ReasoningStage, StepLabelsStage
from rlhf.config.regularisers import EWCConfig
from rlhf.config.reward_model import ROWS_OF_LOSS, ProcessRewardModelConfig, RewardModelConfig
from rlhf.config.rewards import PerhapsRewardSpecs, RewardSpec, RewardSpecs
from rlhf.config.sft import SFTConfig
from rlhf.config.training import OfflineConfig

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
    columns: dict[str, str | None] | None = None
    """Other names for columns, theirs to ours, as in `question: prompt`; null drops a column."""
    limit: int | None = Field(None, ge=1)
    """Use only this many rows."""
    streaming: bool = False
    """Read rows as they are needed instead of loading the file; needs `max_steps`."""
    shuffle_buffer: int = Field(10_000, ge=0)
    """Rows of a stream that are shuffled together; 0 keeps the order of the file."""
    on_bad_row: Literal["error", "skip"] = "error"
    """Stop at a bad row, or count and list it."""


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
    noise: float = Field(0.1, ge=0, le=0.5)
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


class PolicyTraining(Config):
    """What every stage has that trains a policy, from files or from rewards."""

    ewc: EWCConfig | None = None
    """Hold the weights that other data depends on, so that it is not forgotten (elastic weight consolidation)."""


class SFTStage(SFTConfig, OfflineStage, PolicyTraining):
    """Supervised fine-tuning."""

    rows_for = "sft"
    kind: Literal["sft"]


class RewardStage(RewardModelConfig, OfflineStage):
    """Train a reward model."""

    rows_for = "preference"
    kind: Literal["reward"]
    model: ModelConfig
    """Whose backbone to start from."""

    @property
    def rows_wanted(self) -> RowsFor:
        """Pairs, comparisons with ties, rankings, ratings or verdicts: the loss decides."""
        return ROWS_OF_LOSS[self.loss]


class ProcessRewardStage(ProcessRewardModelConfig, OfflineStage):
    """Train a process reward model: a judge of each step."""

    rows_for = "stepwise"
    kind: Literal["prm"]
    model: ModelConfig
    """Whose backbone to start from."""

    @property
    def rows_wanted(self) -> RowsFor:
        """Labelled steps, or pairs."""
        return "preference" if self.loss == "pairs" else "stepwise"

    @model_validator(mode="after")
    def _layers_or_adapter(self) -> Self:
        if self.extra_layers and self.model.lora is not None:
            raise ValueError("extra_layers are trained as a whole, and lora freezes every layer; leave one of them out")
        return self


class DPOStage(DPOConfig, OfflineStage, PolicyTraining):
    """Direct preference optimisation."""

    rows_for = "preference"
    kind: Literal["dpo"]
    model: ModelConfig
    """Where to start; also the reference, unless one is named."""
    reference: ModelConfig | None = None
    """What the policy is measured against; the start by default. Iterated DPO names the first policy here."""

    @model_validator(mode="after")
    def _one_reference_or_none(self) -> Self:
        if self.reference_free and self.reference is not None:
            raise ValueError("reference names one, and reference_free says that there is none; take one of the two")
        return self


class SimPOStage(SimPOConfig, OfflineStage, PolicyTraining):
    """Simple preference optimisation: no reference."""

    rows_for = "preference"
    kind: Literal["simpo"]


class CPOStage(CPOConfig, OfflineStage, PolicyTraining):
    """Contrastive preference optimisation."""

    rows_for = "preference"
    kind: Literal["cpo"]


class ORPOStage(ORPOConfig, OfflineStage, PolicyTraining):
    """Odds-ratio preference optimisation."""

    rows_for = "preference"
    kind: Literal["orpo"]


class KTOStage(KTOConfig, OfflineStage, PolicyTraining):
    """Learning from single completions, good or bad: KTO and unpaired BCO."""

    rows_for = "kto"
    kind: Literal["kto"]
    reference: ModelConfig | None = None
    """What the policy is measured against; the start by default."""


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
    """Use only this many prompts."""


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


class PPOStage(PPOConfig, PolicyStage):
    """Proximal policy optimisation."""

    kind: Literal["ppo"]


class VAPOStage(VAPOConfig, PolicyStage):
    """PPO for long reasoning."""

    kind: Literal["vapo"]


class TRPOStage(TRPOConfig, PolicyStage):
    """Trust-region policy optimisation."""

    kind: Literal["trpo"]


class GRPOStage(GRPOConfig, PolicyStage):
    """Group-relative policy optimisation."""

    kind: Literal["grpo"]


class DrGRPOStage(DrGRPOConfig, PolicyStage):
    """GRPO without its biases."""

    kind: Literal["dr_grpo"]


class DAPOStage(DAPOConfig, PolicyStage):
    """Decoupled clip and dynamic sampling."""

    kind: Literal["dapo"]


class GSPOStage(GSPOConfig, PolicyStage):
    """Group sequence policy optimisation."""

    kind: Literal["gspo"]


class CISPOStage(CISPOConfig, PolicyStage):
    """Clipped importance weights."""

    kind: Literal["cispo"]


class SAPOStage(SAPOConfig, PolicyStage):
    """Soft adaptive policy optimisation."""

    kind: Literal["sapo"]


class RLOOStage(RLOOConfig, PolicyStage):
    """REINFORCE, each completion against its siblings."""

    kind: Literal["rloo"]


class ReinforcePPStage(ReinforcePPConfig, PolicyStage):
    """REINFORCE++."""

    kind: Literal["reinforce_pp"]


class ReMaxStage(ReMaxConfig, PolicyStage):
    """REINFORCE against the greedy completion."""

    kind: Literal["remax"]


class OnlineDPOStage(OnlineDPOConfig, PolicyStage):
    """DPO on the policy's own completions, judged by a reward."""

    kind: Literal["online_dpo"]


class DistillStage(DistillConfig, PromptInputs, PolicyTraining):
    """On-policy distillation."""

    kind: Literal["distill"]
    teacher: ModelConfig
    """Whose distributions to learn; the same vocabulary as the student's."""
    data: InputPath | list[InputPath] | None = None
    """Demonstrations, for the share of prompts that the student does not complete itself; those of other prompts are not used."""
    on_bad_row: Literal["error", "skip"] = "error"
    """Stop at a bad row of `data`, or count and list it."""

    @model_validator(mode="after")
    def _somebody_writes(self) -> Self:
        if (self.data is None) != (self.on_policy_frac == 1):
            raise ValueError(
                "data is for the share of prompts that the student does not complete itself: give it with an on_policy_frac "
                "below 1, or neither"
            )
        return self


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
    """Use only this many prompts."""
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
    judge: RewardSpec
    """Ground truth that no policy stage was trained against: a function, a rule, a lexicon or a reward model."""
    reward_model: InputPath | None = None
    """The proxy that the policy was trained against: measured before and after, and on `pairs`."""
    pairs: InputPath | None = None
    """Held-out preference pairs, for the reward model's accuracy and calibration."""
    rollouts: InputPath | None = None
    """`rollouts.jsonl` of a policy stage: judged after the fact for the curve of proxy against truth."""
    max_prompt_length: int | None = Field(None, ge=1)
    """Longest prompt in tokens; longer ones are left out and counted."""
    limit: int | None = Field(None, ge=1)
    """Use only this many prompts."""
    samples_per_prompt: int = Field(1, ge=1)
    """Completions of each policy for each prompt."""
    sampling: SamplingConfig = SamplingConfig()
    """How they are drawn."""
    seed: int | None = Field(None, ge=0)
    """The recipe's by default."""


Stage = Annotated[
    WorldStage
    | ReasoningStage
    | CalculatorStage
    | PreferencesStage
    | StepLabelsStage
    | SFTStage
    | RewardStage
    | ProcessRewardStage
    | DPOStage
    | SimPOStage
    | CPOStage
    | ORPOStage
    | KTOStage
    | PPOStage
    | VAPOStage
    | TRPOStage
    | GRPOStage
    | DrGRPOStage
    | DAPOStage
    | GSPOStage
    | CISPOStage
    | SAPOStage
    | RLOOStage
    | ReinforcePPStage
    | ReMaxStage
    | OnlineDPOStage
    | DistillStage
    | BestOfNStage
    | EvaluateStage
    | PassAtKStage,
    Field(discriminator="kind"),
]
POLICY_KINDS = (
    "sft",
    "dpo",
    "simpo",
    "cpo",
    "orpo",
    "kto",
    "ppo",
    "vapo",
    "trpo",
    "grpo",
    "dr_grpo",
    "dapo",
    "gspo",
    "cispo",
    "sapo",
    "rloo",
    "reinforce_pp",
    "remax",
    "online_dpo",
    "distill",
)
"""Kinds that leave a policy."""
JUDGE_KINDS = ("reward", "prm")
"""Kinds that leave a model which scores."""
MODEL_STAGES = (*POLICY_KINDS, *JUDGE_KINDS)
"""Kinds that leave a model."""
FILE_STAGES = ("world", "calculator", "preferences", "best_of_n", "evaluate", "reasoning", "step_labels", "pass_at_k")
"""Kinds that leave files."""
