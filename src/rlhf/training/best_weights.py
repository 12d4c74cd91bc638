"""The weights of the best evaluation so far, and whether evaluations have stopped improving."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from rlhf.config.training import EarlyStoppingConfig
from rlhf.errors import ConfigError, did_you_mean
from rlhf.training.control import EarlyStopping


@dataclass(slots=True)
class Best:
    """The best evaluation so far, and the weights that it was of."""

    step: int
    evaluation: dict[str, float]
    weights: list[Tensor]
    """In main memory."""


class BestWeights:
    """Compares evaluations where early stopping asks for it.

    Args:
        config: What is watched; None for nothing.
        name: What messages call the run.
    """

    def __init__(self, config: EarlyStoppingConfig | None, *, name: str) -> None:
        self.config = config
        self.name = name
        self.stopping = EarlyStopping.of(config) if config is not None else None
        self.best: Best | None = None

    @property
    def should_stop(self) -> bool:
        """Whether patience is used up."""
        return self.stopping is not None and self.stopping.should_stop

    def compare(self, evaluation: dict[str, float], step: int, parameters: Sequence[Tensor]) -> None:
        """Take note of an evaluation; a copy of the best weights waits in main memory.

        Args:
            evaluation: Its metrics.
            step: Steps taken.
            parameters: The weights that were evaluated.

        Raises:
            ConfigError: The metric that is watched is not among them.
        """
        config = self.config
        if config is None or self.stopping is None:
            return
        if config.metric not in evaluation:
            raise ConfigError(
                f"{self.name}: early_stopping watches {config.metric!r}, which the evaluation does not measure."
                f"{did_you_mean(config.metric, evaluation)} Measured: {', '.join(evaluation) or 'nothing'}."
            )
        if self.stopping.update(evaluation[config.metric], step) and config.keep_best:
            self.best = Best(step, evaluation, [p.detach().to("cpu", copy=True) for p in parameters])

    def state_dict(self) -> dict[str, Any]:
        """What was compared, and the best weights."""
        return {
            "stopping": self.stopping.state_dict() if self.stopping is not None else None,
            "best": {name: getattr(self.best, name) for name in Best.__slots__} if self.best is not None else None,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state_dict`` was taken."""
        if self.stopping is not None:
            self.stopping.load_state_dict(state["stopping"])
        self.best = None if state["best"] is None else Best(**state["best"])
