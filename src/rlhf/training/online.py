"""What all share that learn from their own completions: ask the policy, judge, measure against the reference, cut into steps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rlhf.activity import Activity, doing
from rlhf.config.engines import is_lowered
from rlhf.config.policy import RLConfig, SamplingConfig
from rlhf.data.contracts import Prompt
from rlhf.data.pack import PackedBatch
from rlhf.errors import ConfigError
from rlhf.losses import aggregate, entropy_bonus, segment_sum
from rlhf.models.divergence import check_comparable
from rlhf.models.policy import PolicyModel
from rlhf.models.reference import AdapterOffReference, Reference
from rlhf.models.score import TokenScores
from rlhf.rewards.factory import as_scorer
from rlhf.rewards.types import Scorer
from rlhf.rollout.engines import build_engine, close_engine, engine_figures, exactly, is_exact, listen_to
from rlhf.rollout.types import RolloutEngine
from rlhf.seeds import derive_seed
from rlhf.training.algorithm import Penalty, SelfCheck, Totals
from rlhf.training.control import build_kl_controller
from rlhf.training.engine_calls import ask_engine
from rlhf.training.experience import RolloutExperience
from rlhf.training.held_out import HeldOut
from rlhf.training.input_types import check_online
from rlhf.training.log import TrainingLogger
from rlhf.training.loop import Loop, TrainResult
from rlhf.training.metrics import Metrics
from rlhf.training.mismatch import Asked, build_mismatch
from rlhf.training.monitoring.rollout_alarms import all_weights_zero, steps_without_ratio
from rlhf.training.one_step_off import build_ahead
from rlhf.training.optim import Optimizer, TrainedModule, mixed_precision
from rlhf.training.policy_objective import correct_sampler, kl_in_loss, measure_ratios, policy_losses
from rlhf.training.randomness import random_state_kept
from rlhf.training.rollouts import (
    Gathered,
    Judged,
    Rollout,
    judge_rollout,
    measure_rollout,
    rollout_rows,
    shaped_scores,
)
from rlhf.training.row_order import Cycle, permutation
from rlhf.training.start_checks import CHECKED_EVERY, MAX_ENGINE_GAP, MAX_HALF_GAP, STALE, checks_at_start


class OnlineTrainer(ABC):
    """The asking half of ``rlhf.training.loop.Algorithm``; a trainer says how credit is given and what the loss is.

    Args:
        policy: Changed in place.
        config: Settings.
        prompts: What to ask, at least one.
        scorer: Judges completions; what ``as_scorer`` takes, or None where nothing is learned from scores, which then are 0.
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
        scorer: Scorer | None,
        *,
        reference: Reference,
        eval_prompts: Sequence[Prompt] = (),
        engine: RolloutEngine | None = None,
        log: TrainingLogger | None = None,
        checkpoint_dir: Path | None = None,
    ) -> None:
        scorer = None if scorer is None else as_scorer(scorer, tokenizer=getattr(policy, "tokenizer", None))
        check_online(config, policy=policy, reference=reference, scorer=scorer, prompts=prompts)
        if config.early_stopping is not None and not eval_prompts:
            raise ConfigError("early_stopping watches held-out prompts, and there are none; give eval_prompts.")
        self.policy = policy
        self.config = config
        self.prompts = prompts
        self.scorer = scorer
        self.reference = reference
        self.eval_prompts = eval_prompts[: config.evaluation.limit]
        self.own_engine = engine is None and config.engine.kind == "local"
        self.engine = engine or build_engine(policy, config.engine, autocast=config.autocast)
        self.ahead = build_ahead(policy, config, own_engine=self.own_engine, name=self.name)
        self.mismatch = build_mismatch(
            self.engine, policy, config, self._rescore, own_engine=self.own_engine, name=self.name
        )
        self.log = log or TrainingLogger()
        listen_to(self.engine, self.log.alarm)
        self.checkpoint_dir = checkpoint_dir
        self.penalties: list[Penalty] = []
        """Terms of the loss beside the completions'; to be appended to before training."""
        if config.kl.estimator == "exact" and config.kl.where != "none":
            check_comparable(policy, reference, what="The reference")
        self.controller = build_kl_controller(config.kl)
        self.kl_measured: tuple[float, int] | None = None
        """Mean KL to the reference of the newest rollout, nats per sequence, and its sequences; decides the next rollout's weight."""
        self.order = Cycle(len(prompts), seed=config.seed, name="prompts")
        self.num_phases = config.rollouts
        self.groups_per_step = config.minibatch_size // config.group_size
        self.steps_per_phase = config.steps_per_rollout
        self.version = 0
        """Of the weights, as the engine is told: phases that led to them."""
        self.equal_rollouts = 0
        """Rollouts whose scores taught nothing, because those that are compared were all the same."""
        self.at_start: dict[str, float] = {}
        """What the first rollout found, for ``self_checks``."""
        self.held_out = HeldOut(config.evaluation)
        self._shown: dict[str, float] = {}

    def train(self) -> TrainResult:
        """Train to the end, from the newest checkpoint where there is one."""
        try:
            return Loop(self, self.config, log=self.log, checkpoint_dir=self.checkpoint_dir).run()
        finally:
            if self.ahead is not None:
                self.ahead.close()
            close_engine(self.engine)

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
        # 1. Ask the policy as it is now, and judge.
        self.version = phase
        self._adapt_kl_weight()
        if self.ahead is not None and not self.ahead.has(phase):
            self.ahead.begin(self.first_prompts(phase), phase=phase, version=phase)
        if phase == 0 and self.eval_prompts and self.held_out.wants_start:
            with random_state_kept():
                start = self._ask_held_out(step=0)
            self.held_out.remember_start(start.rollout.completions, start.scores)
        gathered = self.gather(phase, metrics)
        rollout, experience = gathered.rollout, gathered.rollout.experience
        for name, value in (engine_figures(self.engine) if self.ahead is None else self.ahead.figures).items():
            metrics.mean(name, torch.tensor(value))
        scores = shaped_scores(self.config, rollout, gathered.scores)
        experience.columns.update(gathered.columns, scores=scores, truncated=rollout.truncated)
        # 2. Measure against the policy as it is, the reference, and the sampler.
        old = rollout.sampled_logprobs
        if not self._is_own_old(phase):
            old = experience.token_columns["old_logprobs"] = self._old_logprobs(rollout, phase, metrics)
            correct_sampler(self.config, experience, rollout.drawn_logprobs, metrics)
        self._tell(phase, all_weights_zero(self.name, self.config, experience))
        ref_kl = None
        if self.config.kl.is_measured(phase):
            ref = experience.token_columns["ref_logprobs"] = self._ref_logprobs(experience)
            ref_kl = segment_sum(old - ref, experience.score_seq, experience.num_sequences)
            experience.columns["ref_kl"] = ref_kl
        if phase == 0:
            worst = float((old - ref).abs().max())
            if worst <= self._max_gap or self._reference_is_policy():
                self.at_start["kl"] = worst
        # 3. Give credit.
        with self._precision():
            self.assign_credit(experience, metrics)
        self._look_for_differences(phase, gathered)
        if phase == 0 and "advantages" in experience.token_columns:
            self._tell(phase, steps_without_ratio(self.name, self.config, self.steps_per_phase))
        self._report(phase, gathered, ref_kl, metrics)
        self.kl_measured = None if ref_kl is None else (float(ref_kl.mean()), experience.num_sequences)
        # 4. Let the next rollout begin, with the weights that this one will change.
        if self.ahead is not None and phase + 1 < self.num_phases:
            self.ahead.begin(self.first_prompts(phase + 1), phase=phase + 1, version=phase)
        return experience

    def _adapt_kl_weight(self) -> None:
        """By what the rollout before showed: a rollout has one weight, in its rewards and in its losses, and that one is reported."""
        if self.kl_measured is not None:
            self.controller.update(*self.kl_measured)
            self.kl_measured = None

    def gather(self, phase: int, metrics: Metrics) -> Gathered:
        """The next prompts, ``group_size`` completions each; without the prompts that the scorer has no number for."""
        found = self.ask_and_judge(self.first_prompts(phase), phase, metrics)
        return Gathered(found.rollout, found.scores, found.scores)

    def first_prompts(self, phase: int) -> list[Prompt]:
        """What a rollout asks first; known as soon as the rollout before it is complete."""
        return self.next_prompts(phase * self.config.prompts_per_rollout, self.config.prompts_per_rollout)

    def next_prompts(self, start: int, count: int) -> list[Prompt]:
        """Prompts ``start .. start + count`` of the endless shuffled sequence of all."""
        return [self.prompts[number] for number in self.order.take(start, count)]

    def ask_and_judge(
        self, prompts: Sequence[Prompt], phase: int, metrics: Metrics, *, asked_before: int = 0
    ) -> Judged:
        """Completions of these prompts and their scores, in a rollout's first round of asking or a later one."""
        if not asked_before:
            return self.judge(self.ask_first(prompts, phase), metrics, phase=phase)
        # a prompt that comes again in a later round must not say the same again
        seed = derive_seed(self.config.seed, "sampling round", asked_before)
        rollout = self._ask(prompts, num_samples=self.config.group_size, seed=seed, step=phase)
        return self.judge(rollout, metrics, phase=phase)

    def ask_first(self, prompts: Sequence[Prompt], phase: int) -> Rollout:
        """Completions of ``first_prompts``: sampled now, or a phase ago where ``async_rollouts`` says so."""
        if self.ahead is not None:
            return self.ahead.take(prompts, phase=phase)
        return self._ask(prompts, num_samples=self.config.group_size, seed=self.config.seed, step=phase)

    def judge(self, rollout: Rollout, metrics: Metrics, *, phase: int) -> Judged:
        """Ask the scorer about a rollout or a part of one; prompts that it has no number for are left out, with an alarm."""
        planned = self.config.prompts_per_rollout
        return self._judged(rollout, metrics, step=phase * self.steps_per_phase + 1, planned=planned)

    def compared(self, gathered: Gathered) -> tuple[Tensor, str]:
        """[K, C] scores in rows of those that are compared with each other, and where these are, in words."""
        if self.config.group_size > 1:
            return gathered.scores.view(len(gathered.rollout.experience.groups), -1), "in every group"
        return gathered.scores.view(1, -1), "of the rollout"

    def restore(self, state: Mapping[str, Any]) -> RolloutExperience:
        """See ``Algorithm``."""
        return RolloutExperience.from_state(state)

    def steps(self, phase: int, experience: RolloutExperience) -> Iterator[list[PackedBatch]]:
        """Every epoch visits all groups in its own order."""
        limit = self.config.microbatch_tokens
        for epoch in range(self.config.epochs_per_rollout):
            order = permutation(len(experience.groups), self.config.seed, self.name, phase, epoch)
            yield from experience.steps(order, groups_per_step=self.groups_per_step, max_tokens=limit)

    def score(self, batch: PackedBatch, *, with_hidden: bool = False) -> TokenScores:
        """The policy's scores at the temperature that the completions were sampled at."""
        kl = self.config.kl
        return self.policy.score(
            batch,
            temperature=self.config.sampling.temperature,
            with_entropy=self.config.entropy_coef > 0,
            with_hidden=with_hidden or (kl.where == "loss" and kl.estimator == "exact"),
        )

    def policy_losses(self, scores: TokenScores, batch: PackedBatch, metrics: Metrics) -> Tensor:
        """[M] what ``policy_loss`` makes of the advantages, and what people watch."""
        losses = policy_losses(self.config, scores.logprobs, batch)
        metrics.mean("loss/policy", losses)
        measure_ratios(self.name, self.config, scores.logprobs, batch, metrics)
        return losses

    def policy_term(self, scores: TokenScores, batch: PackedBatch, totals: Totals, metrics: Metrics) -> Tensor:
        """Policy loss + KL - entropy bonus: this micro-batch's share of one number, as ``aggregation`` says."""
        config = self.config
        losses = self.policy_losses(scores, batch, metrics)
        if config.kl.where == "loss":
            kl = kl_in_loss(config, scores, batch, metrics, policy=self.policy, reference=self.reference)
            losses = losses + self.controller.coef * kl
        if scores.entropy is not None:
            metrics.mean("loss/entropy", scores.entropy)
            losses = losses + config.entropy_coef * entropy_bonus(scores.entropy)
        return aggregate(
            losses, batch.score_seq, how=config.aggregation, num_tokens=totals.num_tokens,
            num_sequences=totals.num_sequences, constant=float(config.sampling.max_new_tokens),
        )  # fmt: skip

    def everything(self, experience: RolloutExperience) -> list[PackedBatch]:
        """The whole rollout."""
        return experience.batches(range(len(experience.groups)), max_tokens=self.config.microbatch_tokens)

    @property
    def first_step_of_policy(self) -> int:
        """Counted from 1: where ratios are measured for the first time."""
        return 1

    def self_checks(self, step: int, metrics: Mapping[str, float]) -> Sequence[SelfCheck]:
        """Before the policy has learned anything, sampler, trainer and reference are one model."""
        ratios: list[float] = []
        if step == self.first_step_of_policy:
            ratios = [metrics[name] for name in (f"{self.name}/ratio_max", f"{self.name}/ratio_min") if name in metrics]
        return checks_at_start(self.at_start if step == 1 else {}, ratios, limit=self._max_gap)

    def ends_phase_early(self, metrics: Mapping[str, float]) -> bool:
        """True once the policy has moved too far from the one that sampled."""
        limit = self.config.stop_at_kl
        return limit is not None and metrics[f"{self.name}/kl_mean"] > limit

    def evaluate(self) -> dict[str, float]:
        """Score, KL to the reference (nats per sequence), length, share of ended completions; what ``evaluation`` asks for."""
        if not self.eval_prompts:
            return {}
        metrics = Metrics()
        self.version += 1
        judged = self._ask_held_out(step=self.version * self.steps_per_phase)
        rollout, scores, experience = judged.rollout, judged.scores, judged.rollout.experience
        log_ratio = rollout.sampled_logprobs - self._ref_logprobs(experience)
        ref_kl = segment_sum(log_ratio, experience.score_seq, experience.num_sequences)
        self.measure_held_out(experience, metrics)
        if self.scorer is None:
            measure_rollout("eval", rollout, None, ref_kl, metrics)
            return metrics.result()
        measure_rollout("eval", rollout, scores, ref_kl, metrics)
        return metrics.result() | self.held_out.metrics(rollout.completions, scores)

    def measure_held_out(self, experience: RolloutExperience, metrics: Metrics) -> None:  # noqa: B027 (most have none)
        """Whatever else a trainer can say of the completions of held-out prompts: nothing."""

    def _ask_held_out(self, *, step: int) -> Judged:
        """Completions of the held-out prompts, with the same seeds every time."""
        seed = derive_seed(self.config.seed, "evaluate")
        with exactly(self.engine):  # what is measured is the policy, and not a copy for sampling
            asked = self._ask(self.eval_prompts, num_samples=self.config.evaluation.samples, seed=seed, step=0)
        return self._judged(asked, Metrics(), step=step)

    def headline(self, metrics: Mapping[str, float]) -> str:
        """Score and KL of the newest rollout."""
        self._shown.update(metrics)
        score, kl = self._shown.get(f"{self.name}/score_mean"), self._shown.get(f"{self.name}/ref_kl")
        return f"reward {score:+.2f}, KL estimate {kl:.2f}" if score is not None and kl is not None else ""

    def state_dict(self) -> dict[str, Any]:
        """The KL controller and counts; prompts and samples follow from the seed and the phase."""
        return {
            "controller": self.controller.state_dict(),
            "kl_measured": self.kl_measured,
            "version": self.version,
            "equal_rollouts": self.equal_rollouts,
            "at_start": self.at_start,
            "held_out": self.held_out.state_dict(),
            "ahead": None if self.ahead is None else self.ahead.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state_dict`` was taken."""
        self.controller.load_state_dict(state["controller"])
        self.kl_measured = None if state["kl_measured"] is None else tuple(state["kl_measured"])
        self.version = state["version"]
        self.equal_rollouts = state["equal_rollouts"]
        self.at_start = dict(state["at_start"])
        self.held_out.load_state_dict(state["held_out"])
        if self.ahead is not None:
            self.ahead.load_state_dict(state["ahead"])

    def _ask(
        self,
        prompts: Sequence[Prompt],
        *,
        num_samples: int,
        seed: int,
        step: int,
        sampling: SamplingConfig | None = None,
    ) -> Rollout:
        """Completions sampled with the weights as they are now, in the recipe's way or another."""
        return ask_engine(
            self.engine, prompts, num_samples=num_samples, sampling=sampling or self.config.sampling, seed=seed, step=step,
            version=self.version, name=self.name, same_as=None if self.own_engine else self.policy,
        )  # fmt: skip

    def _judged(self, rollout: Rollout, metrics: Metrics, *, step: int, planned: int | None = None) -> Judged:
        """See ``judge_rollout``; ``step`` is where alarms stand in the log."""
        if self.scorer is None:
            return Judged.without_scores(rollout)
        limit = self.config.max_unscored_frac
        found = judge_rollout(rollout, self.scorer, metrics, limit=limit, name=self.name, planned=planned)
        if found.left_out is not None:
            self.log.alarm(step=step, **found.left_out)
        return found

    def _look_for_differences(self, phase: int, gathered: Gathered) -> None:
        """Say so where all scores that are compared with each other are equal: such a rollout teaches nothing."""
        if self.scorer is None:
            return
        (compared, where), scores = self.compared(gathered), gathered.scores
        if compared.shape[1] == 1 or not bool((compared == compared[:, :1]).all()):
            return
        self.equal_rollouts += 1
        if self.equal_rollouts.bit_count() == 1:  # the first, then at doubling counts
            self.log.alarm(
                f"{self.name}: all rewards {where} are equal in rollout {phase + 1} (the first is {float(scores[0]):g}): nothing can be "
                f"learned from them. Rollouts like this so far: {self.equal_rollouts}. Is the task too hard or too easy, or is the "
                f"reward {self.scorer.name} constant?",
                step=phase * self.steps_per_phase + 1, guard="equal_rewards", metric=f"{self.name}/score_mean",
                value=float(scores.mean()), limit=None, action="warn",
            )  # fmt: skip

    def _tell(self, phase: int, alarm: Mapping[str, Any] | None) -> None:
        if alarm is not None:
            self.log.alarm(step=phase * self.steps_per_phase + 1, **alarm)

    def _is_own_old(self, phase: int) -> bool:
        """Whether a rollout's only step can say what the policy says before it. In float32 the sampler has said it already."""
        config, alone = self.config, self.own_engine and self.ahead is None and self.mismatch is None
        needed_before = config.kl.where == "reward" or config.importance is not None or phase % CHECKED_EVERY == 0
        return alone and self.steps_per_phase == 1 and not self._exact and not needed_before

    def _old_logprobs(self, rollout: Rollout, phase: int, metrics: Metrics) -> Tensor:
        """[M] of the policy that the ratios are taken against."""
        sampled = rollout.sampled_logprobs
        # What is sampled ahead is of older weights from phase 1 on, and an engine outside may compute in another type.
        exact = self._exact and (self.ahead is None or phase == 0) and is_exact(self.engine)
        if exact and self.own_engine and phase % CHECKED_EVERY:
            return sampled  # sampler and trainer are one module and agree to rounding
        old = self._rescore(rollout, self.config.sampling.temperature)
        gap = (old - sampled).abs()
        metrics.mean("rollout/logprob_gap", gap)
        if self.mismatch is not None and (self.ahead is None or phase == 0):  # older weights have a gap of their own
            asked = Asked(self.config.sampling, self.config.seed, step=phase, version=self.version)
            self._tell(phase, self.mismatch.look(rollout, old, asked, metrics))
        worst = float(gap.max())
        if phase == 0 and (exact or not self._exact) and not is_lowered(self.config.engine):
            self.at_start["gap"] = worst
        elif (exact or (self.ahead is None and self.mismatch is None)) and not worst <= self._max_gap:
            self.log.alarm(
                f"{self.name}: the sampler's log-probabilities differ from the trainer's by up to {worst:.2g} nats: {STALE}",
                step=phase * self.steps_per_phase + 1, guard="engine", metric="rollout/logprob_gap",
                value=worst, limit=self._max_gap, action="warn",
            )  # fmt: skip
        return sampled if exact and self.own_engine and phase > 0 else old

    def _rescore(self, rollout: Rollout, temperature: float) -> Tensor:
        """[M] the policy's log-probabilities of what was sampled."""
        return self._logprobs("scoring", self.policy, rollout.experience, temperature)

    def _ref_logprobs(self, experience: RolloutExperience) -> Tensor:
        """[M] of the reference."""
        return self._logprobs("reference", self.reference, experience, self.config.sampling.temperature)

    def _logprobs(
        self, phase: Activity, model: PolicyModel | Reference, experience: RolloutExperience, temperature: float
    ) -> Tensor:
        device, limit = self.policy.device, self.config.microbatch_tokens
        with doing(phase, tokens=experience.num_tokens), self._precision():
            return experience.map(
                lambda batch: model.logprobs(batch.to(device), temperature=temperature), max_tokens=limit
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

    def _precision(self) -> AbstractContextManager[object]:
        """That of the training steps: two forwards of one model agree only in the same type."""
        return mixed_precision(self.config.autocast, self.policy.device)

    def _report(self, phase: int, gathered: Gathered, ref_kl: Tensor | None, metrics: Metrics) -> None:
        rollout = gathered.rollout
        judged = self.scorer is not None
        measure_rollout(self.name, rollout, gathered.all_scores if judged else None, ref_kl, metrics)
        if self.ahead is not None:
            ages = [float(phase - completion.weight_version) for completion in rollout.completions]
            metrics.mean("rollout/staleness", torch.tensor(ages))
        metrics.mean(f"{self.name}/kl_coef", torch.tensor(self.controller.coef))
        if self.config.entropy_coef == 0:  # not measured exactly: minus the log-probability is right on average
            metrics.mean("loss/entropy", -rollout.sampled_logprobs)
        scores = gathered.scores if judged else None
        self.log.rollouts(rollout_rows(rollout, scores, ref_kl, step=phase * self.steps_per_phase + 1))
