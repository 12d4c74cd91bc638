"""What every trainer shares, and the settings of each algorithm. Defaults are documented where they are declared.

TrainConfig            optimiser, schedule, evaluation, checkpoints
  OfflineConfig        rows to a step, length of the run
    SFTConfig, RewardModelConfig, DPOConfig
  RLConfig             rollouts, clipping, penalty
    PPOConfig, GRPOConfig
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from rlhf.config.base import Config
from rlhf.config.guards import GuardsConfig

Truncation = Literal["error", "keep_start", "keep_end", "drop"]
Autocast = Literal["none", "bfloat16", "float16"]
Schedule = Literal["cosine", "linear", "constant"]
Beta = Annotated[float, Field(ge=0, lt=1)]


class EarlyStoppingConfig(Config):
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


class TrainConfig(Config):
    """Optimiser, schedule, evaluation, checkpoints and logging: the same for every trainer."""

    learning_rate: float = Field(2e-5, gt=0)
    """Peak learning rate."""
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
    tokens_per_microbatch: int = Field(16_384, ge=1)
    """Distinct tokens in one forward pass: memory only; the result does not depend on it."""
    autocast: Autocast = "none"
    """Type of the matrix products; float16 adds a gradient scaler."""
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
    log_to: list[Literal["tensorboard", "wandb", "trackio"]] = Field(default_factory=list)
    """Besides the console and events.jsonl."""
    seed: int = Field(0, ge=0)
    """Seeds order, sampling, dropout and new heads."""


class OfflineConfig(TrainConfig):
    """Learning from rows of a file."""

    epochs: float | None = Field(1, gt=0)
    """Passes over the rows; a part of a pass takes that part of its steps."""
    max_steps: int | None = Field(None, ge=1)
    """Optimiser steps; wins over `epochs`."""
    rows_per_step: int = Field(32, ge=1)
    """Rows (texts, pairs) in one optimiser step."""
    tokens_per_step: int | None = Field(None, ge=1)
    """Fill a step up to this many distinct tokens instead of counting rows."""

    @model_validator(mode="after")
    def _has_a_length(self) -> Self:
        if self.epochs is None and self.max_steps is None:
            raise ValueError("training needs a length: give `epochs` or `max_steps`")
        return self


class SFTConfig(OfflineConfig):
    """Supervised fine-tuning: the negative log-likelihood of completions."""

    learning_rate: float = Field(2e-5, gt=0)
    """Peak learning rate."""
    epochs: float | None = Field(3, gt=0)
    """Passes over the data."""
    score: Literal["completion", "assistant", "all"] = "completion"
    """Which tokens are learned: completions, every assistant turn, or whole texts."""
    max_length: int | None = Field(None, ge=2)
    """Longest row in tokens."""
    truncation: Truncation = "error"
    """What happens to longer rows."""


class RewardModelConfig(OfflineConfig):
    """A reward model from preference pairs (Bradley-Terry)."""

    learning_rate: float = Field(1e-5, gt=0)
    """Peak learning rate."""
    epochs: float | None = Field(1, gt=0)
    """Passes over the pairs; a second one often overfits large models."""
    weight_decay: float = Field(0.01, ge=0)
    """Decoupled weight decay on matrices."""
    head: Literal["linear", "mlp"] = "linear"
    """`linear` is what transformers calls sequence classification; `mlp` has a hidden GELU layer."""
    head_dropout: float = Field(0.0, ge=0, lt=1)
    """Dropout before the head."""
    num_models: int = Field(1, ge=1)
    """An ensemble of this many backbones, each with a head drawn from its own seed, trained side by side."""
    num_heads: int = Field(1, ge=1)
    """An ensemble of heads on each backbone: cheaper than backbones, and less independent."""
    label_smoothing: float = Field(0.0, ge=0, lt=0.5)
    """Share of pairs believed to be labelled the wrong way round."""
    center_coef: float = Field(0.0, ge=0)
    """Weight of (chosen + rejected)^2, which keeps scores around 0 (Eisenstein et al. 2023, arXiv:2312.09244: 0.01)."""
    use_margin: bool = False
    """Ask for a difference of scores of at least the column `margin` (Touvron et al. 2023, arXiv:2307.09288)."""
    normalize: bool = True
    """After training, shift and scale scores to mean 0 and deviation 1 over the training completions."""
    max_length: int | None = Field(512, ge=2)
    """Longest sequence in tokens."""
    truncation: Truncation = "drop"
    """What happens to longer pairs."""


class DPOConfig(OfflineConfig):
    """Direct preference optimisation (Rafailov et al. 2023, arXiv:2305.18290)."""

    learning_rate: float = Field(5e-7, gt=0)
    """Peak learning rate; larger ones move far from the reference quickly."""
    epochs: float | None = Field(1, gt=0)
    """Passes over the pairs."""
    beta: float = Field(0.1, gt=0)
    """Strength of the pull towards the reference policy."""
    loss: Literal["sigmoid", "hinge", "ipo"] = "sigmoid"
    """DPO's own, the hinge of SLiC-HF and RSO (arXiv:2309.06657), or IPO (arXiv:2310.12036)."""
    ipo_per_token: bool = False
    """IPO with log-ratios per token, as its authors' code has them, instead of the paper's per completion."""
    label_smoothing: float = Field(0.0, ge=0, lt=0.5)
    """Share of pairs believed to be labelled the wrong way round; for `sigmoid`."""
    sft_coef: float = Field(0.0, ge=0)
    """Weight of the chosen completions' token-mean negative log-likelihood (RPO, arXiv:2404.19733)."""
    max_length: int | None = Field(1024, ge=2)
    """Longest sequence in tokens."""
    truncation: Truncation = "drop"
    """What happens to longer pairs."""

    @model_validator(mode="after")
    def _options_of_the_loss(self) -> Self:
        if self.label_smoothing and self.loss != "sigmoid":
            raise ValueError(f"label_smoothing belongs to the loss `sigmoid`; the loss {self.loss!r} has none")
        if self.ipo_per_token and self.loss != "ipo":
            raise ValueError(f"ipo_per_token belongs to the loss `ipo`; the loss is {self.loss!r}")
        return self


class SamplingConfig(Config):
    """How completions are drawn."""

    max_new_tokens: int = Field(64, ge=1)
    """Longest completion in tokens, EOS included."""
    temperature: float = Field(1.0, ge=0)
    """Divides the logits; 0 is greedy. Training needs 1 unless you know why not."""
    top_k: int | None = Field(None, ge=1)
    """Sample among this many most likely tokens."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Sample among the most likely tokens that together hold this share."""
    min_p: float = Field(0.0, ge=0, lt=1)
    """Drop tokens less likely than this share of the most likely one."""
    repetition_penalty: float = Field(1.0, gt=0)
    """Divides positive and multiplies negative logits of tokens seen before (Keskar et al. 2019, arXiv:1909.05858)."""
    stop: list[str] = Field(default_factory=list)
    """Texts that end a completion; they stay in it."""


class KLConfig(Config):
    """The penalty for moving away from the reference policy."""

    where: Literal["reward", "loss", "none"] = "reward"
    """Subtracted from each token's reward, added to the loss, or only measured."""
    estimator: Literal["k1", "k2", "k3", "abs", "mse"] = "k1"
    """Per-token estimate (Schulman 2020, "Approximating KL divergence"); k1 in the reward, k3 or k2 in the loss."""
    coef: float = Field(0.1, ge=0)
    """Weight."""
    target: float | None = Field(None, gt=0)
    """Adapt the weight to hold this KL, nats per sequence (Ziegler et al. 2019, section 2.2, arXiv:1909.08593)."""
    horizon: int = Field(10_000, ge=1)
    """Sequences over which the adaptive weight changes by at most about a fifth."""

    @model_validator(mode="after")
    def _can_pull(self) -> Self:
        if self.where == "loss" and self.estimator == "k1":
            raise ValueError("k1 pulls nowhere as a loss (its gradient is 0 on average); use `estimator: k3` or `k2`")
        return self


class RLConfig(TrainConfig):
    """What PPO and GRPO share: ask, judge, give credit, learn."""

    learning_rate: float = Field(1e-6, gt=0)
    """Peak learning rate of the policy."""
    warmup_frac: float = Field(0.05, ge=0, lt=1)
    """Share of the steps in which the learning rate rises from 0."""
    rollouts: int = Field(100, ge=1)
    """How many times the policy is asked; each rollout is followed by `epochs_per_rollout` passes over it."""
    prompts_per_rollout: int = Field(64, ge=1)
    """Prompts asked each time."""
    group_size: int = Field(1, ge=1)
    """Completions sampled for each prompt."""
    epochs_per_rollout: int = Field(1, ge=1)
    """Passes over each rollout."""
    sequences_per_step: int = Field(64, ge=1)
    """Completions in one optimiser step."""
    sampling: SamplingConfig = SamplingConfig()
    """How completions are drawn."""
    clip_low: float = Field(0.2, ge=0, lt=1)
    """Ratio is not rewarded below 1 - clip_low."""
    clip_high: float = Field(0.2, ge=0)
    """Ratio is not rewarded above 1 + clip_high; larger than clip_low is DAPO's clip-higher (arXiv:2503.14476)."""
    dual_clip: float | None = Field(None, gt=1)
    """Bounds the loss of bad completions whose ratio grew (Ye et al. 2019, eq. 5, arXiv:1912.09729)."""
    kl: KLConfig = KLConfig()
    """Penalty for moving away from the reference."""
    entropy_coef: float = Field(0.0, ge=0)
    """Weight of the entropy bonus, exact over the vocabulary."""
    missing_eos_penalty: float = Field(0.0, ge=0)
    """Subtracted from the score of a completion that was cut by the length limit."""
    clip_score: float | None = Field(None, gt=0)
    """Scores are limited to plus and minus this."""
    max_unscored_frac: float = Field(0.05, ge=0, lt=1)
    """Share of a rollout's prompts that may be left out because the reward gave no number for one of their completions,
    each time with an alarm that names them; more than this many stop the run."""
    stop_at_kl: float | None = Field(None, gt=0)
    """End a rollout's passes early once the mean per-token KL to the sampling policy exceeds this."""
    max_prompt_length: int | None = Field(None, ge=1)
    """Longest prompt in tokens."""
    truncation: Truncation = "drop"
    """What happens to longer prompts."""

    @model_validator(mode="after")
    def _can_be_learned_from(self) -> Self:
        if self.sampling.temperature == 0:
            raise ValueError("sampling.temperature is 0, but greedy completions have no ratio; give a number above 0")
        if self.sequences_per_step % self.group_size:
            raise ValueError(
                f"sequences_per_step ({self.sequences_per_step}) must be a multiple of group_size ({self.group_size})"
            )
        return self


class PPOConfig(RLConfig):
    """Proximal policy optimisation with a critic.

    Schulman et al. 2017, arXiv:1707.06347; for language models Ouyang et al. 2022, arXiv:2203.02155.
    """

    epochs_per_rollout: int = Field(4, ge=1)
    """Passes over each rollout."""
    value_learning_rate: float | None = Field(None, gt=0)
    """Peak learning rate of the critic; the policy's by default."""
    value_model: Literal["separate", "shared"] = "separate"
    """A critic with its own backbone, or a head on the policy's."""
    value_init: Literal["reward", "policy"] = "policy"
    """Where a separate critic's backbone starts: the (first) learned reward model, or the policy."""
    value_coef: float = Field(0.5, ge=0)
    """Weight of the value loss."""
    clip_value: float | None = Field(0.2, gt=0)
    """New values are kept this close to the old ones in the loss; null for no limit."""
    gamma: float = Field(1.0, gt=0, le=1)
    """Discount."""
    lam: float = Field(0.95, ge=0, le=1)
    """GAE's lambda (Schulman et al. 2015, arXiv:1506.02438)."""
    bootstrap_truncated: bool = False
    """After a completion that was cut by the length limit, the critic's estimate stands for what it would still have
    earned (Pardo et al. 2017, arXiv:1712.00378). By default a cut completion counts as ended: its score is that of the
    text as it is, and `missing_eos_penalty` says what being cut costs."""
    whiten_advantages: bool = True
    """Shift and scale advantages to mean 0 and deviation 1 over the rollout."""
    whiten_rewards: bool = False
    """Scale rewards to deviation 1 over the rollout, keeping their mean."""


class GRPOKLConfig(KLConfig):
    """The penalty as GRPO has it: in the loss, by k3 (arXiv:2402.03300, eq. 3 and 4)."""

    where: Literal["reward", "loss", "none"] = "loss"
    """Added to the loss, subtracted from each completion's score, or only measured."""
    estimator: Literal["k1", "k2", "k3", "abs", "mse"] = "k3"
    """Per-token estimate."""
    coef: float = Field(0.04, ge=0)
    """Weight."""


class GRPOConfig(RLConfig):
    """Group-relative policy optimisation (Shao et al. 2024, arXiv:2402.03300)."""

    group_size: int = Field(8, ge=2)
    """Completions sampled for each prompt."""
    prompts_per_rollout: int = Field(16, ge=1)
    """Prompts asked each time."""
    sequences_per_step: int = Field(128, ge=1)
    """Completions in one optimiser step; a multiple of group_size keeps groups whole."""
    kl: GRPOKLConfig = GRPOKLConfig()
    """Penalty for moving away from the reference."""
    divide_by_std: bool = True
    """Divide advantages by the group's standard deviation; False is Dr. GRPO (arXiv:2503.20783)."""
    aggregation: Literal["sequence", "token", "constant"] = "sequence"
    """Mean over sequences of token means (the paper; a long completion counts less a token), mean over all tokens
    (DAPO), or sum divided by the sequences times `max_new_tokens` (Dr. GRPO)."""
