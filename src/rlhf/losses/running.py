"""Averages that outlive a step: reference points of unpaired losses. A few numbers of state, saved with the trainer.

Each is updated once per optimizer step, with the values of all its rows over all micro-batches and ranks, and read as
often as wanted in between: how a step is split can't change it. Values are summed exactly, so neither can their order.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from rlhf.errors import CheckpointError, ConfigError, TrainingError
from rlhf.losses.shapes import check_same_shape


class RunningMean:
    """Exponential average of the means of steps.

        mean <- decay * mean + (1 - decay) * mean of the step's values;  the first step's mean as it is

    Args:
        decay: Weight of the past, in [0, 1); 0 remembers the last step only, 0.99 about a hundred.

    Raises:
        ConfigError: ``decay`` is outside [0, 1).
    """

    def __init__(self, decay: float) -> None:
        if not 0 <= decay < 1:
            raise ConfigError(f"The decay of a running mean is at least 0 and below 1; got {decay}.")
        self.decay = decay
        self.mean: float | None = None
        """None until a value was seen: 0 would be a measurement."""

    def update(self, values: Tensor) -> None:
        """Take in the values of one step; a step without any changes nothing.

        Raises:
            TrainingError: A value is not finite. It would stay in the average for good.
        """
        numbers = values.detach().double().flatten().tolist()
        if not numbers:
            return
        for row, number in enumerate(numbers):
            if not math.isfinite(number):
                raise TrainingError(
                    f"A running mean was given {number} (row {row} of {len(numbers)}) and needs finite numbers only; "
                    "lower the learning rate, or look at that row's log-probabilities."
                )
        step_mean = math.fsum(numbers) / len(numbers)
        self.mean = step_mean if self.mean is None else self.decay * self.mean + (1 - self.decay) * step_mean

    def state_dict(self) -> dict[str, Any]:
        """The mean, or None."""
        return {"mean": self.mean}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state_dict`` was taken.

        Raises:
            CheckpointError: The state is not one of a running mean.
        """
        if "mean" not in state:
            raise CheckpointError(f"The state of a running mean has the key 'mean'; got {sorted(state)}.")
        self.mean = None if state["mean"] is None else float(state["mean"])


class RunningReferencePoint:
    """KTO's z0 as a running average of log-ratios; it is cut at 0 when read, not when averaged, which would raise it.

    Update it with log-ratios of mismatched rows for the paper's estimate with less noise; or, for no extra forward pass,
    with those of the step's own rows. The latter includes what the policy has learned about these rows, so it lies above
    a KL where most rows are desirable, and below where most are not.

    Args:
        decay: As in ``RunningMean``.
    """

    def __init__(self, decay: float = 0.9) -> None:
        self._logratios = RunningMean(decay)

    @property
    def value(self) -> float:
        """z0, nats: 0 before the first step, where policy and reference are one."""
        return max(0.0, self._logratios.mean or 0.0)

    def update(self, logprobs: Tensor, ref_logprobs: Tensor) -> None:
        """Take in the rows of one step.

        Args:
            logprobs: [S] policy, nats summed over each completion; all rows of the step.
            ref_logprobs: [S] the same under the reference.
        """
        check_same_shape(logprobs, ref_logprobs)
        self._logratios.update(logprobs - ref_logprobs)

    def state_dict(self) -> dict[str, Any]:
        """The average before it is cut."""
        return self._logratios.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state_dict`` was taken."""
        self._logratios.load_state_dict(state)


class RunningRewardShift:
    """BCO's delta: half way between what desirable and undesirable completions earn on average.

        (mean reward of desirable + mean reward of undesirable) / 2

    Each kind has its own average, so that neither its share of the rows nor a step without it moves the shift.

    Source: Jung et al. 2024, arXiv:2404.04656.

    Args:
        decay: As in ``RunningMean``.
    """

    def __init__(self, decay: float = 0.9) -> None:
        self._desirable = RunningMean(decay)
        self._undesirable = RunningMean(decay)

    @property
    def value(self) -> float:
        """delta, in units of the reward; of one kind alone while the other was not seen, and 0 before the first step."""
        seen = [kind.mean for kind in (self._desirable, self._undesirable) if kind.mean is not None]
        return math.fsum(seen) / len(seen) if seen else 0.0

    def update(self, rewards: Tensor, desirable: Tensor) -> None:
        """Take in the rows of one step.

        Args:
            rewards: [S] ``implicit_rewards``: beta times the log-ratio; all rows of the step.
            desirable: bool [S].
        """
        check_same_shape(rewards, desirable)
        self._desirable.update(rewards[desirable])
        self._undesirable.update(rewards[~desirable])

    def state_dict(self) -> dict[str, Any]:
        """Both averages."""
        return {"desirable": self._desirable.state_dict(), "undesirable": self._undesirable.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state_dict`` was taken.

        Raises:
            CheckpointError: The state is not one of a reward shift.
        """
        if not {"desirable", "undesirable"} <= state.keys():
            raise CheckpointError(
                f"The state of a reward shift has the keys 'desirable' and 'undesirable'; got {sorted(state)}."
            )
        self._desirable.load_state_dict(state["desirable"])
        self._undesirable.load_state_dict(state["undesirable"])
