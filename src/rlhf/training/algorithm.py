"""What the loop needs of SFT, reward modeling, DPO, PPO, GRPO ...: the contract between the one loop and what it learns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from rlhf.data.pack import PackedBatch
from rlhf.training.metrics import Metrics
from rlhf.training.monitoring.guards import Finding
from rlhf.training.optim import Optimizer, TrainedModule


@dataclass(frozen=True, slots=True)
class Totals:
    """Counts over a whole optimizer step, all its micro-batches together: the denominators of every mean."""

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


@dataclass(frozen=True, slots=True)
class SelfCheck:
    """Something that holds at the start of every sound run."""

    what: str
    value: float
    limit: float
    meaning: str
    """What is wrong where the value is above the limit, and what to do."""


class Penalty(Protocol):
    """A term of the loss that is a function of the weights alone: L2 to the start, elastic weight consolidation."""

    name: str
    """Names its metric, ``loss/<name>``."""

    def __call__(self) -> Tensor:
        """0-dimensional, its weight included, with the graph of the weights as they are."""
        ...


class Algorithm(Protocol):
    """What the loop needs from SFT, reward modeling, DPO, PPO, GRPO ..."""

    name: str
    """Names its metrics, its seeds and its progress bar."""
    num_phases: int
    steps_per_phase: int

    @property
    def tokenizer(self) -> Any:
        """Turns rows back into text, for alarms."""
        ...

    def modules(self) -> Sequence[TrainedModule]:
        """What is trained."""
        ...

    def collect(self, phase: int, metrics: Metrics) -> Experience:
        """Fetch rows, or ask the policy and judge its completions."""
        ...

    def collecting_takes_long(self, phase: int) -> bool:
        """Whether collecting asks models, so that a signal should break it off. It is done again after a resume."""
        ...

    def restore(self, state: Mapping[str, Any]) -> Experience:
        """The experience that ``state_dict`` described."""
        ...

    def steps(self, phase: int, experience: Any) -> Iterator[Sequence[PackedBatch]]:
        """The micro-batches of each optimizer step, the same ones every time it is called."""
        ...

    @property
    def penalties(self) -> Sequence[Penalty]:
        """Terms of the loss that are functions of the weights alone."""
        ...

    def before_step(self, batches: Sequence[PackedBatch], metrics: Metrics) -> None:
        """Measure, without gradient, what the losses of a step's micro-batches need to know of the whole step."""
        ...

    def take_step(self, optimizer: Optimizer, step: int, batches: Sequence[PackedBatch]) -> dict[str, float]:
        """Change the weights by the gradients that are there; what the optimizer reports, and whatever else is worth it."""
        ...

    def loss(self, batch: PackedBatch, totals: Totals, metrics: Metrics) -> Tensor:
        """This micro-batch's part of the step's loss: a sum over its tokens divided by the step's totals."""
        ...

    def all_batches(self, experience: Any) -> list[PackedBatch]:
        """All of an experience, to look for the rows that raised an alarm."""
        ...

    def self_checks(self, step: int, metrics: Mapping[str, float]) -> Sequence[SelfCheck]:
        """What must be so after this step, the run's first or the first that learns; empty where there is nothing to check."""
        ...

    @property
    def may_restore(self) -> bool:
        """Whether a finding may ask for the last good checkpoint."""
        ...

    def findings(self) -> Sequence[Finding]:
        """What detectors of its own said since this was last asked."""
        ...

    def ends_phase_early(self, metrics: Mapping[str, float]) -> bool:
        """Whether the rest of a phase's steps should be left out (a limit on KL)."""
        ...

    def evaluate(self) -> dict[str, float]:
        """Metrics on held-out data; empty where there is none."""
        ...

    def headline(self, metrics: Mapping[str, float]) -> str:
        """A few words next to the progress bar."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Everything of its own that changes: data cursor, controllers, running statistics."""
        ...

    def deferred_state_dict(self) -> Callable[[], dict[str, Any]]:
        """The state as it is now, given when the result is called: that may wait for work that is under way now."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state_dict`` was taken."""
        ...
