"""Settings of what holds a policy back while it learns something new."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rlhf.config.base import BaseConfig, InputPath

FisherTargets = Literal["model", "data"]


class PtxConfig(BaseConfig):
    """Language-model loss of other rows in every step of the policy (PPO-ptx; Ouyang et al. 2022, eq. 2, arXiv:2203.02155)."""

    data: InputPath | list[InputPath]
    """Rows to go on predicting: demonstrations or texts."""
    coef: float = Field(1.0, ge=0)
    """Weight of their negative log-likelihood, a mean over tokens; 0 for none."""
    batch_size: int | None = Field(None, ge=1)
    """How many of them each optimizer step takes, in a shuffled order; `minibatch_size` by default."""
    train_on: Literal["completion", "assistant", "all"] = "completion"
    """Which of their tokens count: completions, every assistant turn, or whole texts."""


class EWCConfig(BaseConfig):
    """Elastic weight consolidation: hold the weights that other data depends on (Kirkpatrick et al. 2017, arXiv:1612.00796)."""

    data: InputPath | list[InputPath]
    """What should not be forgotten: demonstrations."""
    coef: float = Field(100.0, gt=0)
    """Weight of the term; the Fisher information is that of one row, the training loss a mean: 10 to 1000 are of use."""
    rows: int = Field(200, ge=1)
    """How many of the data's first rows measure which weights it depends on; each costs a backward pass."""
    train_on: Literal["completion", "assistant", "all"] = "completion"
    """Which of their tokens are to be remembered: completions, every assistant turn, or whole texts."""
    targets: FisherTargets = "model"
    """Tokens whose log-likelihood is differentiated: drawn from the model after each row's text, or the row's own (the empirical
    Fisher information)."""
