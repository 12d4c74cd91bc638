"""Settings of learning from rewards: what every method shares, and those with a critic."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field, PositiveFloat, model_validator

from rlhf.config.base import BaseConfig
from rlhf.config.curriculum import CurriculumConfig
from rlhf.config.engines import EngineSpec, LocalEngineConfig, is_lowered
from rlhf.config.formulas import PolicyFormula
from rlhf.config.hacking import HackingConfig
from rlhf.config.held_out import HeldOutConfig
from rlhf.config.kl import KLConfig, MovingReferenceConfig, default_of
from rlhf.config.offload_limits import Offloadable, check_offload
from rlhf.config.policy_losses import OF_SOME_LOSSES, POLICY_LOSSES
from rlhf.config.training import TrainConfig, Truncation

Aggregation = Literal["token", "sequence", "constant"]
if TYPE_CHECKING:
    PolicyLoss = str
else:
    PolicyLoss = Literal[tuple(POLICY_LOSSES)]


class SamplingConfig(BaseConfig):
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

    @property
    def is_whole(self) -> bool:
        """Whether completions come from the policy's own distribution, neither sharpened nor cut."""
        return (self.temperature, self.top_k, self.top_p, self.min_p, self.repetition_penalty) == (1, None, 1, 0, 1)


class AsyncRolloutsConfig(BaseConfig):
    """Sampling in a process of its own, while the policy learns from rollouts before."""

    max_staleness: int = Field(1, ge=0)
    """Versions of the weights between sampling and learning, and so many rollouts are sampled ahead; a version is what one rollout
    taught. 0 samples in turn, as without this section, with the same results."""


class ImportanceConfig(BaseConfig):
    """Correction for a sampler that is not quite the policy: another engine's kernels, rounding, older weights, or filters.

    The ratio is that of the policy, as the trainer computes it, to the distribution that was drawn from, as the engine
    reported it. It multiplies what an advantage does to a token, and nothing else.
    """

    level: Literal["token", "sequence", "geometric"] = "token"
    """Whose ratio of trainer to sampler: each token's (arXiv:2510.18855; Yao et al. 2025), the whole completion's, or its
    mean per token."""
    bound: Literal["truncate", "mask"] = "truncate"
    """A ratio out of bounds is cut to them, or its tokens are left out."""
    low: float = Field(0.0, ge=0, le=1)
    """Smallest ratio allowed."""
    high: float = Field(2.0, ge=1)
    """Largest ratio allowed."""


class OverlongConfig(BaseConfig):
    """Soft punishment of completions that come near the length limit (DAPO, eq. 13, arXiv:2503.14476)."""

    buffer_tokens: int | None = Field(None, ge=1)
    """Tokens before `sampling.max_new_tokens` over which the penalty grows from 0 to its weight; by default a fifth of the limit,
    the paper's share (4,096 of 20,480 tokens, section 4.1)."""
    weight: float = Field(1.0, gt=0)
    """Subtracted from the score at the limit."""

    def buffer_before(self, max_new_tokens: int) -> int:
        """Tokens before that limit over which the penalty grows."""
        return max(1, max_new_tokens // 5) if self.buffer_tokens is None else self.buffer_tokens


class RLConfig(TrainConfig):
    """What all methods that learn from rewards share: ask, judge, give credit, learn."""

    takes_importance: ClassVar[bool] = True
    """Whether advantages teach, which `importance` could weigh."""
    policy_losses: ClassVar[Mapping[str, PolicyFormula]] = POLICY_LOSSES
    """The choices of ``policy_loss``; a method with a formula of its own adds it here, and to the type of ``policy_loss``."""
    learning_rate: float = Field(1e-6, gt=0)
    """Peak learning rate of the policy."""
    warmup_frac: float = Field(0.05, ge=0, lt=1)
    """Share of the steps in which the learning rate rises from 0."""
    rollouts: int = Field(100, ge=1)
    """How many times the policy is asked; each rollout is followed by `epochs_per_rollout` passes over it."""
    prompts_per_rollout: int = Field(64, ge=1)
    """Prompts asked each time."""
    curriculum: CurriculumConfig | None = None
    """Ask prompts by how often the policy has solved them (docs/curriculum.md); null for all of them in turn."""
    group_size: int = Field(1, ge=1)
    """Completions sampled for each prompt."""
    epochs_per_rollout: int = Field(1, ge=1)
    """Passes over each rollout."""
    minibatch_size: int = Field(64, ge=1)
    """Completions in one optimizer step."""
    sampling: SamplingConfig = SamplingConfig()
    """How completions are drawn."""
    engine: EngineSpec = LocalEngineConfig()
    """Who samples: this process (`local`), or vLLM (`vllm`, or its settings), see docs/vllm.md."""
    policy_loss: PolicyLoss = "clip"
    """What an advantage does to a token: PPO's clipped ratio; one ratio for the whole completion (GSPO, arXiv:2507.18071), or
    its form for advantages by token; a clipped weight (CISPO, 2506.13585); a soft gate (SAPO, 2511.20347); or the plain
    policy gradient."""
    aggregation: Aggregation = "token"
    """Mean over all tokens of the step; over sequences of token means (a long completion counts less a token); or the sum
    divided by sequences times `max_new_tokens`."""
    clip_low: float = Field(0.2, ge=0, le=1)
    """Ratio is not rewarded below 1 - clip_low; 1 for no lower bound."""
    clip_high: float = Field(0.2, ge=0)
    """Ratio is not rewarded above 1 + clip_high; larger than clip_low is DAPO's clip-higher (arXiv:2503.14476)."""
    dual_clip: float | None = Field(None, gt=1)
    """Bounds the loss of bad completions whose ratio grew (Ye et al. 2019, eq. 5, arXiv:1912.09729)."""
    gate_temperatures: tuple[PositiveFloat, PositiveFloat] = (1.0, 1.05)
    """For `sapo`: how fast a token fades as its ratio leaves 1, where its advantage is above 0 and elsewhere."""
    async_rollouts: AsyncRolloutsConfig | None = None
    """Sample the next rollouts while this one is learned from, with the weights from before that, in a process of its own
    (Noukhovitch et al. 2024, arXiv:2410.18252). Results differ from those without it, and are as repeatable. Null for none."""
    importance: ImportanceConfig | None = None
    """Correct for differences between sampler and trainer; null where the sampler is this process's own. With `async_rollouts`, and with
    `engine.weights` of a lower precision, the ratio of each token is cut at 2, unless something else is said here."""
    kl: KLConfig = KLConfig()
    """Penalty for moving away from the reference."""
    moving_reference: MovingReferenceConfig | None = None
    """Let the reference follow the policy; null where it stays. It is a copy of the policy then, also with an adapter, and the KL is that
    to where it is."""
    offload: list[Offloadable] = Field(default_factory=list)
    """Frozen models whose weights wait in the CPU's memory and are copied to the GPU while they score a rollout: `reference`, `reward`
    (reward models, that of the judge included). Same results (docs/devices.md); on a CPU nothing changes."""
    entropy_coef: float = Field(0.0, ge=0)
    """Weight of the entropy bonus, exact over the vocabulary."""
    missing_eos_penalty: float = Field(0.0, ge=0)
    """Subtracted from the score of a completion that was cut by the length limit."""
    overlong: OverlongConfig | None = None
    """Soft punishment near the length limit; null for none."""
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
    evaluation: HeldOutConfig = HeldOutConfig()
    """What is measured on held-out prompts, in addition to the mean score."""
    hacking: HackingConfig | None = None
    """Detectors of reward hacking; by default those of docs/reward-hacking.md where there is a held-out `judge`, else none. `warn` for
    those that need no judge, too."""

    @property
    def learns_from_reference(self) -> bool:
        """Whether the reference decides what the policy learns, and is not only measured against."""
        return self.kl.where != "none"

    @property
    def policy_formula(self) -> PolicyFormula:
        """What computes ``policy_loss``."""
        return self.policy_losses[self.policy_loss]

    @property
    def max_staleness(self) -> int:
        """Rollouts that are sampled ahead of the one that is learned from; 0 where sampling and learning take turns."""
        return 0 if self.async_rollouts is None else self.async_rollouts.max_staleness

    @property
    def steps_per_rollout(self) -> int:
        """Optimizer steps that learn from one rollout. In the first of them every ratio is 1."""
        groups_per_step = self.minibatch_size // self.group_size
        return self.epochs_per_rollout * math.ceil(self.prompts_per_rollout / groups_per_step)

    @model_validator(mode="before")
    @classmethod
    def _other_weights_are_corrected(cls, tree: Any) -> Any:
        if not isinstance(tree, Mapping) or not cls.takes_importance:
            return tree
        if _samples_ahead(tree.get("async_rollouts")) or is_lowered(tree.get("engine")):
            return {"importance": ImportanceConfig(), **tree}
        return tree

    @model_validator(mode="after")
    def _rounded_weights_are_no_surprise(self) -> Self:
        weights = self.engine.lowered
        if weights is None:
            return self
        if self.takes_importance and self.importance is None:
            raise ValueError(
                f"engine.weights {weights!r} samples from a policy that is not quite the one that learns, and importance is null, which "
                "would take it for the same; leave importance out (a token's ratio is cut at 2 then), or give its settings"
            )
        if weights == self.autocast:
            raise ValueError(
                f"engine.weights {weights!r} changes nothing: with autocast {self.autocast!r} products are in that type already; leave "
                "one of the two out"
            )
        return self

    @model_validator(mode="after")
    def _older_weights_are_no_surprise(self) -> Self:
        if self.max_staleness == 0:
            return self
        if self.takes_importance and self.importance is None:
            raise ValueError(
                "async_rollouts learns from completions of older weights, and importance is null, which would take them for the "
                "policy's own; leave importance out (a token's ratio is cut at 2 then), or give its settings"
            )
        if self.kl.unbiased:
            raise ValueError(
                "kl.unbiased weighs by the ratio to the policy that a rollout's steps began from, and with async_rollouts an older "
                "one has sampled; leave one of the two out"
            )
        return self

    @model_validator(mode="after")
    def _weight_of_kl_is_reached(self) -> Self:
        if self.kl.warmup is not None and self.kl.warmup.rollouts >= self.rollouts:
            raise ValueError(
                f"kl.warmup.rollouts ({self.kl.warmup.rollouts}) must be below rollouts ({self.rollouts}), or no rollout has the weight "
                "kl.coef"
            )
        return self

    @model_validator(mode="after")
    def _moving_reference_pulls(self) -> Self:
        if self.moving_reference is not None and not self.learns_from_reference:
            raise ValueError(
                "moving_reference moves what the KL pulls towards, and nothing does where kl.where is 'none'; leave one of the two out"
            )
        return self

    @model_validator(mode="after")
    def _frozen_models_may_wait(self) -> Self:
        check_offload(self)
        return self

    @model_validator(mode="after")
    def _bounds_belong_to_the_loss(self) -> Self:
        for key in OF_SOME_LOSSES:
            if getattr(self, key) != default_of(self, key) and key not in self.policy_formula.settings:
                owners = " or ".join(f"`{name}`" for name, loss in self.policy_losses.items() if key in loss.settings)
                raise ValueError(
                    f"{key} does nothing where policy_loss is {self.policy_loss!r}; leave it out. It belongs to {owners}"
                )
        if self.dual_clip is not None and self.dual_clip <= 1 + self.clip_high:
            raise ValueError(f"dual_clip ({self.dual_clip:g}) must be above 1 + clip_high ({1 + self.clip_high:g})")
        return self

    @model_validator(mode="after")
    def _engine_can_sample_so(self) -> Self:
        if complaint := self.engine.complaint(self.sampling):
            raise ValueError(complaint)
        if self.max_staleness > 0 and not isinstance(self.engine, LocalEngineConfig):
            raise ValueError(
                f"async_rollouts samples in a process of its own, and so does engine `{self.engine.kind}`; leave one of the two out"
            )
        return self

    @model_validator(mode="after")
    def _can_be_learned_from(self) -> Self:
        if self.sampling.temperature == 0:
            raise ValueError("sampling.temperature is 0, but greedy completions have no ratio; give a number above 0")
        if self.minibatch_size % self.group_size:
            raise ValueError(
                f"minibatch_size ({self.minibatch_size}) must be a multiple of group_size ({self.group_size})"
            )
        limit = self.sampling.max_new_tokens
        if self.overlong is not None and (buffer := self.overlong.buffer_before(limit)) > limit:
            raise ValueError(f"overlong.buffer_tokens ({buffer}) must be at most sampling.max_new_tokens ({limit})")
        return self


def _samples_ahead(section: Any) -> bool:
    """Whether ``async_rollouts`` as written asks for completions of older weights; what is wrong with it is said elsewhere."""
    if isinstance(section, Mapping):
        return section.get("max_staleness", 1) != 0
    return isinstance(section, AsyncRolloutsConfig) and section.max_staleness > 0


class PPOConfig(RLConfig):
    """Proximal policy optimization with a critic.

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
    value_head: Literal["linear", "mlp"] = "linear"
    """Form of the critic's head: one matrix, or a hidden GELU layer before it."""
    head_hidden_size: int | None = Field(None, ge=1)
    """Width of the hidden layer of an `mlp` value_head; the model's by default."""
    value_coef: float = Field(0.5, ge=0)
    """Weight of the value loss."""
    clip_value: float | None = Field(0.2, gt=0)
    """New values are kept this close to the old ones in the loss; null for no limit."""
    gamma: float = Field(1.0, gt=0, le=1)
    """Discount."""
    gae_lambda: float = Field(0.95, ge=0, le=1)
    """GAE's lambda (Schulman et al. 2015, arXiv:1506.02438)."""
    value_gae_lambda: float | None = Field(None, ge=0, le=1)
    """The critic's own lambda (decoupled GAE, VAPO, arXiv:2504.05118); the policy's by default."""
    length_adaptive_alpha: float | None = Field(None, gt=0)
    """Set the policy's lambda by each completion's length l in tokens, to 1 - 1 / (alpha l), in place of `gae_lambda` (VAPO: 0.05). Up
    to 1 / alpha tokens it is 0, so short completions want a larger alpha."""
    value_warmup_rollouts: int = Field(0, ge=0)
    """Rollouts at the start in which only the critic learns (value pre-training, arXiv:2503.01491)."""
    positive_nll_coef: float = Field(0.0, ge=0)
    """Weight of the negative log-likelihood of completions whose score is above `positive_score`, a mean over all their tokens
    in the step (VAPO: 0.1)."""
    positive_score: float = 0.0
    """Above it a completion counts as good, for `positive_nll_coef`: its score after `missing_eos_penalty` and the like."""
    bootstrap_truncated: bool = False
    """After a completion that was cut by the length limit, the critic's estimate stands for what it would still have
    earned (Pardo et al. 2017, arXiv:1712.00378). By default a cut completion counts as ended: its score is that of the
    text as it is, and `missing_eos_penalty` says what being cut costs."""
    whiten_advantages: bool = True
    """Shift and scale advantages to mean 0 and deviation 1 over the rollout."""
    whiten_rewards: bool = False
    """Scale rewards to deviation 1 over the rollout, keeping their mean."""

    @model_validator(mode="after")
    def _options_belong_together(self) -> Self:
        if self.length_adaptive_alpha is not None and self.gae_lambda != default_of(self, "gae_lambda"):
            raise ValueError(
                "gae_lambda does nothing where length_adaptive_alpha sets each completion's; give one of the two"
            )
        if self.head_hidden_size is not None and self.value_head != "mlp":
            raise ValueError(f"head_hidden_size belongs to value_head 'mlp'; it is {self.value_head!r}")
        if self.positive_score != default_of(self, "positive_score") and not self.positive_nll_coef:
            raise ValueError("positive_score belongs to positive_nll_coef, which is 0; give it a weight such as 0.1")
        if self.policy_formula.sequence_ratio == "mean":
            raise ValueError(
                f"policy_loss {self.policy_loss!r} has one ratio and needs one advantage for a whole completion, and the critic gives each "
                "token its own; use `sequence_token`"
            )
        if self.value_warmup_rollouts >= self.rollouts:
            raise ValueError(
                f"value_warmup_rollouts ({self.value_warmup_rollouts}) must be below rollouts ({self.rollouts}): in the warm-up "
                "only the critic learns"
            )
        if self.value_warmup_rollouts and self.lr_find is not None:
            raise ValueError(
                f"lr_find measures the policy on the first rollout, and with value_warmup_rollouts {self.value_warmup_rollouts} only "
                "the critic learns from that; leave one of the two out"
            )
        return self


class VAPOConfig(PPOConfig):
    """PPO for long reasoning (Yue et al. 2025, arXiv:2504.05118): a pre-trained critic and lambdas for each side."""

    epochs_per_rollout: int = Field(1, ge=1)
    """Passes over each rollout."""
    group_size: int = Field(16, ge=1)
    """Completions sampled for each prompt."""
    clip_high: float = Field(0.28, ge=0)
    """Ratio is not rewarded above 1 + clip_high."""
    kl: KLConfig = KLConfig(where="none", coef=0.0)
    """Penalty for moving away from the reference."""
    value_gae_lambda: float | None = Field(1.0, ge=0, le=1)
    """The critic's own lambda."""
    length_adaptive_alpha: float | None = Field(0.05, gt=0)
    """Set the policy's lambda by each completion's length l, to 1 - 1 / (alpha l)."""
    value_warmup_rollouts: int = Field(50, ge=0)
    """Rollouts at the start in which only the critic learns."""
    positive_nll_coef: float = Field(0.1, ge=0)
    """Weight of the negative log-likelihood of completions whose score is above `positive_score`."""


class TRPOConfig(PPOConfig):
    """Trust-region policy optimization (Schulman et al. 2015, arXiv:1502.05477): one natural-gradient step a rollout.

    The policy takes one step with all completions of a rollout, as far as the exact KL to itself allows; there is nothing to
    clip. Then the critic learns by AdamW: rates, decay, clipping of gradients and the like are all for it alone.
    """

    takes_vocab_parallel: ClassVar[bool] = False
    """Each rank has the whole policy."""
    learning_rate: float = Field(1e-4, gt=0)
    """Peak learning rate of the critic, where `value_learning_rate` is null; the policy has none."""
    epochs_per_rollout: int = Field(4, ge=1)
    """Passes of the critic over each rollout."""
    minibatch_size: int = Field(64, ge=1)
    """Completions in one optimizer step of the critic; the policy's step has those of the whole rollout."""
    clip_low: float = Field(1.0, ge=0, le=1)
    """1: ratios have no lower bound. The trust region takes the place of clips."""
    clip_high: float = Field(1e9, ge=0)
    """So large that ratios have no upper bound."""
    max_kl: float = Field(0.01, gt=0)
    """Nats per token that a step may cost, KL(old || new), exact over the vocabulary."""
    damping: float = Field(0.1, ge=0)
    """Added to the diagonal of the Fisher matrix."""
    cg_iterations: int = Field(10, ge=1)
    """Steps of the conjugate-gradient solver."""
    line_search_tries: int = Field(10, ge=1)
    """How often a step is tried, each half of the one before, until it is given up."""
    fisher_frac: float = Field(1.0, gt=0, le=1)
    """Share of a rollout's completions that the Fisher matrix is measured on; the paper uses 0.1."""

    @model_validator(mode="after")
    def _nothing_is_ignored(self) -> Self:
        for key in ("policy_loss", "clip_low", "clip_high", "dual_clip", "stop_at_kl", "l2_coef", "lr_find"):
            if getattr(self, key) != default_of(self, key):
                raise ValueError(f"{key} does nothing for TRPO, whose step is bounded only by max_kl; leave it out")
        if self.value_model == "shared":
            raise ValueError("a shared value_model would move the policy outside the trust region; take `separate`")
        if self.autocast == "float16":
            raise ValueError(
                "autocast float16 scales gradients, which a natural gradient can't be made of; take bfloat16"
            )
        return self
