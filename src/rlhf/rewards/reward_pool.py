"""Rewards of a stage that actors compute: the completions of a rollout are cut into units, and each goes to whichever actor is free.

Where the cuts are depends on the completions and the settings alone, so the number of actors, which of them computes what,
and losses on the way do not change the scores. A reward model reads other rows together than in one process, so its scores differ by rounding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rlhf.config.launch import RewardPoolConfig
from rlhf.config.reward_base import RewardBase
from rlhf.data.contracts import Prompt
from rlhf.distributed.actor_calls import Cluster
from rlhf.distributed.actor_pool import ActorPool
from rlhf.distributed.whereabouts import Whereabouts
from rlhf.native.compiled_mode import is_in_c
from rlhf.rewards.reward_worker import AboutReward
from rlhf.rewards.types import CompletionLike, Notify, RewardContext, Scorer, ScoreResult

ROLE = "reward"
WORKER = "rlhf.rewards.reward_worker:build_worker"


class PooledReward:
    """One reward of a pool.

    Args:
        pool: Of actors that each have all rewards.
        number: Of this one.
        about: What an actor said of it.
        unit_size: Completions that an actor is given at a time, those of one prompt together.
    """

    def __init__(self, pool: ActorPool, number: int, about: AboutReward, *, unit_size: int) -> None:
        self.pool, self.number, self.unit_size = pool, number, unit_size
        self._name = about.name

    @property
    def name(self) -> str:
        """What metrics and errors call it."""
        return self._name

    @property
    def notify(self) -> Notify:
        """Called with a message when an actor is replaced."""
        return self.pool.notify

    @notify.setter
    def notify(self, notify: Notify) -> None:
        self.pool.notify = notify

    def score(self, prompts: Sequence[Prompt], completions: Sequence[CompletionLike]) -> ScoreResult:
        """Judge each completion.

        Raises:
            RewardError: As the reward itself; nothing is scored then.
            TrainingError: Actors were lost too often.
        """
        asked = self._asked("score", prompts, completions)
        names = {name: None for _, result in asked for name in result.per_component}
        parts = {
            name: [
                value
                for part, result in asked
                for value in result.per_component.get(name, [None] * (part.stop - part.start))
            ]
            for name in names
        }
        scores = [score for _, result in asked for score in result.scores]
        return ScoreResult(scores, parts, _joined((part, result.errors) for part, result in asked))

    def close(self) -> None:
        """End the actors; another request starts them again."""
        self.pool.close()

    def _asked(
        self, method: str, prompts: Sequence[Prompt], completions: Sequence[CompletionLike]
    ) -> list[tuple[slice, Any]]:
        parts = list(units_of(prompts, size=self.unit_size))
        arguments = [(self.number, list(prompts[part]), list(completions[part]), is_in_c()) for part in parts]
        costs = [float(sum(1 + len(said.tokens) for said in completions[part])) for part in parts]
        return list(zip(parts, self.pool.run(method, arguments, costs=costs), strict=True))


class PooledAbstainingReward(PooledReward):
    """One that may have no verdict on a sample."""

    def checked_verdicts(
        self, prompts: Sequence[Prompt], completions: Sequence[CompletionLike]
    ) -> tuple[list[float | None], dict[int, str]]:
        """Verdicts [n], None where it does not apply or failed, and why it failed on which sample.

        Raises:
            RewardError: As the reward itself.
            TrainingError: Actors were lost too often.
        """
        asked = self._asked("checked_verdicts", prompts, completions)
        verdicts = [verdict for _, (said, _) in asked for verdict in said]
        return verdicts, _joined((part, wrong) for part, (_, wrong) in asked)


def units_of(prompts: Sequence[Prompt], *, size: int) -> Iterator[slice]:
    """Consecutive places of at most ``size`` samples; those of one prompt stay together, also where they are more."""
    first = last = 0
    for place in range(1, len(prompts) + 1):
        if place < len(prompts) and prompts[place].id == prompts[place - 1].id:
            continue
        if place - first > size and last > first:
            yield slice(first, last)
            first = last
        last = place
    if last > first:
        yield slice(first, last)


def _joined(parts: Iterator[tuple[slice, Mapping[int, str]]]) -> dict[int, str]:
    return {part.start + place: why for part, wrong in parts for place, why in wrong.items()}


def pooled_rewards(
    cluster: Cluster, settings: RewardPoolConfig, specs: Sequence[RewardBase], context: RewardContext
) -> list[Scorer]:
    """Scorers of these settings in one pool, whose actors start now.

    Args:
        cluster: Where they live.
        settings: Of the pool.
        specs: Of each reward; its weight and normalization are somebody else's.
        context: What a reward is built with here.

    Raises:
        RLHFError: As ``rlhf.rewards.factory.build_reward``.
        TrainingError: No actor starts.
    """
    device = "auto" if settings.gpus else "cpu"
    bare = [spec.updated(weight=1.0, normalize=False, length_debias=False) for spec in specs]
    pool = ActorPool(
        cluster, ROLE, settings, WORKER, (bare, context.tokenizer, context.on_error, device, Whereabouts.here()),
        reissue_after=settings.reissue_after,
    )  # fmt: skip
    about: list[AboutReward] = pool.about()
    kinds = [PooledAbstainingReward if each.abstains else PooledReward for each in about]
    return [
        kind(pool, number, each, unit_size=settings.completions_per_unit)
        for number, (kind, each) in enumerate(zip(kinds, about, strict=True))
    ]
