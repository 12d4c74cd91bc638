"""What every trainer shares, and the settings of each algorithm. Defaults are documented where they are declared."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from rlhf.config.base import Config

Truncation = Literal["error", "keep_start", "keep_end", "drop"]


class EarlyStoppingConfig(Config):
    """Stop when a metric of the evaluation has not improved for a while."""

    metric: str = "eval/loss"
    """Name of an evaluation metric."""
    mode: Literal["min", "max"] = "min"
    """Whether lower or higher is better."""
    patience: int = Field(3, ge=1)
    """Evaluations without improvement before the run stops."""
    min_delta: float = Field(0.0, ge=0)
    """Smaller changes do not count as an improvement."""


class TrainConfig(Config):
    """Optimiser, schedule, batch, evaluation, checkpoints and logging: the same for every trainer."""

    learning_rate: float = Field(2e-5, gt=0)
    """Peak learning rate."""
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    """How the learning rate falls after warm-up."""
    warmup_frac: float = Field(0.1, ge=0, lt=1)
    """Share of the steps in which the learning rate rises from 0."""
    min_learning_rate_frac: float = Field(0.0, ge=0, le=1)
    """Where the schedule ends, as a share of the peak."""
    betas: tuple[float, float] = (0.9, 0.999)
    """AdamW's running averages."""
    eps: float = Field(1e-8, gt=0)
    """AdamW's denominator."""
    weight_decay: float = Field(0.0, ge=0)
    """Decoupled weight decay on matrices; never on norms, biases and embeddings of one dimension."""
    max_grad_norm: float | None = Field(1.0, gt=0)
    """Gradients are scaled down to this norm; null for no limit."""
    epochs: float | None = Field(None, gt=0)
    """Passes over the data; give this or `max_steps`."""
    max_steps: int | None = Field(None, ge=1)
    """Optimiser steps; wins over `epochs`."""
    rows_per_step: int = Field(32, ge=1)
    """Rows (texts, pairs) in one optimiser step."""
    tokens_per_step: int | None = Field(None, ge=1)
    """Fill a step up to this many distinct tokens instead of counting rows."""
    tokens_per_microbatch: int = Field(16_384, ge=1)
    """Distinct tokens in one forward pass: memory only; the result does not depend on it."""
    autocast: Literal["none", "bfloat16", "float16"] = "none"
    """Type of the matrix products; float16 adds a gradient scaler."""
    ema_decay: float | None = Field(None, gt=0, lt=1)
    """Keep an exponential moving average of the trained weights and save that instead of the last weights."""
    eval_every: int | None = Field(None, ge=1)
    """Steps between evaluations; by default about 5 in a run. There is always one at the end."""
    save_every: int | None = Field(None, ge=1)
    """Steps between checkpoints; by default about 4 in a run."""
    keep_checkpoints: int = Field(2, ge=1)
    """How many of the newest checkpoints stay on disk."""
    keep_best: Literal["auto", "never"] = "never"
    """`auto` keeps the weights of the best evaluation (by `early_stopping.metric`) as the result."""
    early_stopping: EarlyStoppingConfig | None = None
    """Stop early; off by default."""
    log_to: list[Literal["tensorboard", "wandb", "trackio"]] = []
    """Besides the console and events.jsonl."""
    seed: int = Field(0, ge=0)
    """Seeds order, sampling, dropout and new heads."""


class SFTConfig(TrainConfig):
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


class RewardConfig(TrainConfig):
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
    """An ensemble of this many, each with its own seed for head and order."""
    label_smoothing: float = Field(0.0, ge=0, lt=0.5)
    """Share of pairs believed to be labelled the wrong way round."""
    center_coef: float = Field(0.0, ge=0)
    """Weight of (chosen + rejected)^2, which keeps scores around 0 (Eisenstein et al. 2023, arXiv:2312.09244; 0.01 suggested)."""
    use_margin: bool = False
    """Read the column `margin` and ask for at least that difference of scores (Touvron et al. 2023, arXiv:2307.09288)."""
    normalize: bool = True
    """After training, shift and scale scores to mean 0 and deviation 1 over the training completions."""
    max_length: int | None = Field(512, ge=2)
    """Longest sequence in tokens."""
    truncation: Truncation = "drop"
    """What happens to longer pairs."""


class DPOConfig(TrainConfig):
    """Direct preference optimisation (Rafailov et al. 2023, arXiv:2305.18290)."""

    learning_rate: float = Field(5e-7, gt=0)
    """Peak learning rate; larger ones move far from the reference quickly."""
    epochs: float | None = Field(1, gt=0)
    """Passes over the pairs."""
    beta: float = Field(0.1, gt=0)
    """Strength of the pull towards the reference policy."""
    loss: Literal["sigmoid", "hinge", "ipo", "ipo_mean"] = "sigmoid"
    """`ipo` uses summed log-ratios as the paper has it, `ipo_mean` averages over tokens as its authors' code does."""
    label_smoothing: float = Field(0.0, ge=0, lt=0.5)
    """Share of pairs believed to be labelled the wrong way round (sigmoid only)."""
    sft_coef: float = Field(0.0, ge=0)
    """Weight of the chosen completions' token-mean negative log-likelihood (RPO, arXiv:2404.19733)."""
    max_length: int | None = Field(1024, ge=2)
    """Longest sequence in tokens."""
    truncation: Truncation = "drop"
    """What happens to longer pairs."""


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
    stop: list[str] = []
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
    """Sequences over which the adaptive weight changes by about its own size."""


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
    stop_at_kl: float | None = Field(None, gt=0)
    """End a rollout's passes early once the mean per-token KL to the sampling policy exceeds this."""
    max_prompt_length: int | None = Field(None, ge=1)
    """Longest prompt in tokens."""
    truncation: Truncation = "drop"
    """What happens to longer prompts."""


class PPOConfig(RLConfig):
    """Proximal policy optimisation with a critic (Schulman et al. 2017, arXiv:1707.06347; Ouyang et al. 2022, arXiv:2203.02155)."""

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
    whiten_advantages: bool = True
    """Shift and scale advantages to mean 0 and deviation 1 over the rollout."""
    whiten_rewards: bool = False
    """Scale rewards to deviation 1 over the rollout, keeping their mean."""


class GRPOConfig(RLConfig):
    """Group-relative policy optimisation (Shao et al. 2024, arXiv:2402.03300)."""

    group_size: int = Field(8, ge=2)
    """Completions sampled for each prompt."""
    prompts_per_rollout: int = Field(16, ge=1)
    """Prompts asked each time."""
    sequences_per_step: int = Field(128, ge=1)
    """Completions in one optimiser step; a multiple of group_size keeps groups whole."""
    kl: KLConfig = KLConfig(where="loss", estimator="k3", coef=0.04)
    """Penalty for moving away from the reference, in the loss as in the paper."""
    divide_by_std: bool = True
    """Divide advantages by the group's standard deviation; False is Dr. GRPO (arXiv:2503.20783)."""
    aggregation: Literal["sequence", "token", "constant"] = "sequence"
    """Mean over sequences of token means (the paper; long completions count less a token), over all tokens (DAPO), or a sum over
    a fixed length (Dr. GRPO)."""

    @model_validator(mode="after")
    def _whole_groups(self) -> Self:
        if self.sequences_per_step % self.group_size:
            raise ValueError(
                f"sequences_per_step ({self.sequences_per_step}) must be a multiple of group_size ({self.group_size})"
            )
        return self
