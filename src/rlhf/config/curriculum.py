"""Prompts by measured pass rate: the settings."""

from __future__ import annotations

from typing import Self

from pydantic import Field, FiniteFloat, model_validator

from rlhf.config.base import BaseConfig


class CurriculumConfig(BaseConfig):
    """Which share of a rollout's prompts the policy solves now and then, which it never or always solves, and which are new.

    Prompts whose pass rate lies in the band from `floor` to `ceiling` take the slots that the others leave. No prompt is ever removed:
    those outside the band share `outside_share` of the slots, and one that has come back into the band counts as such at once.
    """

    success_score: FiniteFloat = 1.0
    """A completion whose score is at least this has passed: the reward's score, before penalties for length."""
    window: int = Field(4, ge=1)
    """Newest visits of a prompt that its pass rate is the mean of; a visit has `group_size` completions."""
    floor: float = Field(0.1, ge=0, le=1)
    """A prompt with a lower pass rate is below the band: too hard for now."""
    ceiling: float = Field(0.9, ge=0, le=1)
    """A prompt with a higher pass rate is above the band: known."""
    outside_share: float = Field(0.25, gt=0, le=1)
    """Share of the prompts asked that are outside the band, for as long as there are prompts inside it or new ones. Above 0: what is
    never asked again is never found to have become learnable, or forgotten."""
    new_share: float = Field(0.5, gt=0, le=1)
    """Share of the prompts asked that were not asked before, for as long as there are such."""

    @model_validator(mode="after")
    def _is_a_band(self) -> Self:
        if self.floor > self.ceiling:
            raise ValueError(f"floor ({self.floor:g}) must be at most ceiling ({self.ceiling:g})")
        if self.outside_share + self.new_share > 1:
            raise ValueError(
                f"outside_share ({self.outside_share:g}) and new_share ({self.new_share:g}) are shares of one rollout; their sum must be at "
                "most 1"
            )
        return self
