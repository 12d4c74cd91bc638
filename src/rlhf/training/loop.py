"""The only training loop there is.

An algorithm says what to learn from and how to turn a packed batch into a loss; the loop does everything else: accumulate,
clip, step, schedule, evaluate, stop early, checkpoint, resume, log. A run is a sequence of *phases*:

    offline (SFT, reward, DPO)     a phase is one optimiser step on the next rows
    online (PPO, GRPO)             a phase asks the policy, judges, gives credit, then takes several steps on what came back
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from rlhf.config.training import TrainConfig
from rlhf.data.pack import PackedBatch
from rlhf.errors import TrainingError
from rlhf.seeds import derive_seed
from rlhf.training.checkpoint import CheckpointStore, load_weights
from rlhf.training.control import EarlyStopping
from rlhf.training.log import RunLog
from rlhf.training.metrics import Metrics
from rlhf.training.optim import Optimizer, TrainedModule, WeightAverage


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
            sum(b.num_scored for b in batches), sum(b.num_sequences for b in batches), sum(b.num_groups for b in batches)
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
    metrics: dict[str, float] = field(default_factory=dict)
    """Of the last step."""
    evaluation: dict[str, float] = field(default_factory=dict)
    """Of the weights that were kept."""
    stopped_early: bool = False


@dataclass(slots=True)
class Position:
    """Where a run stands."""

    phase: int = 0
    step_in_phase: int = 0
    step: int = 0


class Loop:
    """Runs one algorithm from its first phase, or from its newest checkpoint, to its end."""

    def __init__(
        self, algorithm: Algorithm, config: TrainConfig, *, log: RunLog | None = None, checkpoints: CheckpointStore | None = None
    ) -> None:
        self.algorithm = algorithm
        self.config = config
        self.log = log or RunLog()
        self.checkpoints = checkpoints
        self.total_steps = algorithm.num_phases * algorithm.steps_per_phase
        self.modules = algorithm.modules()
        self.optimizer = Optimizer(self.modules, config, total_steps=self.total_steps)
        self.average = (
            WeightAverage(self.optimizer.parameters, decay=config.ema_decay) if config.ema_decay is not None else None
        )
        stopping = config.early_stopping
        self.stopping = (
            EarlyStopping(mode=stopping.mode, patience=stopping.patience, min_delta=stopping.min_delta) if stopping else None
        )
        self.at = Position()
        self.experience: Experience | None = None
        self.best_weights: list[Tensor] | None = None
        self.last_metrics: dict[str, float] = {}
        self.evaluation: dict[str, float] = {}
        self.eval_every = config.eval_every or max(1, math.ceil(self.total_steps / 5))
        self.save_every = config.save_every or max(1, math.ceil(self.total_steps / 4))

    def run(self) -> TrainResult:
        """Train to the end."""
        began = time.monotonic()
        _seed_everything(derive_seed(self.config.seed, self.algorithm.name))
        self._resume()
        stopped = False
        with self.log.progress(self.algorithm.name, self.total_steps, done=self.at.step) as bar:
            while self.at.phase < self.algorithm.num_phases and not stopped:
                # 1. Collect: the next rows, or the policy's own completions with their rewards.
                gathered = Metrics()
                if self.experience is None:
                    self.experience = self.algorithm.collect(self.at.phase, gathered)
                # 2. Learn from them.
                for number, batches in enumerate(self.algorithm.steps(self.at.phase, self.experience)):
                    if number < self.at.step_in_phase:
                        continue  # taken before the checkpoint that we resumed from
                    metrics = self._step(batches)
                    self.at.step += 1
                    self.at.step_in_phase += 1
                    self.last_metrics = metrics | gathered.result()
                    gathered = Metrics()
                    self.log.metrics(self.at.step, self.last_metrics)
                    bar.advance(self.algorithm.headline(self.last_metrics))
                    ends = self.algorithm.ends_phase_early(metrics)
                    if self.at.step % self.save_every == 0 and self.at.step < self.total_steps and not ends:
                        self.save()
                    if ends:
                        break
                self._end_phase(bar)
                # 3. Look at held-out data now and then, and stop when nothing improves any more.
                stopped = self._evaluate_when_due()
        self._finish(stopped)
        return TrainResult(
            self.at.step, time.monotonic() - began, self.last_metrics, self.evaluation, stopped_early=stopped
        )

    def _step(self, batches: Sequence[PackedBatch]) -> dict[str, float]:
        """One optimiser step from its micro-batches."""
        totals = Totals.of(batches)
        metrics = Metrics()
        for trained in self.modules:
            trained.module.train()
        for batch in batches:
            with self.optimizer.autocast():
                loss = self.algorithm.loss(batch, totals, metrics)
            if not torch.isfinite(loss):
                raise TrainingError(
                    f"{self.algorithm.name}: the loss is {float(loss)} at step {self.at.step + 1}; "
                    "lower the learning rate, or look at the rows of this step (events.jsonl has the last metrics)."
                )
            self.optimizer.backward(loss)
        found = self.optimizer.step(self.at.step)
        if self.average is not None:
            self.average.update()
        return metrics.result() | found | {"tokens": float(sum(b.num_tokens for b in batches))}

    def _end_phase(self, bar: Any) -> None:
        """Move to the next phase; steps left out by an early end count as taken, so that the schedule goes on."""
        self.experience = None
        self.at.phase += 1
        self.at.step_in_phase = 0
        planned = self.at.phase * self.algorithm.steps_per_phase
        if self.at.step < planned:
            bar.advance(by=planned - self.at.step)
            self.at.step = planned

    def _evaluate_when_due(self) -> bool:
        """Evaluate on schedule and at the end; True where early stopping says that it is enough."""
        per_phase = self.algorithm.steps_per_phase
        before = self.at.step - per_phase
        last = self.at.phase == self.algorithm.num_phases
        if not last and self.at.step // self.eval_every == before // self.eval_every:
            return False
        found = self._evaluate()
        if not found:
            return False
        self.evaluation = found
        self.log.metrics(self.at.step, found, event="eval")
        if self.stopping is None:
            return False
        metric = self.config.early_stopping.metric if self.config.early_stopping else ""
        if metric not in found:
            raise TrainingError(f"Early stopping watches {metric!r}, which the evaluation does not measure: {sorted(found)}.")
        if self.stopping.update(found[metric], self.at.step) and self.config.keep_best == "auto":
            self.best_weights = [p.detach().clone() for p in self.optimizer.parameters]
        return self.stopping.should_stop

    def _evaluate(self) -> dict[str, float]:
        for trained in self.modules:
            trained.module.eval()
        with torch.no_grad(), self.optimizer.autocast():
            if self.average is None:
                return self.algorithm.evaluate()
            with self.average.swapped():
                return self.algorithm.evaluate()

    def _finish(self, stopped: bool) -> None:
        """Leave the weights that are the result in the modules."""
        if self.best_weights is not None:
            with torch.no_grad():
                for parameter, best in zip(self.optimizer.parameters, self.best_weights, strict=True):
                    parameter.copy_(best)
        elif self.average is not None:
            self.average.swap()
        for trained in self.modules:
            trained.module.eval()
        if stopped:
            self.log.write("note", step=self.at.step, message="Stopped early: the evaluation no longer improved.")
        self.log.close()

    def save(self) -> Path | None:
        """Write a checkpoint from which the run goes on with the same bits."""
        if self.checkpoints is None:
            return None
        return self.checkpoints.save(self.at.step, {t.name: t.module for t in self.modules}, self.state_dict())

    def state_dict(self) -> dict[str, Any]:
        """Everything but the weights."""
        return {
            "at": {"phase": self.at.phase, "step_in_phase": self.at.step_in_phase, "step": self.at.step},
            "optimizer": self.optimizer.state_dict(),
            "algorithm": self.algorithm.state_dict(),
            "experience": self.experience.state_dict() if self.experience is not None else None,
            "average": self.average.state_dict() if self.average is not None else None,
            "stopping": self.stopping.state_dict() if self.stopping is not None else None,
            "best_weights": self.best_weights,
            "evaluation": self.evaluation,
            "rng": _rng_state(),
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
        self.best_weights = state["best_weights"]
        self.evaluation = dict(state["evaluation"])
        _set_rng_state(state["rng"])

    def _resume(self) -> None:
        checkpoint = self.checkpoints.load_latest() if self.checkpoints is not None else None
        self.log.truncate_after(checkpoint.step if checkpoint else -1)
        if checkpoint is None:
            return
        load_weights({t.name: t.module for t in self.modules}, checkpoint.weights)
        self.load_state_dict(checkpoint.state)
        self.log.write("note", step=checkpoint.step, message=f"Resumed from {checkpoint.path.name}.")
        self.log.say(f"  resumed from step {checkpoint.step}")


def freeze(module: nn.Module) -> None:
    """No gradients, evaluation mode."""
    module.requires_grad_(False)
    module.eval()


def _seed_everything(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def _rng_state() -> dict[str, Any]:
    version, internal, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    return {
        "python": [version, list(internal), gauss],
        "numpy": [kind, torch.from_numpy(keys.astype(np.int64)), position, has_gauss, cached],  # type: ignore[union-attr]
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def _set_rng_state(state: Mapping[str, Any]) -> None:
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    kind, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), position, has_gauss, cached))
    torch.set_rng_state(state["torch"])
    if state["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda"])
