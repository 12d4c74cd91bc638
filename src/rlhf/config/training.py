"""Settings that every trainer has. Defaults are documented where they are declared.

TrainConfig            optimizer, schedule, evaluation, checkpoints             here
  OfflineConfig        rows to a step, length of the run                        here
    SFTConfig                                                                   sft
    RewardModelConfig, ProcessRewardModelConfig                                 reward_model
    DPOConfig, SimPOConfig, CPOConfig, ORPOConfig, KTOConfig                    preference
  RLConfig             rollouts, clipping, penalty                              policy
    PPOConfig, VAPOConfig, TRPOConfig                                           policy
    GRPOConfig and its presets: DAPO, RLOO ...                                  groups
    OnlineDPOConfig, DistillConfig                                              on_policy
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from rlhf.config.base import BaseConfig, FilePath
from rlhf.config.engines import FREE_OF_ENGINES
from rlhf.config.fsdp import FSDPConfig
from rlhf.config.guards import GuardsConfig
from rlhf.config.method_hints import MethodHints
from rlhf.config.rewards import FREE_OF_REWARDS

Truncation = Literal["error", "keep_start", "keep_end", "drop"]
Autocast = Literal["none", "bfloat16", "float16"]
Schedule = Literal["cosine", "linear", "constant"]
Beta = Annotated[float, Field(ge=0, lt=1)]
MOST_EPOCHS = 1_000_000
"""More passes than this are taken for a typing error; the number of steps is counted before the first one."""

FREE_TO_CHANGE: dict[str, bool | set[str] | dict[str, Any]] = {
    "microbatch_tokens": True,
    "save_every": True,
    "keep_checkpoints": True,
    "keep_every": True,
    "save_in_background": True,
    "log_to": True,
    "guards": True,
    "max_nonfinite_steps": True,
    "hacking": {"action", "judge_slope", "collapse", "win_rate_drop", "judge_gap", "blind", "spikes"},
    "cache_reference": True,
    "offload": True,
    "data_workers": True,
    "engine": FREE_OF_ENGINES,
    "deepspeed": True,
    "fsdp": {"cpu_offload", "replicate", "vocab_parallel"},
    "reward": {"__all__": FREE_OF_REWARDS},
    "judge": FREE_OF_REWARDS,
}
"""Settings that a resumed run may change, whole sections or keys in them: where it keeps what, where helpers live, and when it asks for
help. None of them decides what a healthy run results in; a guard that stopped a run must not make it begin again from the start once its
limit was changed."""


class EarlyStoppingConfig(BaseConfig):
    """Watch a metric of the evaluation: keep its best weights, and stop when it has not improved for a while."""

    metric: str = "eval/loss"
    """Name of an evaluation metric."""
    mode: Literal["min", "max"] = "min"
    """Whether lower or higher is better."""
    patience: int | None = Field(3, ge=1)
    """Evaluations without improvement before the run stops; null to go on to the end."""
    min_delta: float = Field(0.0, ge=0)
    """Smaller changes do not count as an improvement."""
    keep_best: bool = True
    """The weights of the best evaluation are the result, not the last ones."""


class TrainConfig(MethodHints):
    """Optimizer, schedule, evaluation, checkpoints and logging: the same for every trainer."""

    takes_vocab_parallel: ClassVar[bool] = True
    """Whether ranks can train it with `fsdp.vocab_parallel`: its model lies in shards, and its loss takes no logits."""
    learning_rate: float = Field(2e-5, gt=0)
    """Peak learning rate."""
    lr_find: Literal["suggest", "use"] | None = None
    """Before the first step, try rising rates on the stage's own data and take every update back: `suggest` writes the rate that they
    speak for to the log and to events.jsonl, `use` trains at it in place of `learning_rate` (docs/learning-rates.md)."""
    schedule: Schedule = "cosine"
    """How the learning rate falls after warm-up."""
    warmup_frac: float = Field(0.1, ge=0, lt=1)
    """Share of the steps in which the learning rate rises from 0."""
    min_learning_rate_frac: float = Field(0.0, ge=0, le=1)
    """Where the schedule ends, as a share of the peak."""
    betas: tuple[Beta, Beta] = (0.9, 0.999)
    """AdamW's running averages."""
    eps: float = Field(1e-8, gt=0)
    """AdamW's denominator."""
    weight_decay: float = Field(0.0, ge=0)
    """Decoupled weight decay of matrices and embeddings; norms and biases, which have one dimension, never decay."""
    max_grad_norm: float | None = Field(1.0, gt=0)
    """The gradient of each model (policy, critic) is scaled down to this norm; null for no limit."""
    microbatch_tokens: int = Field(16_384, ge=1)
    """Distinct tokens in one forward pass: memory only; the result does not depend on it."""
    autocast: Autocast = "none"
    """Type of the matrix products; float16 adds a gradient scaler."""
    compiled: bool = False
    """On a CPU, compute in C, which a compiler of this machine (`cc`, `gcc`, `clang` or $CC) makes before the first step, in float32 or
    bfloat16: attention, norms, rotations, gates and sums over logits. Sums are added up in another order. What a family does otherwise
    than Llama (soft-caps, sinks, other norms) torch is used."""
    ema_decay: float | None = Field(None, gt=0, lt=1)
    """Keep an exponential moving average of the trained weights; it is what is evaluated and what is the result."""
    eval_every: int | None = Field(None, ge=1)
    """Steps between evaluations; by default about 5 in a run. There is always one at the end."""
    early_stopping: EarlyStoppingConfig | None = None
    """What to watch on held-out data; by default the run goes to its end and its last weights are the result."""
    save_every: int | None = Field(None, ge=1)
    """Steps between checkpoints; by default about 4 in a run."""
    keep_checkpoints: int = Field(2, ge=1)
    """How many of the newest checkpoints stay on disk."""
    keep_every: int | None = Field(None, ge=1)
    """Checkpoints at multiples of this many steps stay for good, the end of the stage included."""
    save_in_background: bool = True
    """Copy what is to be saved and go on training while it is written; the result does not depend on it."""
    max_nonfinite_steps: int = Field(3, ge=0)
    """Steps whose loss or gradient is not finite are left out, each with an alarm that names its samples; one more than
    this many in a run stops it."""
    guards: GuardsConfig = GuardsConfig()
    """Alarms while training, and what they do; `off` for none, `stop` for a run that ends at the first."""
    fsdp: FSDPConfig = FSDPConfig()
    """How ranks cut weights into shards; a recipe may say it once for all of its stages (docs/ranks.md)."""
    deepspeed: FilePath | None = None
    """DeepSpeed's own JSON file: over ranks its ZeRO (stages 1 to 3, offload) takes the place of FSDP2. A recipe may say it once for all of
    its stages (docs/ranks.md)."""
    l2_coef: float = Field(0.0, ge=0)
    """Weight of half the squared distance of the trained weights from where they started."""
    log_to: list[Literal["tensorboard", "wandb", "trackio"]] = Field(default_factory=list)
    """Besides the console and events.jsonl."""
    seed: int = Field(0, ge=0)
    """Seeds order, sampling, dropout and new heads."""


class OfflineConfig(TrainConfig):
    """Learning from rows of a file."""

    epochs: float | None = Field(1, gt=0, le=MOST_EPOCHS)
    """Passes over the rows; a part of a pass takes that part of its steps."""
    max_steps: int | None = Field(None, ge=1)
    """Optimizer steps; wins over `epochs`."""
    batch_size: int = Field(32, ge=1)
    """Rows (texts, pairs) in one optimizer step."""
    batch_tokens: int | None = Field(None, ge=1)
    """Fill a step up to this many distinct tokens instead of counting rows."""

    @model_validator(mode="after")
    def _has_a_length(self) -> Self:
        if self.epochs is None and self.max_steps is None:
            raise ValueError("training needs a length: give `epochs` or `max_steps`")
        return self
