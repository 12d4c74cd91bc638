"""Whether what an engine samples is what the trainer's policy says: the log-probabilities that ratios are taken against, compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from rlhf.config.engines import is_lowered
from rlhf.models.reference import AdapterOffReference, Reference
from rlhf.rollout.engines import is_exact
from rlhf.training.algorithm import SelfCheck
from rlhf.training.metrics import Metrics
from rlhf.training.mismatch import Asked, Rescore, build_mismatch
from rlhf.training.rollout_collector import RolloutCollector
from rlhf.training.rollouts import Rollout
from rlhf.training.start_checks import CHECKED_EVERY, MAX_ENGINE_GAP, MAX_HALF_GAP, STALE, checks_at_start


class SamplerChecks:
    """Compares a sampler with the policy that it samples for.

    Args:
        collector: Has the sampler, the policy and the config.
        rescore: The policy's own log-probabilities of a rollout.
        steps_per_rollout: Optimizer steps from one rollout to the next.
    """

    def __init__(self, collector: RolloutCollector, rescore: Rescore, *, steps_per_rollout: int) -> None:
        self.collector = collector
        self.config = collector.config
        self.name = collector.name
        self.rescore = rescore
        self.steps_per_rollout = steps_per_rollout
        self.mismatch = build_mismatch(
            collector.engine, collector.policy, self.config, rescore, own_engine=collector.own_engine, name=self.name
        )
        self.at_start: dict[str, float] = {}
        """What the first rollout measured, see ``checks_at_start``."""

    @property
    def exact(self) -> bool:
        """Whether log-probabilities are computed in float32 throughout."""
        return next(self.collector.policy.parameters()).dtype == torch.float32 and self.config.autocast == "none"

    @property
    def max_gap(self) -> float:
        """Nats by which two computations of one log-probability may differ."""
        return MAX_ENGINE_GAP if self.exact else MAX_HALF_GAP

    def needs_no_old(self, rollout_index: int) -> bool:
        """Whether a rollout's only step can say what the policy says before it. In float32 the sampler has said it already."""
        config, collector = self.config, self.collector
        alone = collector.own_engine and collector.ahead is None and self.mismatch is None
        needed_before = (
            config.kl.where == "reward" or config.importance is not None or rollout_index % CHECKED_EVERY == 0
        )
        return alone and self.steps_per_rollout == 1 and not self.exact and not needed_before

    def old_logprobs(self, rollout: Rollout, rollout_index: int, metrics: Metrics) -> Tensor:
        """[M] of the policy that the ratios are taken against.

        Args:
            rollout: As it was sampled.
            rollout_index: Which rollout of the run it is.
            metrics: Gets the gap between sampler and trainer.
        """
        collector, sampled = self.collector, rollout.sampled_logprobs
        own_weights = collector.ahead is None or rollout_index == 0
        # What is sampled ahead is of older weights from rollout 1 on, and an engine outside may compute in another type.
        exact = self.exact and own_weights and is_exact(collector.engine)
        if exact and collector.own_engine and rollout_index % CHECKED_EVERY:
            return sampled  # sampler and trainer are one module and agree to rounding
        old = self.rescore(rollout, self.config.sampling.temperature)
        gap = (old - sampled).abs()
        metrics.mean("rollout/logprob_gap", gap)
        step = rollout_index * self.steps_per_rollout + 1
        if self.mismatch is not None and own_weights:  # older weights have a gap of their own
            asked = Asked(self.config.sampling, self.config.seed, rollout_index, version=collector.version)
            alarm = self.mismatch.look(rollout, old, asked, metrics)
            if alarm is not None:
                collector.log.alarm(step=step, **alarm)
        worst = float(gap.max())
        if rollout_index == 0 and (exact or not self.exact) and not is_lowered(self.config.engine):
            self.at_start["gap"] = worst
        elif (exact or (collector.ahead is None and self.mismatch is None)) and not worst <= self.max_gap:
            collector.log.alarm(
                f"{self.name}: the sampler's log-probabilities differ from the trainer's by up to {worst:.2g} nats: {STALE}",
                step=step, guard="engine", metric="rollout/logprob_gap",
                value=worst, limit=self.max_gap, action="warn",
            )  # fmt: skip
        return sampled if exact and collector.own_engine and rollout_index > 0 else old

    def compare_reference(self, reference: Reference, old: Tensor, ref: Tensor) -> None:
        """In the first rollout: a reference that is close to the policy, or claims to be the policy as it is now, must agree with it.

        Args:
            reference: Which was asked.
            old: [M] the policy's log-probabilities.
            ref: [M] the reference's.
        """
        worst = float((old - ref).abs().max())
        if worst <= self.max_gap or self._is_policy(reference):
            self.at_start["kl"] = worst

    def self_checks(self, step: int, metrics: Mapping[str, float], *, policy_step: int) -> Sequence[SelfCheck]:
        """Before the policy has learned anything, sampler, trainer and reference are one model.

        Args:
            step: The optimizer step that was taken, counted from 1.
            metrics: Its own.
            policy_step: The first step that changes the policy.
        """
        ratios: list[float] = []
        if step == policy_step:
            ratios = [metrics[name] for name in (f"{self.name}/ratio_max", f"{self.name}/ratio_min") if name in metrics]
        return checks_at_start(self.at_start if step == 1 else {}, ratios, limit=self.max_gap)

    def _is_policy(self, reference: Reference) -> bool:
        """Whether it claims to be the policy as it is now."""
        return isinstance(reference, AdapterOffReference) or (
            reference.fingerprint() == self.collector.policy.fingerprint()
        )
