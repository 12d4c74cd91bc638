"""Settings of supervised fine-tuning."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Self

from pydantic import Field, model_validator

from rlhf.config.formulas import Formula
from rlhf.config.offline_losses import SFT_LOSSES, named
from rlhf.config.training import MOST_EPOCHS, OfflineConfig, Truncation

if TYPE_CHECKING:
    SFTLoss = str
else:
    SFTLoss = Literal[tuple(SFT_LOSSES)]


class SFTConfig(OfflineConfig):
    """Supervised fine-tuning: the negative log-likelihood of completions."""

    learning_rate: float = Field(2e-5, gt=0)
    """Peak learning rate."""
    epochs: float | None = Field(3, gt=0, le=MOST_EPOCHS)
    """Passes over the data."""
    train_on: Literal["completion", "assistant", "all"] = "completion"
    """Which tokens are learned: completions, every assistant turn, or whole texts."""
    loss: SFTLoss = "nll"
    """Negative log-likelihood, or DFT, which weighs each token by its own probability (Wu et al. 2025, arXiv:2508.05629)."""
    label_smoothing: float = Field(0.0, ge=0, lt=1)
    """Share of each target spread evenly over the vocabulary (Szegedy et al. 2015, arXiv:1512.00567); for `nll`."""
    neftune_alpha: float | None = Field(None, gt=0)
    """Noise on the embeddings while training (NEFTune, Jain et al. 2023, arXiv:2310.05914: 5 to 15); null for none."""
    max_length: int | None = Field(None, ge=2)
    """Longest row in tokens."""
    truncation: Truncation = "error"
    """What happens to longer rows."""

    @property
    def token_formula(self) -> Formula:
        """What computes ``loss``."""
        formula = SFT_LOSSES[self.loss]
        return formula.smoothed if self.label_smoothing and formula.smoothed is not None else formula

    @model_validator(mode="after")
    def _options_of_the_loss(self) -> Self:
        if self.label_smoothing and SFT_LOSSES[self.loss].smoothed is None:
            owners = named([name for name, formula in SFT_LOSSES.items() if formula.smoothed is not None])
            raise ValueError(f"label_smoothing belongs to the loss {owners}; the loss is {self.loss!r}")
        return self
