"""The only training loop there is.

An algorithm says what to learn from and how to turn a packed batch into a loss; the loop does everything else:
accumulate, clip, step, schedule, evaluate, stop early, checkpoint, resume, log. A run is a sequence of *phases*:

    offline (SFT, reward, DPO)     a phase is one optimizer step on the next rows
    online (PPO, GRPO)             a phase asks the policy, judges, gives credit, and takes several steps with that
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from rlhf.activity import before_phase, doing, doing_each, step_done, training_loop
from rlhf.allocator import keep_freed_memory
from rlhf.config.training import FREE_TO_CHANGE, TrainConfig
from rlhf.data.pack import PackedBatch
from rlhf.distributed.ranks import current_ranks
from rlhf.errors import ConfigError, InterruptedRun
from rlhf.native.compiled_mode import in_c
from rlhf.seeds import derive_seed
from rlhf.training.algorithm import Algorithm, Experience
from rlhf.training.best_weights import BestWeights
from rlhf.training.build_optimizer import build_optimizer
from rlhf.training.checkpoint import Checkpoint, CheckpointManager, load_weights
from rlhf.training.interrupt import StopRequest, signals_as_requests
from rlhf.training.log import TrainingLogger
from rlhf.training.lr_find import find_learning_rate
from rlhf.training.metrics import Metrics
from rlhf.training.monitoring.alarms import Watch
from rlhf.training.monitoring.guards import Alarm
from rlhf.training.optim import WeightAverage, copy_tensors
from rlhf.training.optimizer_step import OptimizerStep
from rlhf.training.penalties import distance_from_start
from rlhf.training.progress import ProgressBar
from rlhf.training.randomness import random_state, random_state_kept, seed_everything, set_random_state
from rlhf.training.result import TrainResult as TrainResult
from rlhf.training.result import trained_model


@dataclass(slots=True)
class Position:
    """Where a run stands."""

    phase: int = 0
    step_in_phase: int = 0
    step: int = 0


class Loop:
    """Runs one algorithm from its first phase, or from its newest checkpoint, to its end.

    Args:
        algorithm: What to learn.
        config: The settings that all algorithms share.
        log: Where metrics go.
        checkpoint_dir: Where checkpoints go; None for none.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        config: TrainConfig,
        *,
        log: TrainingLogger | None = None,
        checkpoint_dir: Path | None = None,
    ) -> None:
        self.algorithm = algorithm
        self.config = config
        self.ranks = current_ranks()
        self.log = log or TrainingLogger()
        if self.ranks.is_main:
            self.log.track(config.log_to)
        else:
            self.log = TrainingLogger(stage=self.log.stage)
        self.name = self.log.stage or algorithm.name
        self.total_steps = algorithm.num_phases * algorithm.steps_per_phase
        self.checkpoints = self._store(checkpoint_dir) if checkpoint_dir is not None else None
        self.modules = algorithm.modules()
        self.optimizer = build_optimizer(self.modules, config, total_steps=self.total_steps, name=self.name)
        self.penalties = [*algorithm.penalties, *distance_from_start(self.modules, config.l2_coef)]
        self.average = (
            WeightAverage(self.optimizer.parameters, decay=config.ema_decay) if config.ema_decay is not None else None
        )
        self.watch = Watch(
            config, self.log,
            name=self.name, algorithm=algorithm.name, tokenizer=algorithm.tokenizer, may_restore=algorithm.may_restore,
        )  # fmt: skip
        if self.watch.may_restore and self.checkpoints is None:
            raise ConfigError(
                f"{self.name}: a guard's action is `restore`, and there is no folder for checkpoints; give one."
            )
        self.stepper = OptimizerStep(
            algorithm, self.optimizer,
            penalties=self.penalties, average=self.average, watch=self.watch, autocast=config.autocast,
            ranks=self.ranks,
        )  # fmt: skip
        self.evaluations = BestWeights(config.early_stopping, name=self.name)
        self.eval_every = config.eval_every or max(1, math.ceil(self.total_steps / 5))
        self.save_every = config.save_every or max(1, math.ceil(self.total_steps / 4))
        self.at = Position()
        self.saved_at = 0
        self.evaluated_at = 0
        self.experience: Experience | None = None
        self.last_metrics: dict[str, float] = {}
        self.evaluation: dict[str, float] = {}
        self._signals = StopRequest(at_once=False)
        self._before_collecting: Callable[[], dict[str, Any]] | None = None
        """Gives the state from before collecting, which a checkpoint has that is written when a signal interrupts collecting."""

    def _store(self, folder: Path) -> CheckpointManager:
        settings = self.config.model_dump(mode="json", exclude=FREE_TO_CHANGE)
        identity = {"algorithm": self.algorithm.name, "steps of the run": self.total_steps, **settings}
        config = self.config
        return CheckpointManager(
            folder,
            keep=config.keep_checkpoints,
            keep_every=config.keep_every,
            identity=identity,
            background=config.save_in_background,
            ranks=self.ranks,
        )

    def run(self) -> TrainResult:
        """Train to the end.

        Raises:
            InterruptedRun: A signal asked this process to stop; a checkpoint was written first.
            TrainingError: A guard says stop, or too many steps were not finite.
        """
        began = time.monotonic()
        keep_freed_memory()
        others: list[str | int] = [] if self.ranks.is_main else ["rank", self.ranks.rank]
        seed_everything(derive_seed(self.config.seed, self.algorithm.name, *others))
        self._resume()
        try:
            with (
                signals_as_requests() as self._signals,
                training_loop(self.name),
                in_c(self.config.compiled),
                self.log.progress(f"{self.name} step", self.total_steps, done=self.at.step) as bar,
            ):
                try:
                    self._train(bar)
                except InterruptedRun as stop:
                    raise self._leave(stop) from None
            self._keep_result()
            self.optimizer.close()
        finally:
            if self.checkpoints is not None:
                self.checkpoints.close()
            self.log.close()
        best = self.evaluations.best
        return TrainResult(
            self.at.step,
            time.monotonic() - began,
            self.last_metrics,
            best.evaluation if best else self.evaluation,
            stopped_early=self.evaluations.should_stop and self.at.phase < self.algorithm.num_phases,
            model=trained_model(self.algorithm),
        )

    def _train(self, bar: ProgressBar) -> None:
        self._evaluate_when_due()  # a run that was interrupted while it evaluated does that first
        if self.at.step == 0 and self.watch.may_restore:
            self.save()  # somewhere to go back to
        while self.at.phase < self.algorithm.num_phases and not self.evaluations.should_stop:
            self._run_phase(bar)
            self._evaluate_when_due()
            self._save_when_due()
            self._heed_signals()

    def _heed_signals(self) -> None:
        """Leave where a signal asked any of the ranks to; all of them after the same step."""
        names = [name for name in self.ranks.gather(self._signals.name) if name is not None]
        if names:
            self._signals.name = names[0]
        self._signals.check()

    def _breaking_in(self) -> AbstractContextManager[None]:
        """Let a signal end what can be done again; not over ranks, which would wait for the one that left."""
        return self._signals.breaking_in() if self.ranks.size == 1 else nullcontext()

    def _run_phase(self, bar: ProgressBar) -> None:
        algorithm, gathered = self.algorithm, Metrics()
        # 1. Collect: the next rows, or the policy's own completions with their rewards.
        before_phase(self.at.phase, algorithm.num_phases)
        if self.experience is None:
            with doing("data"):
                self._collect(gathered)
        find_learning_rate(self)
        # 2. Learn from them, leaving out the steps that were taken before the checkpoint that we resumed from.
        packed = doing_each("data", algorithm.steps(self.at.phase, self.experience))
        for batches in islice(packed, self.at.step_in_phase, None):
            metrics = self._step(batches)
            self.at.step += 1
            self.at.step_in_phase += 1
            self.last_metrics = metrics | gathered.result()
            gathered = Metrics()
            step_done()
            self.log.metrics(self.at.step, self.last_metrics)
            bar.advance(algorithm.headline(self.last_metrics))
            if self._goes_back(bar):
                return
            if algorithm.ends_phase_early(metrics):
                break
            if self.at.step_in_phase < algorithm.steps_per_phase:
                self._save_when_due()
                self._heed_signals()
        # 3. Steps that an early end left out count as taken, so that the schedule goes on as planned.
        planned = (self.at.phase + 1) * algorithm.steps_per_phase
        if planned > self.at.step:
            bar.advance(algorithm.headline(self.last_metrics), by=planned - self.at.step)
        self.at = Position(phase=self.at.phase + 1, step_in_phase=0, step=planned)
        self.experience = None

    def _collect(self, metrics: Metrics) -> None:
        """Fetch what the phase learns from; a signal may break this off where it takes long."""
        if not self.algorithm.collecting_takes_long(self.at.phase):
            self.experience = self.algorithm.collect(self.at.phase, metrics)
            return
        algorithm, random = self.algorithm.deferred_state_dict(), random_state()
        self._before_collecting = lambda: {"algorithm": algorithm(), "random": random}
        with self._breaking_in():
            self.experience = self.algorithm.collect(self.at.phase, metrics)
        self._before_collecting = None

    def _step(self, batches: Sequence[PackedBatch]) -> dict[str, float]:
        """One optimizer step from its micro-batches."""
        return self.stepper.take(batches, self.at.step)

    def _goes_back(self, bar: ProgressBar) -> bool:
        """Let the guards look at the newest step; True where the run stands at an earlier one now."""
        self._self_check()
        rows = functools.partial(self.algorithm.all_batches, self.experience)
        alarm = self.watch.check(self.at.step, self.last_metrics, rows, self.algorithm.findings())
        if alarm is None:
            return False
        self._restore(alarm, rows(), bar)
        return True

    def _self_check(self) -> None:
        step = self.at.step
        checks = self.algorithm.self_checks(step, self.last_metrics)
        where = "the first step" if step == 1 else f"step {step}, the policy's first"
        for check in checks:
            if not check.value <= check.limit:
                self.log.alarm(
                    f"{self.name}: {check.what} is {check.value:.3g} at {where}, and should be below {check.limit:g}: "
                    f"{check.meaning}",
                    step=step, guard="self-check", metric=check.what, value=check.value, limit=check.limit, action="warn",
                )  # fmt: skip
        if checks:
            values = ", ".join(f"{check.what} {check.value:.2g}" for check in checks)
            self.log.write("note", step=step, message=f"Self-checks at {where}: {values}.")

    def _restore(self, alarm: Alarm, rows: Sequence[PackedBatch], bar: ProgressBar) -> None:
        """Back to weights from before the trouble, with half the learning rate."""
        assert self.checkpoints is not None, "the constructor asks for a folder where a guard may restore"
        self.checkpoints.wait()
        # A rollout and a gradient are measured before the step that reports them: the weights behind the alarm are those of the
        # step before. From them the same seeds would raise the same alarm, at any learning rate.
        before = self.at.step - 1 if alarm.good_step is None else min(self.at.step - 1, alarm.good_step + 1)
        checkpoint = self.checkpoints.load_last_good(
            before=before,
            is_good=lambda one: not one.state["watch"]["guards"]["clean"],
            name=self.name,
            warn=self.log.alarm,
        )
        scale, guards = self.optimizer.scale / 2, self.watch.guards.state_dict()
        self._load(checkpoint)
        self.optimizer.scale = scale
        self.watch.guards.load_state_dict(guards)
        self.watch.guards.go_back(checkpoint.state["watch"]["guards"])
        self.log.go_back_to(checkpoint.step, keep=("alarm", "note"))
        details = {"restored_to": checkpoint.step, "learning_rate_scale": scale, "restore": self.watch.guards.restores}
        self.watch.report(alarm, rows, step=checkpoint.step, **details)
        self.save()  # with the new learning rate, in place of the one just read
        self.checkpoints.wait()
        self.checkpoints.discard_after(checkpoint.step)
        bar.advance(by=checkpoint.step - alarm.step)

    def _evaluate_when_due(self) -> None:
        """Evaluate on schedule and at the end, without leaving a trace in the training that goes on."""
        step, before = self.at.step, self.evaluated_at
        last = self.at.phase == self.algorithm.num_phases and step > before
        if self.experience is not None or (not last and step // self.eval_every == before // self.eval_every):
            return
        for trained in self.modules:
            trained.module.eval()
        with doing("evaluation"), random_state_kept(), self.average.swapped_in() if self.average else nullcontext():
            with torch.no_grad(), self._breaking_in():
                metrics = self.algorithm.evaluate()
            self.evaluation, self.evaluated_at = metrics, step
            if metrics:
                self.log.metrics(step, metrics, event="eval")
            self.evaluations.compare(metrics, step, self.optimizer.parameters)

    def _keep_result(self) -> None:
        """Leave the weights that are the result in the modules."""
        best = self.evaluations.best
        if self.evaluations.should_stop:
            self.log.write("note", step=self.at.step, message="Stopped early: the evaluation no longer improves.")
        if best is not None:
            copy_tensors(best.weights, self.optimizer.parameters)
            self.log.write("note", step=self.at.step, message=f"The result is the weights of step {best.step}.")
        elif self.average is not None:
            self.average.copy_to_model()
        for trained in self.modules:
            trained.module.eval()

    @property
    def _is_best(self) -> bool:
        """Whether the weights as they are gave the best evaluation so far; such a checkpoint is written at once, and stays."""
        best = self.evaluations.best
        return best is not None and best.step == self.at.step > self.saved_at

    def _save_when_due(self) -> None:
        """Counted from the last one: an early end may jump over any particular step. None at the end of the run."""
        due = self.at.step // self.save_every > self.saved_at // self.save_every or self._is_best
        if due and self.at.phase < self.algorithm.num_phases and not self.evaluations.should_stop:
            self.save()

    def save(self) -> None:
        """Write a checkpoint from which the run goes on with the same bits."""
        best, self.saved_at = self._is_best, self.at.step
        if self.checkpoints is not None:
            with doing("checkpoint"):
                self.log.sync()
                modules = {t.name: t.module for t in self.modules}
                state = self.state_dict()
                with self.optimizer.whole_weights():
                    self.checkpoints.save(self.at.step, modules, state, best=best)

    def _leave(self, stop: InterruptedRun) -> InterruptedRun:
        """Save where the run stands, and say so; a second signal leaves without saving."""
        at = f"{self.name} is at step {self.at.step} of {self.total_steps}"
        if self.checkpoints is None:
            return InterruptedRun(f"{stop} {at}; nothing is saved, because this run keeps no checkpoints.")
        if self._signals.twice:
            return InterruptedRun(
                f"{stop} {at}; the same command goes on from step {self.saved_at}, the last checkpoint."
            )
        self.log.say("  saving before leaving; once more to leave at once")
        self.save()
        self.checkpoints.wait()
        self.log.write("note", step=self.at.step, message=f"{stop} Saved at step {self.at.step}.")
        return InterruptedRun(f"{stop} {at}, and all of it is saved; the same command goes on from there.")

    def state_dict(self) -> dict[str, Any]:
        """Everything but the weights."""
        broken_off = None if self._before_collecting is None else self._before_collecting()
        experience = self.experience if broken_off is None else None
        states = self.ranks.gather(broken_off["random"] if broken_off else random_state())
        return {
            "at": asdict(self.at),
            "optimizer": self.optimizer.state_dict(),
            "algorithm": broken_off["algorithm"] if broken_off else self.algorithm.state_dict(),
            "experience": experience.state_dict() if experience is not None else None,
            "watch": self.watch.state_dict(),
            "evaluated_at": self.evaluated_at,
            "average": self.average.state_dict() if self.average is not None else None,
            **self.evaluations.state_dict(),
            "evaluation": self.evaluation,
            "random": states[0],
            "random_of_ranks": states[1:],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state_dict`` was taken."""
        self.at = Position(**state["at"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.algorithm.load_state_dict(state["algorithm"])
        self.experience = None if state["experience"] is None else self.algorithm.restore(state["experience"])
        if self.average is not None:
            self.average.load_state_dict(state["average"])
        self.evaluations.load_state_dict(state)
        self.evaluation, self.evaluated_at = dict(state["evaluation"]), state["evaluated_at"]
        self.watch.load_state_dict(state["watch"])
        states = [state["random"], *state.get("random_of_ranks", ())]
        if self.ranks.rank < len(states):  # a run may go on with more ranks
            set_random_state(states[self.ranks.rank])

    def _resume(self) -> None:
        checkpoint = None
        if self.checkpoints is not None:
            self.checkpoints.clear_leftovers()
            self.ranks.gather(None)  # no rank looks before the folder is in order
            checkpoint = self.checkpoints.load_latest(warn=self.log.alarm)
        restores = checkpoint.state["watch"]["guards"]["restores"] if checkpoint else 0
        self.log.go_back_to(checkpoint.step if checkpoint else -1, restores=restores)
        if checkpoint is None:
            return
        self._load(checkpoint)
        self.log.write("note", step=checkpoint.step, message=f"Resumed from {checkpoint.path.name}.")
        self.log.say(f"  resumed from step {checkpoint.step}")

    def _load(self, checkpoint: Checkpoint) -> None:
        with self.optimizer.whole_weights(changed=True):
            load_weights({t.name: t.module for t in self.modules}, checkpoint.weights)
        self.load_state_dict(checkpoint.state)
        self.saved_at = checkpoint.step
