"""The only training loop there is.

An algorithm says what to learn from and how to turn a packed batch into a loss; the loop does everything else:
accumulate, clip, step, schedule, evaluate, stop early, checkpoint, resume, log. A run is a sequence of *phases*:

    offline (SFT, reward, DPO)     a phase is one optimiser step on the next rows
    online (PPO, GRPO)             a phase asks the policy, judges, gives credit, and takes several steps with that
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from rlhf.config.training import TrainConfig
from rlhf.data.pack import PackedBatch
from rlhf.errors import ConfigError, TrainingError, did_you_mean
from rlhf.seeds import derive_seed
from rlhf.training.checkpoint import CheckpointStore, load_weights
from rlhf.training.control import EarlyStopping
from rlhf.training.log import RunLog
from rlhf.training.metrics import Metrics
from rlhf.training.optim import Optimizer, TrainedModule, WeightAverage, copy_tensors, mixed_precision
from rlhf.training.progress import ProgressBar
from rlhf.training.randomness import random_state, random_state_kept, seed_everything, set_random_state

FREE_TO_CHANGE = {
    "tokens_per_microbatch",
    "save_every",
    "keep_checkpoints",
    "keep_every",
    "save_in_background",
    "log_to",
}
"""Settings that a resumed run may change: they decide nothing about the result."""


@dataclass(frozen=True, slots=True)
class Totals:
    """Counts over a whole optimiser step, all its micro-batches together: the denominators of every mean."""

    num_tokens: int
    """Scored tokens."""
    num_sequences: int
    num_groups: int

    @classmethod
    def of(cls, batches: Sequence[PackedBatch]) -> Totals:
        """Count."""
        return cls(
            sum(b.num_scored for b in batches),
            sum(b.num_sequences for b in batches),
            sum(b.num_groups for b in batches),
        )


class Experience(Protocol):
    """What a phase learns from. It can be written to a checkpoint, so that a phase resumes in its middle."""

    def state_dict(self) -> dict[str, Any]:
        """Plain lists, numbers and tensors."""
        ...


class Algorithm(Protocol):
    """What the loop needs from SFT, reward modelling, DPO, PPO, GRPO ..."""

    name: str
    """Names its metrics, its seeds and its progress bar."""
    num_phases: int
    steps_per_phase: int

    def modules(self) -> Sequence[TrainedModule]:
        """What is trained."""
        ...

    def collect(self, phase: int, metrics: Metrics) -> Experience:
        """Fetch rows, or ask the policy and judge its completions."""
        ...

    def restore(self, state: Mapping[str, Any]) -> Experience:
        """The experience that ``state_dict`` described."""
        ...

    def steps(self, phase: int, experience: Any) -> Iterator[Sequence[PackedBatch]]:
        """The micro-batches of each optimiser step, the same ones every time it is called."""
        ...

    def loss(self, batch: PackedBatch, totals: Totals, metrics: Metrics) -> Tensor:
        """This micro-batch's part of the step's loss: a sum over its tokens divided by the step's totals."""
        ...

    def ends_phase_early(self, metrics: Mapping[str, float]) -> bool:
        """Whether the rest of a phase's steps should be left out (a limit on KL)."""
        ...

    def evaluate(self) -> dict[str, float]:
        """Metrics on held-out data; empty where there is none."""
        ...

    def headline(self, metrics: Mapping[str, float]) -> str:
        """A few words beside the progress bar."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Everything of its own that changes: data cursor, controllers, running statistics."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state_dict`` was taken."""
        ...


@dataclass(slots=True)
class TrainResult:
    """How a training run ended."""

    steps: int
    seconds: float
    """Of this process; a resumed run has spent more."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Of the last step."""
    evaluation: dict[str, float] = field(default_factory=dict)
    """Of the weights that are the result."""
    stopped_early: bool = False


@dataclass(slots=True)
class Position:
    """Where a run stands."""

    phase: int = 0
    step_in_phase: int = 0
    step: int = 0


@dataclass(slots=True)
class Best:
    """The best evaluation so far, and the weights that it was of."""

    step: int
    evaluation: dict[str, float]
    weights: list[Tensor]


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
        log: RunLog | None = None,
        checkpoint_dir: Path | None = None,
    ) -> None:
        self.algorithm = algorithm
        self.config = config
        self.log = log or RunLog()
        self.log.track(config.log_to)
        self.name = self.log.stage or algorithm.name
        self.total_steps = algorithm.num_phases * algorithm.steps_per_phase
        self.checkpoints = self._store(checkpoint_dir) if checkpoint_dir is not None else None
        self.modules = algorithm.modules()
        self.optimizer = Optimizer(self.modules, config, total_steps=self.total_steps, name=self.name)
        self.average = (
            WeightAverage(self.optimizer.parameters, decay=config.ema_decay) if config.ema_decay is not None else None
        )
        self.stopping = EarlyStopping.of(config.early_stopping) if config.early_stopping else None
        self.eval_every = config.eval_every or max(1, math.ceil(self.total_steps / 5))
        self.save_every = config.save_every or max(1, math.ceil(self.total_steps / 4))
        self.at = Position()
        self.saved_at = 0
        self.experience: Experience | None = None
        self.best: Best | None = None
        self.last_metrics: dict[str, float] = {}
        self.evaluation: dict[str, float] = {}

    def _store(self, folder: Path) -> CheckpointStore:
        settings = self.config.model_dump(mode="json", exclude=FREE_TO_CHANGE)
        identity = {"algorithm": self.algorithm.name, "steps of the run": self.total_steps, **settings}
        return CheckpointStore(folder, keep=self.config.keep_checkpoints, identity=identity)

    def run(self) -> TrainResult:
        """Train to the end."""
        began = time.monotonic()
        seed_everything(derive_seed(self.config.seed, self.algorithm.name))
        self._resume()
        try:
            with self.log.progress(self.algorithm.name, self.total_steps, done=self.at.step) as bar:
                while self.at.phase < self.algorithm.num_phases and not self._stopped:
                    self._run_phase(bar)
                    self._evaluate_when_due()
                    self._save_when_due()
            self._keep_result()
        finally:
            self.log.close()
        return TrainResult(
            self.at.step,
            time.monotonic() - began,
            self.last_metrics,
            self.best.evaluation if self.best else self.evaluation,
            stopped_early=self._stopped and self.at.phase < self.algorithm.num_phases,
        )

    def _run_phase(self, bar: ProgressBar) -> None:
        algorithm, gathered = self.algorithm, Metrics()
        # 1. Collect: the next rows, or the policy's own completions with their rewards.
        if self.experience is None:
            self.experience = algorithm.collect(self.at.phase, gathered)
        # 2. Learn from them, leaving out the steps that were taken before the checkpoint that we resumed from.
        for batches in islice(algorithm.steps(self.at.phase, self.experience), self.at.step_in_phase, None):
            metrics = self._step(batches)
            self.at.step += 1
            self.at.step_in_phase += 1
            self.last_metrics = metrics | gathered.result()
            gathered = Metrics()
            self.log.metrics(self.at.step, self.last_metrics)
            bar.advance(algorithm.headline(self.last_metrics))
            if algorithm.ends_phase_early(metrics):
                break
            if self.at.step_in_phase < algorithm.steps_per_phase:
                self._save_when_due()
        # 3. Steps that an early end left out count as taken, so that the schedule goes on as planned.
        planned = (self.at.phase + 1) * algorithm.steps_per_phase
        if planned > self.at.step:
            bar.advance(algorithm.headline(self.last_metrics), by=planned - self.at.step)
        self.at = Position(phase=self.at.phase + 1, step_in_phase=0, step=planned)
        self.experience = None

    def _step(self, batches: Sequence[PackedBatch]) -> dict[str, float]:
        """One optimiser step from its micro-batches."""
        totals = Totals.of(batches)
        metrics = Metrics()
        for trained in self.modules:
            trained.module.train()
        for batch in batches:
            with mixed_precision(self.config.autocast, self.optimizer.device):
                loss = self.algorithm.loss(batch, totals, metrics)
            if not torch.isfinite(loss):
                raise TrainingError(
                    f"{self.name}: the loss is {float(loss.detach())} at step {self.at.step + 1}; lower the learning rate, or "
                    "look at the rows of this step (events.jsonl has the metrics before it)."
                )
            self.optimizer.backward(loss)
        found = self.optimizer.step(self.at.step)
        if self.average is not None:
            self.average.update()
        return metrics.result() | found | {"tokens": float(sum(b.num_tokens for b in batches))}

    @property
    def _stopped(self) -> bool:
        return self.stopping is not None and self.stopping.should_stop

    def _evaluate_when_due(self) -> None:
        """Evaluate on schedule and at the end, without leaving a trace in the training that goes on."""
        step, before = self.at.step, self.at.step - self.algorithm.steps_per_phase
        last = self.at.phase == self.algorithm.num_phases
        if not last and step // self.eval_every == before // self.eval_every:
            return
        for trained in self.modules:
            trained.module.eval()
        with random_state_kept(), self.average.swapped_in() if self.average else nullcontext():
            with torch.no_grad():
                self.evaluation = self.algorithm.evaluate()
            if self.evaluation:
                self.log.metrics(step, self.evaluation, event="eval")
            if self.stopping is not None:
                self._compare(self.stopping)

    def _compare(self, stopping: EarlyStopping) -> None:
        """Take note of an evaluation; a copy of the best weights waits in main memory."""
        assert self.config.early_stopping is not None
        metric = self.config.early_stopping.metric
        if metric not in self.evaluation:
            raise ConfigError(
                f"{self.name}: early_stopping watches {metric!r}, which the evaluation does not measure."
                f"{did_you_mean(metric, self.evaluation)} Measured: {', '.join(self.evaluation) or 'nothing'}."
            )
        if stopping.update(self.evaluation[metric], self.at.step) and self.config.early_stopping.keep_best:
            weights = [p.detach().to("cpu", copy=True) for p in self.optimizer.parameters]
            self.best = Best(self.at.step, self.evaluation, weights)

    def _keep_result(self) -> None:
        """Leave the weights that are the result in the modules."""
        if self._stopped:
            self.log.write("note", step=self.at.step, message="Stopped early: the evaluation no longer improves.")
        if self.best is not None:
            copy_tensors(self.best.weights, self.optimizer.parameters)
            self.log.write("note", step=self.at.step, message=f"The result is the weights of step {self.best.step}.")
        elif self.average is not None:
            self.average.copy_to_model()
        for trained in self.modules:
            trained.module.eval()

    def _save_when_due(self) -> None:
        """Counted from the last one: an early end may jump over any particular step. None at the end of the run."""
        due = self.at.step // self.save_every > self.saved_at // self.save_every
        if due and self.at.phase < self.algorithm.num_phases and not self._stopped:
            self.save()

    def save(self) -> None:
        """Write a checkpoint from which the run goes on with the same bits."""
        self.saved_at = self.at.step
        if self.checkpoints is not None:
            self.log.sync()
            self.checkpoints.save(self.at.step, {t.name: t.module for t in self.modules}, self.state_dict())

    def state_dict(self) -> dict[str, Any]:
        """Everything but the weights."""
        return {
            "at": asdict(self.at),
            "optimizer": self.optimizer.state_dict(),
            "algorithm": self.algorithm.state_dict(),
            "experience": self.experience.state_dict() if self.experience is not None else None,
            "average": self.average.state_dict() if self.average is not None else None,
            "stopping": self.stopping.state_dict() if self.stopping is not None else None,
            "best": {n: getattr(self.best, n) for n in Best.__slots__} if self.best is not None else None,
            "evaluation": self.evaluation,
            "random": random_state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state_dict`` was taken."""
        self.at = Position(**state["at"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.algorithm.load_state_dict(state["algorithm"])
        self.experience = None if state["experience"] is None else self.algorithm.restore(state["experience"])
        if self.average is not None:
            self.average.load_state_dict(state["average"])
        if self.stopping is not None:
            self.stopping.load_state_dict(state["stopping"])
        self.best = None if state["best"] is None else Best(**state["best"])
        self.evaluation = dict(state["evaluation"])
        set_random_state(state["random"])

    def _resume(self) -> None:
        checkpoint = self.checkpoints.load_latest(warn=self.log.alarm) if self.checkpoints is not None else None
        self.log.go_back_to(checkpoint.step if checkpoint else -1)
        if checkpoint is None:
            return
        load_weights({t.name: t.module for t in self.modules}, checkpoint.weights)
        self.load_state_dict(checkpoint.state)
        self.saved_at = checkpoint.step
        self.log.write("note", step=checkpoint.step, message=f"Resumed from {checkpoint.path.name}.")
        self.log.say(f"  resumed from step {checkpoint.step}")
