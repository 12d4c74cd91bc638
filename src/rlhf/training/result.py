"""How a training run ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlhf.errors import TrainingError, with_article


@dataclass(slots=True)
class TrainResult:
    """What a trainer's ``train`` returns."""

    steps: int
    seconds: float
    """Of this process; a resumed run has spent more."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Of the last step."""
    evaluation: dict[str, float] = field(default_factory=dict)
    """Of the weights that are the result."""
    stopped_early: bool = False
    model: Any = field(default=None, repr=False, compare=False)
    """What was trained: the policy, or a reward model; the object that the trainer was given."""

    def save_pretrained(self, folder: Path | str, *, card: Mapping[str, Any] | None = None) -> Path:
        """Save what was trained, tokenizer included.

        Args:
            folder: Written aside and renamed; what was there is replaced.
            card: Facts for the model card.

        Returns:
            The folder, for ``from_pretrained`` of the model's class.

        Raises:
            TrainingError: The trainer has no model that can be saved.
        """
        if not callable(getattr(self.model, "save_pretrained", None)):
            raise TrainingError(
                f"This run trained {with_article(type(self.model).__name__)}, which has no save_pretrained."
            )
        saved: Path = self.model.save_pretrained(folder, card=card)
        return saved


def trained_model(trainer: object) -> Any:
    """A trainer's policy, or the judge that it trains; None where it has neither."""
    policy = getattr(trainer, "policy", None)
    return policy if policy is not None else getattr(trainer, "model", None)
