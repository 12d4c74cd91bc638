"""Scores of candidates, the shared beginning of a tree's siblings read once.

A process reward model scores each step by itself, given what stands before it. So a child of a node whose steps have their scores needs
only its newest step scored, behind the prompt and the node: all children of the node share that prefix in one packed group, and the score
of the whole follows from the scores of the steps. The result is that of scoring the whole child, up to the order of additions; a test
compares them. Any other scorer reads whole candidates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from rlhf.data.contracts import Prompt
from rlhf.rewards.model_reward import ModelReward
from rlhf.rewards.service import ServiceReward
from rlhf.rewards.steps import ProcessReward
from rlhf.rewards.types import Scorer, parts_of
from rlhf.rollout.types import Completion
from rlhf.search.value_scores import ValueScores

COMBINED: Mapping[str, Callable[[Sequence[float]], float]] = {
    "product": math.prod,
    "min": min,
    "mean": lambda steps: sum(steps) / len(steps),
    "last": lambda steps: steps[-1],
}
"""Aggregation of a process reward -> the same of the probabilities of steps."""


@dataclass(frozen=True, slots=True)
class ScoredRow:
    """A row that a scorer reads for a candidate."""

    prompt: Prompt
    completion: Completion
    steps_before: tuple[float, ...] | None
    """Scores of the steps that the prompt holds already; None where the whole candidate is read."""


@dataclass(slots=True)
class StepScores:
    """The rows to score of one prompt's candidates, and the scores that follow from them.

    Args:
        scorer: Who scores.
    """

    scorer: Scorer
    steps: dict[int, tuple[float, ...]] = field(default_factory=dict)
    """Number of a candidate -> the score of each of its steps, where each was scored by itself."""

    @property
    def by_step(self) -> bool:
        """Whether the scorer can score a step behind the ids of what stands before it."""
        return isinstance(self.scorer, ProcessReward) and self.scorer.takes_ids and self.scorer.aggregate in COMBINED

    def row(self, prompt: Prompt, candidate: Completion, parent: Completion | None, *, is_step: bool) -> ScoredRow:
        """What is read for a candidate.

        Args:
            prompt: The search's.
            candidate: To be scored.
            parent: What it was sampled from; None for the prompt alone.
            is_step: Whether its newest part is a single step.
        """
        before = () if parent is None else self.steps.get(parent.sample)
        if not (is_step and self.by_step) or before is None:
            return ScoredRow(prompt, candidate, None)
        own = 0 if parent is None else len(parent.tokens)
        newest = replace(
            candidate, tokens=candidate.tokens[own:], logprobs=candidate.logprobs[own:], sampling_logprobs=None
        )
        behind = prompt if parent is None else replace(prompt, ids=[*prompt.ids, *parent.tokens])
        return ScoredRow(behind, newest, before)

    def score(self, row: ScoredRow, value: float) -> float:
        """The candidate's score, from what the scorer said of its row."""
        if row.steps_before is None:
            return value
        assert isinstance(self.scorer, ProcessReward)
        self.steps[row.completion.sample] = steps = (*row.steps_before, value)
        return float(COMBINED[self.scorer.aggregate](steps))


def tokens_read(scorer: Scorer, rows: Sequence[ScoredRow]) -> list[int]:
    """[n] tokens that reward models read for each row; neighbors with the same prompt share it, and the first of them pays for it."""
    models = _models_of(scorer)
    counts: list[int] = []
    before: Prompt | None = None
    for row in rows:
        shared = before is not None and before.id == row.prompt.id and before.ids == row.prompt.ids
        counts.append(models * (len(row.completion.tokens) + (0 if shared else len(row.prompt.ids))))
        before = row.prompt
    return counts


def _models_of(scorer: Scorer) -> int:
    """How many models read a row; of a service, one is known of."""
    if parts := parts_of(scorer):
        return sum(map(_models_of, parts))
    if isinstance(scorer, ModelReward | ValueScores):
        return len(scorer.model.networks)
    return int(isinstance(scorer, ServiceReward))
