"""What is measured on held-out prompts while a policy learns from rewards."""

from __future__ import annotations

from typing import Self

from pydantic import Field, FiniteFloat, model_validator

from rlhf.config.base import BaseConfig


class HeldOutConfig(BaseConfig):
    """More than the mean score at each evaluation; every measure can be watched by early stopping."""

    limit: int | None = Field(None, ge=1)
    """Ask only this many of the held-out prompts, the first ones."""
    samples: int = Field(1, ge=1)
    """Completions of each held-out prompt, with the same seeds at every evaluation."""
    success_score: FiniteFloat | None = None
    """A completion that scores at least this has solved its task; null for no `eval/pass_at_k`."""
    pass_k: list[int] = Field(default_factory=lambda: [1])
    """For each k: `eval/pass_at_k`, the chance that one of k completions solves the task, estimated without bias from all
    `samples` (Chen et al. 2021, eq. 1, arXiv:2107.03374)."""
    win_rate: bool = False
    """Also ask the starting policy, once, and measure `eval/win_rate`: the share of completions that score higher than the
    start's completion of the same prompt and seed, ties counted half."""

    @model_validator(mode="after")
    def _can_be_measured(self) -> Self:
        if self.pass_k != [1] and self.success_score is None:
            raise ValueError("pass_k needs success_score: the score from which on a completion has solved its task")
        if not self.pass_k or min(self.pass_k) < 1:
            raise ValueError(f"pass_k is {self.pass_k}; wanted numbers from 1 on, at least one")
        if max(self.pass_k) > self.samples:
            raise ValueError(
                f"pass@{max(self.pass_k)} needs as many completions of each prompt; samples is {self.samples}"
            )
        return self

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of what these settings add to an evaluation."""
        passes = [f"eval/pass_at_{k}" for k in sorted(set(self.pass_k))] if self.success_score is not None else []
        return (*passes, *(["eval/win_rate"] if self.win_rate else []))
