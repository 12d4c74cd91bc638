"""Rewards in an actor: the scorers of a stage, as the process that trains would build them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rlhf.config.reward_base import RewardBase
from rlhf.data.contracts import Prompt
from rlhf.distributed.whereabouts import Whereabouts
from rlhf.models.device import placed_on
from rlhf.native.compiled_mode import in_c
from rlhf.rewards.factory import build_reward
from rlhf.rewards.types import Abstaining, CompletionLike, OnError, Scorer, ScoreResult, ask_scorer


@dataclass(frozen=True, slots=True)
class AboutReward:
    """What is known of a scorer."""

    name: str
    abstains: bool
    """Whether it may have no verdict on a sample, see ``rlhf.rewards.types.Abstaining``."""


class RewardWorker:
    """See ``rlhf.distributed.actor_pool``; one of its objects.

    Args:
        specs: Settings of each reward, without weight.
        tokenizer: The policy's.
        on_error: As of ``build_reward``.
        device: Where models are put.
        where: Modules of functions and relative paths are looked for.
    """

    def __init__(
        self, specs: Sequence[RewardBase], tokenizer: Any, on_error: OnError, device: str, where: Whereabouts
    ) -> None:
        where.take()
        with placed_on(device):
            self.scorers: list[Scorer] = [build_reward(spec, tokenizer=tokenizer, on_error=on_error) for spec in specs]

    def started(self) -> list[AboutReward]:
        """Of each reward."""
        return [AboutReward(scorer.name, isinstance(scorer, Abstaining)) for scorer in self.scorers]

    def score(
        self, number: int, prompts: Sequence[Prompt], completions: Sequence[CompletionLike], compiled: bool
    ) -> ScoreResult:
        """What a reward gives.

        Args:
            number: Of the reward.
            prompts: [n].
            completions: [n].
            compiled: Whether the process that trains computes in C.
        """
        with in_c(compiled):
            return ask_scorer(self.scorers[number], prompts, completions)

    def checked_verdicts(
        self, number: int, prompts: Sequence[Prompt], completions: Sequence[CompletionLike], compiled: bool
    ) -> tuple[list[float | None], dict[int, str]]:
        """Of a reward that may have none, the verdicts, and why some failed."""
        scorer = self.scorers[number]
        assert isinstance(scorer, Abstaining)
        with in_c(compiled):
            return scorer.checked_verdicts(prompts, completions)


def build_worker(*arguments: Any) -> RewardWorker:
    """What an actor of a pool is made of."""
    return RewardWorker(*arguments)
