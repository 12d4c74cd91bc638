"""What PPO and GRPO share: ask the policy, judge what it said, measure it against the reference, cut it into steps."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rlhf.config.training import RLConfig
from rlhf.data.contracts import Prompt
from rlhf.data.pack import PackedBatch
from rlhf.errors import ConfigError, DataError, RewardError, TrainingError
from rlhf.losses import clipped_policy_loss, clipped_tokens, ratio_statistics, segment_sum
from rlhf.models.policy import PolicyModel
from rlhf.models.reference import Reference
from rlhf.models.score import TokenScores
from rlhf.rewards.types import Scorer
from rlhf.rollout.local import LocalEngine
from rlhf.rollout.types import Completion, RolloutEngine
from rlhf.seeds import derive_seed
from rlhf.training.control import AdaptiveKLController
from rlhf.training.experience import RolloutExperience
from rlhf.training.log import RunLog
from rlhf.training.loop import Loop, Totals, TrainResult
from rlhf.training.metrics import Metrics
from rlhf.training.optim import TrainedModule, mixed_precision
from rlhf.training.rows import Cycle, permutation

MAX_ENGINE_GAP = 1e-3
"""Nats between the sampler's log-probability and the trainer's above which the run says so (float32 agrees to 1e-4)."""


@dataclass(frozen=True, slots=True)
class Rollout:
    """Completions, and who asked for them."""

    experience: RolloutExperience
    prompts: list[Prompt]
    """[S] the prompt of each completion."""
    completions: list[Completion]
    """[S]."""

    @property
    def truncated(self) -> Tensor:
        """bool [S] cut by the length limit."""
        return torch.tensor([completion.truncated for completion in self.completions])

    @property
    def sampled_logprobs(self) -> Tensor:
        """float32 [M] what the engine reported."""
        return torch.tensor([number for completion in self.completions for number in completion.logprobs])


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
        self.controller = AdaptiveKLController(config.kl.coef, target=config.kl.target, horizon=config.kl.horizon)
        self.order = Cycle(len(prompts), seed=config.seed, name="prompts")
        self.num_phases = config.rollouts
        self.groups_per_step = config.sequences_per_step // config.group_size
        self.steps_per_phase = config.epochs_per_rollout * math.ceil(config.prompts_per_rollout / self.groups_per_step)
        self.version = 0
        """Of the weights, as the engine is told: phases that led to them."""
        self._shown: dict[str, float] = {}

    def train(self) -> TrainResult:
        """Train to the end, from the newest checkpoint where there is one."""
        return Loop(self, self.config, log=self.log, checkpoint_dir=self.checkpoint_dir).run()

    @abstractmethod
    def modules(self) -> Sequence[TrainedModule]:
        """What is trained."""

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
        experience = rollout.experience
        # 2. Judge.
        scores = self._judge(rollout, metrics)
        experience.columns.update(scores=self._shaped(scores, rollout.truncated), truncated=rollout.truncated)
        # 3. Measure against the policy as it is and against the reference.
        old = self._old_logprobs(rollout, phase, metrics)
        ref = self._ref_logprobs(experience)
        experience.token_columns.update(old_logprobs=old, ref_logprobs=ref)
        ref_kl = segment_sum(old - ref, experience.score_seq, experience.num_sequences)
        # 4. Give credit.
        with self._precision():
            self.assign_credit(experience, metrics)
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
            metrics.mean(f"{self.name}/ratio_overflow_frac", statistics.num_overflowed / size, size)
            clipped = clipped_tokens(logprobs, old, advantages, clip_low=low, clip_high=high, dual_clip=dual)
            metrics.mean(f"{self.name}/clip_frac", clipped)
        return losses

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
        rollout = self._ask(self.eval_prompts, num_samples=1, seed=seed, step=0)
        experience = rollout.experience
        log_ratio = rollout.sampled_logprobs - self._ref_logprobs(experience)
        ref_kl = segment_sum(log_ratio, experience.score_seq, experience.num_sequences)
        _measure("eval", rollout, self._judge(rollout, Metrics()), ref_kl, metrics)
        return metrics.result()

    def headline(self, metrics: Mapping[str, float]) -> str:
        """Score and KL of the newest rollout."""
        self._shown.update(metrics)
        score, kl = self._shown.get(f"{self.name}/score_mean"), self._shown.get(f"{self.name}/ref_kl")
        return f"reward {score:+.2f}, KL {kl:.2f}" if score is not None and kl is not None else ""

    def state_dict(self) -> dict[str, Any]:
        """The KL controller and the version; prompts and samples follow from the seed and the phase."""
        return {"controller": self.controller.state_dict(), "version": self.version}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state_dict`` was taken."""
        self.controller.load_state_dict(state["controller"])
        self.version = state["version"]

    def _ask(self, prompts: Sequence[Prompt], *, num_samples: int, seed: int, step: int) -> Rollout:
        """Completions sampled with the weights as they are now."""
        version, sampling = self.version, self.config.sampling
        self.engine.load_weights(version)
        groups = self.engine.generate(prompts, num_samples=num_samples, sampling=sampling, seed=seed, step=step)
        completions = [completion for group in groups for completion in group]
        stale = {completion.weight_version for completion in completions} - {version}
        if stale:
            raise TrainingError(
                f"{self.name}: the engine sampled with the weights of version {min(stale)}, and the trainer is at "
                f"{version}; an engine must sample with the version that load_weights named last."
            )
        asked = [prompt for prompt, group in zip(prompts, groups, strict=True) for _ in group]
        return Rollout(RolloutExperience.of(prompts, groups), asked, completions)

    def _judge(self, rollout: Rollout, metrics: Metrics) -> Tensor:
        """float32 [S] the scorer's verdicts; RewardError where there is none."""
        found = self.scorer.score(rollout.prompts, rollout.completions)
        if found.errors:
            place, reason = min(found.errors.items())
            raise RewardError(
                f"{self.scorer.name} could not judge {len(found.errors)} of {len(rollout.completions)} completions; "
                f"the first, of prompt {rollout.prompts[place].id!r}: {reason}"
            )
        if len(found.scores) != len(rollout.completions):
            raise RewardError(
                f"{self.scorer.name} gave {len(found.scores)} scores for {len(rollout.completions)} completions; "
                "it must give one for each."
            )
        for name, verdicts in found.per_component.items():
            metrics.mean(f"reward/{name}", torch.tensor([v for v in verdicts if v is not None], dtype=torch.float32))
        return torch.tensor(found.scores, dtype=torch.float32)

    def _shaped(self, scores: Tensor, truncated: Tensor) -> Tensor:
        """[S] scores after the penalty for being cut and the limits."""
        scores = scores - self.config.missing_eos_penalty * truncated
        limit = self.config.clip_score
        return scores if limit is None else scores.clamp(-limit, limit)

    def _old_logprobs(self, rollout: Rollout, phase: int, metrics: Metrics) -> Tensor:
        """[M] of the policy that the ratios are taken against."""
        sampled = rollout.sampled_logprobs
        exact = next(self.policy.parameters()).dtype == torch.float32 and self.config.autocast == "none"
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
        if exact and float(gap.max()) > MAX_ENGINE_GAP:
            self.log.alarm(
                f"The sampler's log-probabilities differ from the trainer's by up to {float(gap.max()):.2g} nats: "
                "stale weights, or a sampler that does not run the same model.",
                step=phase * self.steps_per_phase,
            )
        return old

    def _ref_logprobs(self, experience: RolloutExperience) -> Tensor:
        """[M] of the reference."""
        temperature, device = self.config.sampling.temperature, self.policy.device
        with self._precision():
            return experience.map(
                lambda batch: self.reference.logprobs(batch.to(device), temperature=temperature),
                max_tokens=self.config.tokens_per_microbatch,
            )

    def _precision(self) -> AbstractContextManager[object]:
        """That of the training steps: two forwards of one model agree only in the same type."""
        return mixed_precision(self.config.autocast, self.policy.device)

    def _report(self, phase: int, rollout: Rollout, scores: Tensor, ref_kl: Tensor, metrics: Metrics) -> None:
        _measure(self.name, rollout, scores, ref_kl, metrics)
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


def _measure(name: str, rollout: Rollout, scores: Tensor, ref_kl: Tensor, metrics: Metrics) -> None:
    metrics.mean(f"{name}/score_mean", scores)
    metrics.mean(f"{name}/ref_kl", ref_kl)
    lengths = torch.tensor([len(completion.tokens) for completion in rollout.completions])
    metrics.mean(f"{name}/length_mean", lengths)
    metrics.mean(f"{name}/eos_frac", ~rollout.truncated)
