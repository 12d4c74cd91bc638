"""What PPO and GRPO share: ask the policy, judge what it said, measure it against the reference, cut it into steps."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rlhf.config.policy import RLConfig
from rlhf.data.contracts import Prompt
from rlhf.data.pack import PackedBatch
from rlhf.errors import ConfigError, DataError, TrainingError
from rlhf.losses import clipped_policy_loss, clipped_tokens, ratio_statistics, segment_sum
from rlhf.models.policy import PolicyModel
from rlhf.models.reference import AdapterOffReference, Reference
from rlhf.models.score import TokenScores
from rlhf.rewards.types import Scorer
from rlhf.rollout.local import LocalEngine
from rlhf.rollout.types import RolloutEngine
from rlhf.seeds import derive_seed
from rlhf.training.algorithm import Penalty, SelfCheck, Totals
from rlhf.training.control import AdaptiveKLController
from rlhf.training.experience import RolloutExperience
from rlhf.training.log import RunLog
from rlhf.training.loop import Loop, TrainResult
from rlhf.training.metrics import Metrics
from rlhf.training.optim import Optimizer, TrainedModule, mixed_precision
from rlhf.training.rollouts import Rollout, judge_rollout, measure_rollout
from rlhf.training.rows import Cycle, permutation

MAX_ENGINE_GAP = 1e-3
"""Nats between two computations of one log-probability above which the run says so (float32 agrees to 1e-4)."""
MAX_HALF_GAP = 0.5
"""The same for half precision, where the worst of some thousand tokens differs by some hundredths."""
STALE = (
    "stale weights, an adapter that never reached the sampler, or a sampler that does not run the same model. Look at the "
    "engine's load_weights."
)
LARGEST_EXPONENT = 700.0
"""exp of more is infinite in float64."""
CHECKED_VERSIONS = 2
"""Versions of the weights whose fingerprint an engine outside must show: the first ones, and the first ones that were trained."""


class OnlineTrainer(ABC):
    """The asking half of ``rlhf.training.loop.Algorithm``; a trainer says how credit is given and what the loss is.

    Args:
        policy: Changed in place.
        config: Settings.
        prompts: What to ask, at least one.
        scorer: Judges completions.
        reference: Log-probabilities of the policy that the KL penalty pulls towards; usually the policy as it was.
        eval_prompts: Asked at each evaluation, with the same seeds; none for no evaluation.
        engine: Samples completions; by default in this process from the same weights.
        log: Where metrics and rollouts go.
        checkpoint_dir: Where checkpoints go; None for none.
    """

    name = "rl"

    def __init__(
        self,
        policy: PolicyModel,
        config: RLConfig,
        prompts: Sequence[Prompt],
        scorer: Scorer,
        *,
        reference: Reference,
        eval_prompts: Sequence[Prompt] = (),
        engine: RolloutEngine | None = None,
        log: RunLog | None = None,
        checkpoint_dir: Path | None = None,
    ) -> None:
        if not prompts:
            raise DataError("There is no prompt to ask; run `rlhf data check FILE` on the prompts to see why.")
        if config.early_stopping is not None and not eval_prompts:
            raise ConfigError("early_stopping watches held-out prompts, and there are none; give eval_prompts.")
        self.policy = policy
        self.config = config
        self.prompts = prompts
        self.scorer = scorer
        self.reference = reference
        self.eval_prompts = eval_prompts
        self.own_engine = engine is None
        self.engine = engine or LocalEngine(policy, autocast=config.autocast)
        self.log = log or RunLog()
        self.checkpoint_dir = checkpoint_dir
        self.penalties: list[Penalty] = []
        """Terms of the loss beside the completions'; to be appended to before training."""
        self.controller = AdaptiveKLController(config.kl.coef, target=config.kl.target, horizon=config.kl.horizon)
        self.order = Cycle(len(prompts), seed=config.seed, name="prompts")
        self.num_phases = config.rollouts
        self.groups_per_step = config.sequences_per_step // config.group_size
        self.steps_per_phase = config.epochs_per_rollout * math.ceil(config.prompts_per_rollout / self.groups_per_step)
        self.version = 0
        """Of the weights, as the engine is told: phases that led to them."""
        self.equal_rollouts = 0
        """Rollouts in a row whose scores taught nothing, because those that are compared were all the same."""
        self.at_start: dict[str, float] = {}
        """What the first rollout found, for ``self_checks``."""
        self._shown: dict[str, float] = {}

    def train(self) -> TrainResult:
        """Train to the end, from the newest checkpoint where there is one."""
        return Loop(self, self.config, log=self.log, checkpoint_dir=self.checkpoint_dir).run()

    @property
    def tokenizer(self) -> Any:
        """The policy's."""
        return self.policy.tokenizer

    def collecting_takes_long(self, phase: int) -> bool:
        """Yes: the policy is asked."""
        return True

    @abstractmethod
    def modules(self) -> Sequence[TrainedModule]:
        """What is trained."""

    def before_step(self, batches: Sequence[PackedBatch], metrics: Metrics) -> None:  # noqa: B027 (most have none)
        """Nothing: most losses know no more than their own rows."""

    def take_step(self, optimizer: Optimizer, step: int, batches: Sequence[PackedBatch]) -> dict[str, float]:
        """AdamW's."""
        return optimizer.step(step)

    @abstractmethod
    def assign_credit(self, experience: RolloutExperience, metrics: Metrics) -> None:
        """Add the token columns that ``loss`` reads."""

    @abstractmethod
    def loss(self, batch: PackedBatch, totals: Totals, metrics: Metrics) -> Tensor:
        """This micro-batch's part of the step's loss."""

    def collect(self, phase: int, metrics: Metrics) -> RolloutExperience:
        """One rollout with scores, reference log-probabilities and whatever credit the algorithm gives."""
        config = self.config
        # 1. Ask: the next prompts, group_size completions each, sampled by the policy as it is now.
        numbers = self.order.take(phase * config.prompts_per_rollout, config.prompts_per_rollout)
        prompts = [self.prompts[n] for n in numbers]
        self.version = phase
        rollout = self._ask(prompts, num_samples=config.group_size, seed=config.seed, step=phase)
        # 2. Judge; prompts that the scorer has no number for are left out.
        rollout, scores = self._judge(rollout, metrics, step=phase * self.steps_per_phase + 1)
        experience = rollout.experience
        experience.columns.update(scores=self._shaped(scores, rollout.truncated), truncated=rollout.truncated)
        # 3. Measure against the policy as it is and against the reference.
        old = self._old_logprobs(rollout, phase, metrics)
        ref = self._ref_logprobs(experience)
        experience.token_columns.update(old_logprobs=old, ref_logprobs=ref)
        if phase == 0:
            worst = float((old - ref).abs().max())
            if worst <= self._max_gap or self._reference_is_policy():
                self.at_start["kl"] = worst
        ref_kl = segment_sum(old - ref, experience.score_seq, experience.num_sequences)
        # 4. Give credit.
        with self._precision():
            self.assign_credit(experience, metrics)
        self._look_for_differences(phase, scores, experience)
        self._report(phase, rollout, scores, ref_kl, metrics)
        self.controller.update(float(ref_kl.mean()), experience.num_sequences)
        return experience

    def restore(self, state: Mapping[str, Any]) -> RolloutExperience:
        """See ``Algorithm``."""
        return RolloutExperience.from_state(state)

    def steps(self, phase: int, experience: RolloutExperience) -> Iterator[list[PackedBatch]]:
        """Every epoch visits all groups in its own order."""
        limit = self.config.tokens_per_microbatch
        for epoch in range(self.config.epochs_per_rollout):
            order = permutation(len(experience.groups), self.config.seed, self.name, phase, epoch)
            yield from experience.steps(order, groups_per_step=self.groups_per_step, max_tokens=limit)

    def score(self, batch: PackedBatch, *, with_hidden: bool = False) -> TokenScores:
        """The policy's scores at the temperature that the completions were sampled at."""
        return self.policy.score(
            batch,
            temperature=self.config.sampling.temperature,
            with_entropy=self.config.entropy_coef > 0,
            with_hidden=with_hidden,
        )

    def policy_losses(self, scores: TokenScores, batch: PackedBatch, metrics: Metrics) -> Tensor:
        """[M] clipped surrogate, and what people watch."""
        config, logprobs = self.config, scores.logprobs
        old, advantages = batch.token_columns["old_logprobs"], batch.token_columns["advantages"]
        low, high, dual = config.clip_low, config.clip_high, config.dual_clip
        losses = clipped_policy_loss(logprobs, old, advantages, clip_low=low, clip_high=high, dual_clip=dual)
        metrics.mean("loss/policy", losses)
        if scores.entropy is not None:
            metrics.mean("loss/entropy", scores.entropy)
        with torch.no_grad():
            statistics = ratio_statistics(logprobs, old)
            size = float(len(logprobs))
            metrics.mean(f"{self.name}/ratio_mean", statistics.mean, size)
            metrics.mean(f"{self.name}/kl_mean", statistics.approx_kl, size)
            log_ratio = (logprobs - old).double().clamp(min=-LARGEST_EXPONENT, max=LARGEST_EXPONENT)
            metrics.largest(f"{self.name}/ratio_max", log_ratio.exp())
            metrics.smallest(f"{self.name}/ratio_min", log_ratio.exp())
            metrics.mean(f"{self.name}/ratio_overflow_frac", statistics.num_overflowed / size, size)
            clipped = clipped_tokens(logprobs, old, advantages, clip_low=low, clip_high=high, dual_clip=dual)
            metrics.mean(f"{self.name}/clip_frac", clipped)
        return losses

    def everything(self, experience: RolloutExperience) -> list[PackedBatch]:
        """The whole rollout."""
        return experience.batches(range(len(experience.groups)), max_tokens=self.config.tokens_per_microbatch)

    def self_checks(self, metrics: Mapping[str, float]) -> Sequence[SelfCheck]:
        """Before anything was learned, sampler, trainer and reference are one model."""
        found, limit = self.at_start, self._max_gap
        checks = []
        if "gap" in found:
            checks.append(SelfCheck("the gap between sampler and trainer (nats)", found["gap"], limit, STALE))
        ratios = [metrics[name] for name in (f"{self.name}/ratio_max", f"{self.name}/ratio_min") if name in metrics]
        if ratios:
            meaning = "the policy that learns is not the one that sampled. Is dropout on, or another type in use?"
            checks.append(
                SelfCheck(
                    "the first ratio's distance from 1 (nats)",
                    max(abs(math.log(ratio)) for ratio in ratios),
                    limit,
                    meaning,
                )
            )
        if "kl" in found:
            meaning = (
                "the reference is not the policy that this run starts from. Was it loaded in another type, or changed?"
            )
            checks.append(SelfCheck("the KL to the reference (largest, nats per token)", found["kl"], limit, meaning))
        return checks

    def ends_phase_early(self, metrics: Mapping[str, float]) -> bool:
        """True once the policy has moved too far from the one that sampled."""
        limit = self.config.stop_at_kl
        return limit is not None and metrics[f"{self.name}/kl_mean"] > limit

    def evaluate(self) -> dict[str, float]:
        """Score, KL to the reference (nats per sequence), length and share of ended completions on held-out prompts."""
        if not self.eval_prompts:
            return {}
        metrics = Metrics()
        seed = derive_seed(self.config.seed, "evaluate")
        self.version += 1
        asked = self._ask(self.eval_prompts, num_samples=1, seed=seed, step=0)
        rollout, scores = self._judge(asked, Metrics(), step=self.version * self.steps_per_phase)
        experience = rollout.experience
        log_ratio = rollout.sampled_logprobs - self._ref_logprobs(experience)
        ref_kl = segment_sum(log_ratio, experience.score_seq, experience.num_sequences)
        measure_rollout("eval", rollout, scores, ref_kl, metrics)
        return metrics.result()

    def headline(self, metrics: Mapping[str, float]) -> str:
        """Score and KL of the newest rollout."""
        self._shown.update(metrics)
        score, kl = self._shown.get(f"{self.name}/score_mean"), self._shown.get(f"{self.name}/ref_kl")
        return f"reward {score:+.2f}, KL {kl:.2f}" if score is not None and kl is not None else ""

    def state_dict(self) -> dict[str, Any]:
        """The KL controller and counts; prompts and samples follow from the seed and the phase."""
        return {
            "controller": self.controller.state_dict(),
            "version": self.version,
            "equal_rollouts": self.equal_rollouts,
            "at_start": self.at_start,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state_dict`` was taken."""
        self.controller.load_state_dict(state["controller"])
        self.version = state["version"]
        self.equal_rollouts = state["equal_rollouts"]
        self.at_start = dict(state["at_start"])

    def _ask(self, prompts: Sequence[Prompt], *, num_samples: int, seed: int, step: int) -> Rollout:
        """Completions sampled with the weights as they are now."""
        version, sampling = self.version, self.config.sampling
        self.engine.load_weights(version)
        groups = self.engine.generate(prompts, num_samples=num_samples, sampling=sampling, seed=seed, step=step)
        completions = [completion for group in groups for completion in group]
        self._check_engine()
        stale = {completion.weight_version for completion in completions} - {version}
        if stale:
            raise TrainingError(
                f"{self.name}: the engine sampled with the weights of version {min(stale)}, and the trainer is at "
                f"{version}; an engine must sample with the version that load_weights named last."
            )
        asked = [prompt for prompt, group in zip(prompts, groups, strict=True) for _ in group]
        return Rollout(RolloutExperience.of(prompts, groups), asked, completions)

    def _judge(self, rollout: Rollout, metrics: Metrics, *, step: int) -> tuple[Rollout, Tensor]:
        """See ``judge_rollout``; ``step`` is where alarms stand in the log."""
        found = judge_rollout(rollout, self.scorer, metrics, limit=self.config.max_unscored_frac, name=self.name)
        if found.left_out is not None:
            self.log.alarm(step=step, **found.left_out)
        return found.rollout, found.scores

    def _look_for_differences(self, phase: int, scores: Tensor, experience: RolloutExperience) -> None:
        """Say so where all scores that are compared with each other are equal: such a rollout teaches nothing."""
        by_group = scores.view(len(experience.groups), -1)
        compared = by_group if self.config.group_size > 1 else scores.view(1, -1)
        if compared.shape[1] == 1 or not bool((compared == compared[:, :1]).all()):
            self.equal_rollouts = 0
            return
        self.equal_rollouts += 1
        if self.equal_rollouts in (1, 10) or self.equal_rollouts % 100 == 0:
            where = "in every group" if self.config.group_size > 1 else "of the rollout"
            self.log.alarm(
                f"{self.name}: all rewards {where} are equal ({float(scores[0]):g} for the first), for {self.equal_rollouts} "
                f"rollout(s) in a row: nothing can be learned from them. Is the task too hard, too easy, or is {self.scorer.name} constant?",
                step=phase * self.steps_per_phase + 1, guard="equal_rewards", metric=f"{self.name}/score_mean",
                value=float(scores.mean()), limit=None, action="warn",
            )  # fmt: skip

    def _shaped(self, scores: Tensor, truncated: Tensor) -> Tensor:
        """[S] scores after the penalty for being cut and the limits."""
        scores = scores - self.config.missing_eos_penalty * truncated
        limit = self.config.clip_score
        return scores if limit is None else scores.clamp(-limit, limit)

    def _old_logprobs(self, rollout: Rollout, phase: int, metrics: Metrics) -> Tensor:
        """[M] of the policy that the ratios are taken against."""
        sampled = rollout.sampled_logprobs
        exact = self._exact
        if exact and self.own_engine and phase > 0:
            return sampled  # sampler and trainer are one module and agree to rounding; checked in the first phase
        temperature = self.config.sampling.temperature
        with self._precision():
            old = rollout.experience.map(
                lambda batch: self.policy.logprobs(batch, temperature=temperature),
                max_tokens=self.config.tokens_per_microbatch,
            )
        gap = (old - sampled).abs()
        metrics.mean("rollout/logprob_gap", gap)
        worst = float(gap.max())
        if phase == 0:
            self.at_start["gap"] = worst
        elif exact and worst > MAX_ENGINE_GAP:
            self.log.alarm(
                f"{self.name}: the sampler's log-probabilities differ from the trainer's by up to {worst:.2g} nats: {STALE}",
                step=phase * self.steps_per_phase + 1, guard="engine", metric="rollout/logprob_gap",
                value=worst, limit=MAX_ENGINE_GAP, action="warn",
            )  # fmt: skip
        return old

    def _ref_logprobs(self, experience: RolloutExperience) -> Tensor:
        """[M] of the reference."""
        temperature, device = self.config.sampling.temperature, self.policy.device
        with self._precision():
            return experience.map(
                lambda batch: self.reference.logprobs(batch.to(device), temperature=temperature),
                max_tokens=self.config.tokens_per_microbatch,
            )

    @property
    def _exact(self) -> bool:
        """Whether log-probabilities are computed in float32 throughout."""
        return next(self.policy.parameters()).dtype == torch.float32 and self.config.autocast == "none"

    @property
    def _max_gap(self) -> float:
        """Nats by which two computations of one log-probability may differ."""
        return MAX_ENGINE_GAP if self._exact else MAX_HALF_GAP

    def _reference_is_policy(self) -> bool:
        """Whether the reference claims to be the policy as it is now."""
        if isinstance(self.reference, AdapterOffReference):
            return True
        return self.reference.fingerprint() == self.policy.fingerprint()

    def _check_engine(self) -> None:
        """An engine outside must run the trainer's weights: the first ones, and the first that were trained."""
        if self.own_engine or self.version >= CHECKED_VERSIONS:
            return
        if self.engine.fingerprint() != self.policy.fingerprint():
            raise TrainingError(
                f"{self.name}: the engine's weights are not the trainer's at version {self.version}, though it says that it loaded "
                f"them: {STALE}"
            )

    def _precision(self) -> AbstractContextManager[object]:
        """That of the training steps: two forwards of one model agree only in the same type."""
        return mixed_precision(self.config.autocast, self.policy.device)

    def _report(self, phase: int, rollout: Rollout, scores: Tensor, ref_kl: Tensor, metrics: Metrics) -> None:
        measure_rollout(self.name, rollout, scores, ref_kl, metrics)
        metrics.mean(f"{self.name}/kl_coef", torch.tensor(self.controller.coef))
        if self.config.entropy_coef == 0:  # not measured exactly: minus the log-probability is right on average
            metrics.mean("loss/entropy", -rollout.sampled_logprobs)
        step = phase * self.steps_per_phase + 1
        self.log.rollouts(
            {
                "step": step,
                "prompt": prompt.text,
                "completion": completion.text,
                "ended": not completion.truncated,
                "score": round(score, 5),
                "kl": round(kl, 5),
            }
            for prompt, completion, score, kl in zip(
                rollout.prompts, rollout.completions, scores.tolist(), ref_kl.tolist(), strict=True
            )
        )
