"""What every judge of completions takes and gives."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from rlhf.data.contracts import Prompt


class CompletionLike(Protocol):
    """What a judge needs of a completion; ``rlhf.rollout.types.Completion`` is one."""

    @property
    def sample(self) -> int:
        """Which of its prompt's samples it is."""
        ...

    @property
    def tokens(self) -> list[int]:
        """Token ids."""
        ...

    @property
    def text(self) -> str:
        """The same as text, special tokens left out."""
        ...

    @property
    def truncated(self) -> bool:
        """Cut by the length limit."""
        ...


@dataclass(frozen=True, slots=True)
class ScoreResult:
    """Verdicts on n completions."""

    scores: list[float]
    """[n] finite, except where ``errors`` says why not (then NaN)."""
    per_component: Mapping[str, list[float | None]] = field(default_factory=dict)
    """Name -> [n] raw verdicts, before weights and normalisation; None where a component does not apply."""
    errors: Mapping[int, str] = field(default_factory=dict)
    """Place of a completion -> why it has no score. Empty unless the scorer was built to report instead of raising."""

    def __post_init__(self) -> None:
        for place, score in enumerate(self.scores):
            assert math.isfinite(score) or place in self.errors, f"score {place} is {score} and no error says why"


@runtime_checkable
class Scorer(Protocol):
    """Judges completions; the loops talk to nothing else."""

    @property
    def name(self) -> str:
        """What metrics and errors call it."""
        ...

    def score(self, prompts: Sequence[Prompt], completions: Sequence[CompletionLike]) -> ScoreResult:
        """Judge each completion.

        Args:
            prompts: [n] the prompt of each completion; the same one several times where it was asked several times.
            completions: [n].

        Returns:
            One finite number for each.

        Raises:
            RewardError: Something could not be judged; names the scorer and the sample.
        """
        ...


def sample_name(prompt: Prompt, completion: CompletionLike) -> str:
    """How errors call a sample."""
    return f"{prompt.id!r} (completion {completion.sample})"
