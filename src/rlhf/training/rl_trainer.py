"""What all trainers share whose policy learns from its own completions: sample, score, measure against the reference, cut into steps.

rollout_collector samples and scores, sampler_checks compares sampler and trainer, rl_objective is the loss.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from rlhf.activity import Activity, doing
from rlhf.config.base import BaseConfig
from rlhf.config.policy import RLConfig
from rlhf.data.contracts import Prompt
from rlhf.data.pack import PackedBatch
from rlhf.distributed.ranks import current_ranks
from rlhf.errors import ConfigError
from rlhf.losses import segment_sum
from rlhf.models.divergence import check_comparable
from rlhf.models.policy import PolicyModel
from rlhf.models.reference import Reference
from rlhf.rewards.factory import as_scorer
from rlhf.training.algorithm import Penalty, SelfCheck, Totals
from rlhf.training.control import build_kl_controller
from rlhf.training.experience import RolloutExperience
from rlhf.training.frozen_models import logprobs_of, offload_frozen
from rlhf.training.hacking_watch import HackingWatch
from rlhf.training.held_out import HeldOut
from rlhf.training.input_types import check_rl_inputs
from rlhf.training.inputs import RLConfigT, RLInputs, built_from
from rlhf.training.log import TrainingLogger
from rlhf.training.loop import Loop, TrainResult
from rlhf.training.metrics import Metrics
from rlhf.training.monitoring.guards import Finding
from rlhf.training.monitoring.rollout_alarms import RolloutAlarms
from rlhf.training.moving_reference import MovingReference
from rlhf.training.optim import Optimizer, TrainedModule, mixed_precision
from rlhf.training.policy_objective import correct_sampler
from rlhf.training.rl_objective import RLObjective
from rlhf.training.rollout_collector import RolloutCollector
from rlhf.training.rollout_prompts import RolloutPrompts
from rlhf.training.rollouts import Gathered, Judged, Rollout, measure_rollout, rollout_rows, shaped_scores
from rlhf.training.row_order import permutation
from rlhf.training.sampler_checks import SamplerChecks
from rlhf.training.sharded_training import (
    check_over_ranks,
    choose_paths,
    in_shards,
    models_of_rollouts,
)


class RLTrainer(RLObjective[RLConfigT], ABC):
    """The sampling half of ``rlhf.training.loop.Algorithm``; a trainer says how credit is given and what the loss is.

    Called with the fields of ``RLInputs``, or with one. A trainer that needs more than these checks it in ``prepare``.

    Raises:
        DataError: There are no prompts.
        ConfigError: Something is missing that the config asks for.
    """

    name = "rl"
    config_class: ClassVar[type[BaseConfig]] = RLConfig
    whole_on_ranks: ClassVar[tuple[str, ...]] = ()
    """Names of modules that every rank has whole in steps, too."""
    keeps_shards = False
    """Whether what was trained over ranks stays in shards, for ``rlhf.models.sharded_models.saveable_on_main``."""
    needs_scorer: ClassVar[bool] = True
    """Whether anything is learned from scores."""

    @built_from(RLInputs)
    def __init__(self, inputs: RLInputs[RLConfigT]) -> None:
        config = inputs.config
        self.name = inputs.name or self.name
        if inputs.scorer is not None:
            tokenizer = getattr(inputs.policy, "tokenizer", None)
            inputs = replace(inputs, scorer=as_scorer(inputs.scorer, tokenizer=tokenizer))
            if inputs.judge is not None:
                inputs = replace(inputs, judge=as_scorer(inputs.judge, tokenizer=tokenizer))
        check_rl_inputs(inputs, self.config_class)
        if config.early_stopping is not None and not inputs.eval_prompts:
            raise ConfigError("early_stopping watches held-out prompts, and there are none; give eval_prompts.")
        if self.needs_scorer and inputs.scorer is None:
            raise ConfigError(f"{self.name} learns from scores and was given no scorer; give scorer=... .")
        if config.kl.estimator == "exact" and config.kl.where != "none":
            check_comparable(inputs.policy, inputs.reference, what="The reference")
        offload_frozen(inputs)
        self.inputs = inputs
        self.policy = inputs.policy
        self.config = config
        self.prompts = inputs.prompts
        self.reference = inputs.reference
        self.log = (inputs.log if current_ranks().is_main else None) or TrainingLogger()
        self.penalties: list[Penalty] = []
        """Terms of the loss in addition to the completions'; to be appended to before training."""
        self.controller = build_kl_controller(config.kl)
        self.moving_reference = MovingReference.of(
            config.moving_reference, inputs.reference, inputs.policy, keeps_first=bool(inputs.eval_prompts)
        )
        self.kl_measured: tuple[float, int] | None = None
        """Mean KL to the reference of the newest rollout, nats per sequence, and how many sequences it is of; the weight follows it
        when the next rollout begins."""
        if config.curriculum is not None and inputs.scorer is None:
            raise ConfigError(f"{self.name}: `curriculum` goes by scores, and there is no scorer; leave it out.")
        self.rollout_prompts = RolloutPrompts(inputs.prompts, config.curriculum, seed=config.seed)
        self.curriculum = self.rollout_prompts.curriculum
        self.num_phases = config.rollouts
        self.groups_per_step = config.minibatch_size // config.group_size
        self.steps_per_phase = config.steps_per_rollout
        self._shown: dict[str, float] = {}
        self.prepare()
        self.collector = RolloutCollector(inputs, name=self.name, log=self.log)
        self.hacking = HackingWatch.of(
            inputs, self.collector, training_prompts=lambda count: self.next_prompts(0, min(count, len(self.prompts))),
            num_steps=self.num_phases * self.steps_per_phase, steps_per_rollout=self.steps_per_phase,
        )  # fmt: skip
        self.held_out = HeldOut(self.collector, inputs.eval_prompts)
        self.checks = SamplerChecks(self.collector, self.rescore, steps_per_rollout=self.steps_per_phase)
        self.alarms = RolloutAlarms(self.log, name=self.name, steps_per_rollout=self.steps_per_phase)

    def prepare(self) -> None:
        """Check and set what a trainer has beyond the others; no engine was started yet. Nothing, as for most."""

    def train(self) -> TrainResult:
        """Train to the end, from the newest checkpoint where there is one."""
        ranks = current_ranks()
        check_over_ranks(self, self.config, ranks)
        if ranks.size > 1:
            choose_paths(self)
        try:
            with in_shards(models_of_rollouts(self), ranks, self.config, keep=self.keeps_shards):
                return Loop(self, self.config, log=self.log, checkpoint_dir=self.inputs.checkpoint_dir).run()
        finally:
            self.collector.close()

    @property
    def tokenizer(self) -> Any:
        """The policy's."""
        return self.policy.tokenizer

    def collecting_takes_long(self, rollout_index: int) -> bool:
        """Yes: the policy samples."""
        return True

    def modules(self) -> Sequence[TrainedModule]:
        """The policy."""
        return [TrainedModule("policy", self.policy.model, self.config.learning_rate)]

    def before_step(self, batches: Sequence[PackedBatch], metrics: Metrics) -> None:
        """Nothing: most losses know no more than their own rows."""

    def take_step(self, optimizer: Optimizer, step: int, batches: Sequence[PackedBatch]) -> dict[str, float]:
        """AdamW's, with the gradient of ``ptx`` where there is one."""
        term, config = self.inputs.ptx, self.config
        values: dict[str, float] = {}
        if term is not None and term.coef:
            rows = term.rows_of(step, num_completions=config.minibatch_size)
            with self.precision():
                values = term.add_gradient(self.policy, rows, optimizer, max_tokens=config.microbatch_tokens)
        return {**values, **optimizer.step(step)}

    @abstractmethod
    def assign_credit(self, experience: RolloutExperience, metrics: Metrics) -> None:
        """Add the token columns that ``loss`` reads."""

    @abstractmethod
    def loss(self, batch: PackedBatch, totals: Totals, metrics: Metrics) -> Tensor:
        """This micro-batch's part of the step's loss."""

    def collect(self, rollout_index: int, metrics: Metrics) -> RolloutExperience:
        """One rollout with scores, reference log-probabilities and whatever credit the algorithm gives."""
        # 1. Sample from the policy as it is now, and score.
        collector = self.collector
        collector.version = rollout_index
        self._adapt_kl_weight()
        if self.moving_reference is not None:
            self.moving_reference.before_rollout(rollout_index)
        self._begin_rollouts(rollout_index, rollout_index + self.config.max_staleness)  # later, they are begun already
        if rollout_index == 0:
            self.held_out.measure_start()
        if self.hacking is not None:
            self.hacking.before_rollout(rollout_index, metrics)
        gathered = self.gather(rollout_index, metrics)
        rollout, experience = gathered.rollout, gathered.rollout.experience
        if self.curriculum is not None:
            self.curriculum.measure(metrics)
        for name, value in collector.figures.items():
            metrics.mean(name, torch.tensor(value))
        scores = self.shaped_scores(rollout, gathered.scores)
        if self.hacking is not None:
            step = self.first_step_of(rollout_index)
            scores = scores - self.hacking.after_judging(rollout, gathered.scores, step=step, metrics=metrics)
        experience.columns.update(gathered.columns, scores=scores, truncated=rollout.truncated)
        # 2. Measure against the policy as it is, the reference, and the sampler.
        old = rollout.sampled_logprobs
        if not self.checks.needs_no_old(rollout_index):
            old = experience.token_columns["old_logprobs"] = self.checks.old_logprobs(rollout, rollout_index, metrics)
            self._correct_sampler(rollout, rollout_index, metrics)
        ref_kl = None
        if self.config.kl.is_measured(rollout_index):
            ref = experience.token_columns["ref_logprobs"] = self._ref_logprobs(experience)
            ref_kl = segment_sum(old - ref, experience.score_seq, experience.num_sequences)
            experience.columns["ref_kl"] = ref_kl
        if rollout_index == 0:
            self.checks.compare_reference(self.reference, old, ref)
        # 3. Give credit.
        with self.precision():
            self.assign_credit(experience, metrics)
        if self.inputs.scorer is not None:
            rows = self.compared(gathered)
            reward, scores = self.inputs.scorer.name, gathered.scores
            self.alarms.all_scores_equal(rollout_index, *rows, scores=scores, reward=reward)
        if rollout_index == 0 and "advantages" in experience.token_columns:
            loss, formula = self.config.policy_loss, self.config.policy_formula
            self.alarms.steps_without_ratio(rollout_index, loss, has_ratio=formula.has_ratio)
        self._report(rollout_index, gathered, ref_kl, metrics)
        self.kl_measured = None if ref_kl is None else (float(ref_kl.mean()), experience.num_sequences)
        # 4. Let another rollout begin, with the weights that this one will change.
        self._begin_rollouts(rollout_index + 1, rollout_index + 1 + self.config.max_staleness)
        return experience

    def _begin_rollouts(self, first: int, end: int) -> None:
        """Sample the rollouts ``first .. end`` that were not begun yet ahead of their turn, with the weights as they are."""
        ahead = self.collector.ahead
        if ahead is None:
            return
        for rollout_index in range(first, min(end, self.config.rollouts)):
            if not ahead.has(rollout_index):
                self.rollout_prompts.fix(rollout_index, *self.places_of(rollout_index))
                prompts = self.first_prompts(rollout_index)
                ahead.begin(prompts, rollout_index=rollout_index, version=self.collector.version)

    def _adapt_kl_weight(self) -> None:
        """By what the rollout before showed: a rollout has one weight, in its rewards and in its losses, and that one is reported."""
        if self.kl_measured is not None:
            self.controller.update(*self.kl_measured)
            self.kl_measured = None

    def gather(self, rollout_index: int, metrics: Metrics) -> Gathered:
        """The next prompts, ``group_size`` completions each; without the prompts that the scorer has no number for."""
        judged = self.first_round(rollout_index, metrics)
        return Gathered(judged.rollout, judged.scores, judged.scores)

    def first_round(self, rollout_index: int, metrics: Metrics) -> Judged:
        """Completions of ``first_prompts`` with their scores."""
        rollout = self.collector.first_round(self.first_prompts(rollout_index), rollout_index)
        judged = self.judge(rollout, metrics, rollout_index)
        self.rollout_prompts.forget(rollout_index)
        return judged

    def first_prompts(self, rollout_index: int) -> list[Prompt]:
        """What a rollout begins with; known when it is its turn, or when it begins ahead of that."""
        return self.rollout_prompts.of_rollout(rollout_index, *self.places_of(rollout_index))

    def places_of(self, rollout_index: int) -> tuple[int, int]:
        """Where a rollout that begins now has its first prompts in the sequence of all: the first place, and how many."""
        return rollout_index * self.config.prompts_per_rollout, self.config.prompts_per_rollout

    def next_prompts(self, start: int, count: int) -> list[Prompt]:
        """Prompts ``start .. start + count`` of the endless sequence of all."""
        return self.rollout_prompts.next(start, count)

    def judge(self, rollout: Rollout, metrics: Metrics, rollout_index: int) -> Judged:
        """Scores of a rollout or a part of one; prompts that the scorer has no number for are left out, with an alarm."""
        planned = self.config.prompts_per_rollout
        judged = self.collector.judge(rollout, metrics, step=self.first_step_of(rollout_index), planned=planned)
        self.rollout_prompts.record(rollout.prompts, judged)
        return judged

    def first_step_of(self, rollout_index: int) -> int:
        """The optimizer step, counted from 1, that a rollout is logged at."""
        return rollout_index * self.steps_per_phase + 1

    def shaped_scores(self, rollout: Rollout, scores: Tensor) -> Tensor:
        """[S] scores after the penalties for length, and the limits."""
        return shaped_scores(rollout, scores, self.config)

    def compared(self, gathered: Gathered) -> tuple[Tensor, str]:
        """[K, C] scores in rows of those that are compared with each other, and where these are, in words."""
        if self.config.group_size > 1:
            return gathered.scores.view(len(gathered.rollout.experience.groups), -1), "in every group"
        return gathered.scores.view(1, -1), "of the rollout"

    def restore(self, state: Mapping[str, Any]) -> RolloutExperience:
        """The rollout that ``state_dict`` described."""
        return RolloutExperience.from_state(state)

    def steps(self, rollout_index: int, experience: RolloutExperience) -> Iterator[list[PackedBatch]]:
        """Every epoch visits all groups in its own order."""
        limit = self.config.microbatch_tokens
        for epoch in range(self.config.epochs_per_rollout):
            order = permutation(len(experience.groups), self.config.seed, self.name, rollout_index, epoch)
            yield from experience.steps(order, groups_per_step=self.groups_per_step, max_tokens=limit)

    def all_batches(self, experience: RolloutExperience) -> list[PackedBatch]:
        """The whole rollout."""
        return experience.batches(range(len(experience.groups)), max_tokens=self.config.microbatch_tokens)

    @property
    def first_step_of_policy(self) -> int:
        """Counted from 1: where ratios are measured for the first time."""
        return 1

    def self_checks(self, step: int, metrics: Mapping[str, float]) -> Sequence[SelfCheck]:
        """Before the policy has learned anything, sampler, trainer and reference are one model."""
        return self.checks.self_checks(step, metrics, policy_step=self.first_step_of_policy)

    @property
    def may_restore(self) -> bool:
        """Where a detector of reward hacking may."""
        return self.hacking is not None and self.hacking.may_restore

    def findings(self) -> Sequence[Finding]:
        """Of the detectors of reward hacking."""
        return () if self.hacking is None else self.hacking.findings()

    def ends_phase_early(self, metrics: Mapping[str, float]) -> bool:
        """True once the policy has moved too far from the one that sampled."""
        limit = self.config.stop_at_kl
        return limit is not None and metrics[f"{self.name}/kl_mean"] > limit

    def evaluate(self) -> dict[str, float]:
        """Score, KL to the reference (nats per sequence; also to the first one, where it moves), length and share of ended completions
        on held-out prompts, and what ``evaluation`` asks for."""
        if not self.held_out.prompts:
            return {}
        metrics = Metrics()
        self.collector.version += 1
        judged = self.held_out.sample(step=self.collector.version * self.steps_per_phase)
        rollout, scores, experience = judged.rollout, judged.scores, judged.rollout.experience
        ref_kl = self._held_out_kl(rollout)
        if self.moving_reference is not None:
            with self.moving_reference.where_it_began():
                metrics.mean("eval/first_ref_kl", self._held_out_kl(rollout))
        self.measure_held_out(experience, metrics)
        if self.inputs.scorer is None:
            measure_rollout("eval", rollout, None, ref_kl, metrics)
            return metrics.result()
        measure_rollout("eval", rollout, scores, ref_kl, metrics)
        return metrics.result() | self.held_out.metrics(rollout.completions, scores)

    def _held_out_kl(self, rollout: Rollout) -> Tensor:
        """[S] log-ratio to the reference as it is, nats per sequence."""
        experience = rollout.experience
        log_ratio = rollout.sampled_logprobs - self._ref_logprobs(experience)
        return segment_sum(log_ratio, experience.score_seq, experience.num_sequences)

    def measure_held_out(self, experience: RolloutExperience, metrics: Metrics) -> None:
        """Whatever else a trainer can say of the completions of held-out prompts: nothing."""

    def headline(self, metrics: Mapping[str, float]) -> str:
        """Score and KL of the newest rollout."""
        self._shown.update(metrics)
        score, kl = self._shown.get(f"{self.name}/score_mean"), self._shown.get(f"{self.name}/ref_kl")
        return f"reward {score:+.2f}, KL estimate {kl:.2f}" if score is not None and kl is not None else ""

    def state_dict(self) -> dict[str, Any]:
        """The KL controller, counts, and rollouts that were begun ahead; other prompts and samples follow from the seed and the counts."""
        return self.deferred_state_dict()()

    def deferred_state_dict(self) -> Callable[[], dict[str, Any]]:
        """The same; where it is asked for later, it may wait for rollouts that are sampled ahead."""
        ahead = self.collector.ahead
        waiting = None if ahead is None else ahead.deferred_state_dict()
        state = {
            "controller": self.controller.state_dict(),
            "kl_measured": self.kl_measured,
            "version": self.collector.version,
            "equal_rollouts": self.alarms.equal_rollouts,
            "at_start": self.checks.at_start,
            "held_out": self.held_out.state_dict(),
            **({} if self.hacking is None else {"hacking": self.hacking.state_dict()}),
            **({} if self.moving_reference is None else {"reference": self.moving_reference.state_dict()}),
            **self.rollout_prompts.state_dict(),
        }
        return lambda: {**state, "ahead": None if waiting is None else waiting()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state_dict`` was taken."""
        self.controller.load_state_dict(state["controller"])
        self.kl_measured = None if state["kl_measured"] is None else tuple(state["kl_measured"])
        self.collector.version = state["version"]
        self.alarms.equal_rollouts = state["equal_rollouts"]
        self.checks.at_start = dict(state["at_start"])
        self.held_out.load_state_dict(state["held_out"])
        if self.hacking is not None and "hacking" in state:
            self.hacking.load_state_dict(state["hacking"])
        if self.moving_reference is not None:
            self.moving_reference.load_state_dict(state["reference"])
        self.rollout_prompts.load_state_dict(state)
        if self.collector.ahead is not None:
            self.collector.ahead.load_state_dict(state["ahead"])

    def _correct_sampler(self, rollout: Rollout, rollout_index: int, metrics: Metrics) -> None:
        """Weigh tokens by the ratio of trainer to sampler, where ``importance`` asks for it."""
        importance, experience = self.config.importance, rollout.experience
        if importance is None:
            return
        bounds: dict[str, Any] = {"level": importance.level, "low": importance.low, "high": importance.high}
        correct_sampler(experience, rollout.drawn_logprobs, metrics, bound=importance.bound, **bounds)
        self.alarms.all_weights_zero(rollout_index, experience.token_columns["importance_weights"], **bounds)

    def rescore(self, rollout: Rollout, temperature: float) -> Tensor:
        """[M] the policy's log-probabilities of what was sampled."""
        return self.logprobs("scoring", self.policy, rollout.experience, temperature)

    def _ref_logprobs(self, experience: RolloutExperience) -> Tensor:
        """[M] of the reference."""
        return self.logprobs("reference", self.reference, experience, self.config.sampling.temperature)

    def logprobs(
        self, activity: Activity, model: PolicyModel | Reference, experience: RolloutExperience, temperature: float
    ) -> Tensor:
        """[M] a model's log-probabilities of a rollout's completions, its tokens counted as an activity's."""
        with doing(activity, tokens=experience.num_tokens), self.precision():
            return logprobs_of(
                model, experience, temperature=temperature, device=self.policy.device,
                max_tokens=self.config.microbatch_tokens,
            )  # fmt: skip

    def precision(self) -> AbstractContextManager[object]:
        """That of the training steps: two forwards of one model agree only in the same type."""
        return mixed_precision(self.config.autocast, self.policy.device)

    def _report(self, rollout_index: int, gathered: Gathered, ref_kl: Tensor | None, metrics: Metrics) -> None:
        rollout = gathered.rollout
        judged = self.inputs.scorer is not None
        measure_rollout(self.name, rollout, gathered.all_scores if judged else None, ref_kl, metrics)
        if self.collector.ahead is not None:
            ages = [float(rollout_index - completion.weight_version) for completion in rollout.completions]
            metrics.mean("rollout/staleness", torch.tensor(ages))
        metrics.mean(f"{self.name}/kl_coef", torch.tensor(self.controller.coef))
        if self.config.entropy_coef == 0:  # not measured exactly: minus the log-probability is right on average
            metrics.mean("loss/entropy", -rollout.sampled_logprobs)
        scores = gathered.scores if judged else None
        self.log.rollouts(rollout_rows(rollout, scores, ref_kl, step=self.first_step_of(rollout_index)))
