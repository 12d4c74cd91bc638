"""What PPO and GRPO share: ask the policy, judge what it said, measure it against the reference, cut it into steps."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rlhf.config.training import RLConfig
from rlhf.data.contracts import Prompt
from rlhf.data.pack import Branch, Group, PackedBatch
from rlhf.errors import ConfigError, DataError
from rlhf.losses import KL_ESTIMATORS, clipped_policy_loss, clipped_tokens, ratio_statistics, segment_sum
from rlhf.models.policy import PolicyModel
from rlhf.models.reference import Reference
from rlhf.models.score import TokenScores
from rlhf.rewards.types import Scorer
from rlhf.rollout.local import LocalEngine
from rlhf.rollout.types import Completion, RolloutEngine
from rlhf.training.checkpoint import CheckpointStore
from rlhf.training.control import AdaptiveKLController
from rlhf.training.experience import RolloutExperience, steps_of
from rlhf.training.log import RunLog
from rlhf.training.loop import Loop, TrainResult
from rlhf.training.metrics import Metrics
from rlhf.training.rows import Cycle, permutation

MAX_ENGINE_GAP = 1e-3
"""Nats between the sampler's log-probability and the trainer's above which the run says so (float32 agrees to 1e-4)."""


class OnlineTrainer:
    """The asking half of ``rlhf.training.loop.Algorithm``; a trainer adds ``modules``, ``assign_credit`` and ``loss``.

    Args:
        policy: Changed in place.
        config: Settings.
        prompts: What to ask, at least one.
        scorer: Judges completions.
        reference: Log-probabilities of the policy that the KL penalty pulls towards; usually the policy as it was.
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
        engine: RolloutEngine | None = None,
        log: RunLog | None = None,
        checkpoint_dir: Path | None = None,
    ) -> None:
        if not prompts:
            raise DataError("There is no prompt to ask; run `rlhf data check FILE` on the prompts to see why.")
        if config.sampling.temperature == 0:
            raise ConfigError("sampling.temperature is 0: greedy completions have no ratio; training needs a number above 0.")
        self.policy = policy
        self.config = config
        self.prompts = prompts
        self.scorer = scorer
        self.reference = reference
        self.engine = engine or LocalEngine(policy)
        self.log = log or RunLog()
        self.checkpoint_dir = checkpoint_dir
        self.controller = AdaptiveKLController(config.kl.coef, target=config.kl.target, horizon=config.kl.horizon)
        self.order = Cycle(len(prompts), seed=config.seed, name="prompts")
        self.num_phases = config.rollouts
        self.groups_per_step = max(1, config.sequences_per_step // config.group_size)
        self.steps_per_phase = config.epochs_per_rollout * math.ceil(config.prompts_per_rollout / self.groups_per_step)

    def train(self) -> TrainResult:
        """Train to the end, from the newest checkpoint where there is one."""
        store = None
        if self.checkpoint_dir is not None:
            store = CheckpointStore(
                self.checkpoint_dir, keep=self.config.keep_checkpoints, identity=self.config.model_dump_json()
            )
        return Loop(self, self.config, log=self.log, checkpoints=store).run()  # type: ignore[arg-type]

    def collect(self, phase: int, metrics: Metrics) -> RolloutExperience:
        """One rollout with scores, reference log-probabilities and whatever credit the algorithm gives."""
        config = self.config
        # 1. Ask: the next prompts, group_size completions each, sampled by the policy as it is now.
        numbers = self.order.take(phase * config.prompts_per_rollout, config.prompts_per_rollout)
        prompts = [self.prompts[n] for n in numbers]
        groups = self.engine.generate(
            prompts, num_samples=config.group_size, sampling=config.sampling, seed=config.seed, step=phase
        )
        completions = [completion for group in groups for completion in group]
        experience = RolloutExperience(
            [
                Group(prompt.ids, [Branch(c.tokens) for c in group], {"id": prompt.id})
                for prompt, group in zip(prompts, groups, strict=True)
            ]
        )
        # 2. Judge.
        repeated = [prompt for prompt, group in zip(prompts, groups, strict=True) for _ in group]
        raw = torch.tensor(self.scorer.score(repeated, completions).scores, dtype=torch.float32)
        experience.columns["scores"] = self._shaped(raw, completions)
        # 3. Measure against the reference and against what the sampler reported.
        self._score_rollout(experience, completions, phase, metrics)
        log_ratio = experience.token_columns["old_logprobs"] - experience.token_columns["ref_logprobs"]
        ref_kl = segment_sum(log_ratio, experience.score_seq, experience.num_sequences)
        # 4. Give credit.
        self.assign_credit(experience, metrics)
        self._report(phase, repeated, completions, raw, ref_kl, metrics)
        self.controller.update(float(ref_kl.mean()), experience.num_sequences)
        return experience

    def assign_credit(self, experience: RolloutExperience, metrics: Metrics) -> None:
        """Add the token columns that ``loss`` reads."""
        raise NotImplementedError

    def restore(self, state: Mapping[str, Any]) -> RolloutExperience:
        """See ``Algorithm``."""
        return RolloutExperience.from_state(state)

    def steps(self, phase: int, experience: RolloutExperience) -> Iterator[list[PackedBatch]]:
        """Every epoch visits all groups in its own order."""
        for epoch in range(self.config.epochs_per_rollout):
            order = permutation(len(experience.groups), self.config.seed, self.name, phase, epoch)
            for numbers in steps_of(order, self.groups_per_step):
                yield experience.batches(numbers, max_tokens=self.config.tokens_per_microbatch)

    def score(self, batch: PackedBatch, *, with_hidden: bool = False) -> TokenScores:
        """The policy's scores at the temperature that the completions were sampled at."""
        return self.policy.score(
            batch,
            temperature=self.config.sampling.temperature,
            with_entropy=self.config.entropy_coef > 0,
            with_hidden=with_hidden,
        )

    def policy_losses(self, logprobs: Tensor, batch: PackedBatch, metrics: Metrics) -> Tensor:
        """[M] clipped surrogate, and what people watch."""
        config = self.config
        old, advantages = batch.token_columns["old_logprobs"], batch.token_columns["advantages"]
        clips = {"clip_low": config.clip_low, "clip_high": config.clip_high, "dual_clip": config.dual_clip}
        losses = clipped_policy_loss(logprobs, old, advantages, **clips)  # type: ignore[arg-type]
        with torch.no_grad():
            statistics = ratio_statistics(logprobs, old)
            size = float(len(logprobs))
            metrics.mean(f"{self.name}/ratio_mean", statistics.mean, size)
            metrics.mean(f"{self.name}/kl_mean", statistics.approx_kl, size)
            metrics.mean(f"{self.name}/ratio_overflow_frac", statistics.num_overflowed / size, size)
            clipped = clipped_tokens(logprobs, old, advantages, **clips)  # type: ignore[arg-type]
            metrics.mean(f"{self.name}/clip_frac", clipped.float())
        metrics.mean("loss/policy", losses)
        return losses

    def ends_phase_early(self, metrics: Mapping[str, float]) -> bool:
        """True once the policy has moved too far from the one that sampled."""
        limit = self.config.stop_at_kl
        return limit is not None and metrics.get(f"{self.name}/kl_mean", 0.0) > limit

    def evaluate(self) -> dict[str, float]:
        """Nothing: rollouts are measured as they come."""
        return {}

    def headline(self, metrics: Mapping[str, float]) -> str:
        """Score and KL of the newest rollout."""
        self._shown = {**getattr(self, "_shown", {}), **metrics}
        score, kl = self._shown.get(f"{self.name}/score_mean"), self._shown.get(f"{self.name}/ref_kl")
        return f"reward {score:+.2f}, KL {kl:.2f}" if score is not None and kl is not None else ""

    def state_dict(self) -> dict[str, Any]:
        """The KL controller; prompts and samples follow from the seed and the phase."""
        return {"controller": self.controller.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state_dict`` was taken."""
        self.controller.load_state_dict(state["controller"])

    def _shaped(self, scores: Tensor, completions: Sequence[Completion]) -> Tensor:
        """Scores after the penalty for being cut and the limits."""
        cut = torch.tensor([c.finish_reason == "length" for c in completions])
        scores = scores - self.config.missing_eos_penalty * cut
        return scores if self.config.clip_score is None else scores.clamp(-self.config.clip_score, self.config.clip_score)

    def _score_rollout(
        self, experience: RolloutExperience, completions: Sequence[Completion], phase: int, metrics: Metrics
    ) -> None:
        """old_logprobs and ref_logprobs, [M]."""
        config, device = self.config, self.policy.device
        limit = config.tokens_per_microbatch
        sampled = torch.tensor([number for c in completions for number in c.logprobs], dtype=torch.float32)
        exact = next(self.policy.parameters()).dtype == torch.float32 and config.autocast == "none"
        self.policy.model.eval()
        if exact and phase > 0:
            old = sampled  # sampler and trainer agree to rounding; checked in the first phase
        else:
            old = experience.map_tokens(lambda b: self.score(b).logprobs, max_tokens=limit, device=device)
            gap = (old - sampled).abs()
            metrics.mean("rollout/logprob_gap", gap)
            if exact and float(gap.max()) > MAX_ENGINE_GAP:
                self.log.alarm(
                    f"The sampler's log-probabilities differ from the trainer's by up to {float(gap.max()):.2g} nats: "
                    "stale weights, or a sampler that does not run the same model.",
                    step=phase,
                )
        experience.token_columns["old_logprobs"] = old
        temperature = config.sampling.temperature
        experience.token_columns["ref_logprobs"] = experience.map_tokens(
            lambda b: self.reference.logprobs(b, temperature=temperature), max_tokens=limit, device=device
        )

    def _report(
        self,
        phase: int,
        prompts: Sequence[Prompt],
        completions: Sequence[Completion],
        scores: Tensor,
        ref_kl: Tensor,
        metrics: Metrics,
    ) -> None:
        name = self.name
        metrics.mean(f"{name}/score_mean", scores)
        metrics.mean(f"{name}/ref_kl", ref_kl)
        metrics.mean(f"{name}/length_mean", torch.tensor([float(len(c.tokens)) for c in completions]))
        metrics.mean(f"{name}/eos_frac", torch.tensor([float(c.finish_reason != "length") for c in completions]))
        metrics.mean("loss/entropy", torch.tensor([-number for c in completions for number in c.logprobs]))
        metrics.mean(f"{name}/kl_coef", torch.tensor(self.controller.coef))
        step = phase * self.steps_per_phase + 1
        self.log.append(
            "rollouts.jsonl",
            (
                {
                    "step": step,
                    "prompt": prompt.text,
                    "completion": completion.text,
                    "ended": completion.finish_reason != "length",
                    "score": round(float(score), 5),
                    "kl": round(float(kl), 5),
                }
                for prompt, completion, score, kl in zip(prompts, completions, scores, ref_kl, strict=True)
            ),
        )
