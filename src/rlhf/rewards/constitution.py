"""A constitution: principles, each judged by a rule, a classifier or any other reward, that become one score."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from rlhf.data.contracts import Prompt
from rlhf.errors import ConfigError, RewardError, check_type
from rlhf.rewards.composite import Component, ask_components
from rlhf.rewards.types import CompletionLike, OnError, RewardContext, Scorer, ScoreResult, sample_name

if TYPE_CHECKING:
    from rlhf.config.constitution import ConstitutionRewardConfig

Combination = Literal["sum", "min"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Principle:
    """One thing that is asked of every completion."""

    name: str
    """What metrics and reasons call it."""
    scorer: Scorer
    """Who says how well it is kept: rules, a classifier (``LearnedReward``), a judge, a function."""
    weight: float = 1.0
    text: str = ""
    """In words, for people."""


class ConstitutionalRewardWrapper:
    """Several principles, and perhaps a reward that they go with, as one scorer; every principle is a metric.

        sum:  score = weight * reward + sum over principles of weight_k * verdict_k
        min:  score = weight * reward + min over principles of weight_k * verdict_k

    With ``min`` the worst broken principle decides, and being polite does not pay for being wrong; verdicts should be on one scale then. A
    principle that does not apply to a sample (None) is left out of that sample's score. A verdict that could not be given, such as an
    answer of a judge that could not be parsed, leaves the sample without a score and with the reason: it is never 0.

    Source: principles as criteria of an AI judge: Bai et al. 2022, arXiv:2212.08073.
    """

    def __init__(
        self,
        principles: Sequence[Principle],
        *,
        reward: Scorer | None = None,
        reward_weight: float = 1.0,
        combine: Combination = "sum",
        name: str = "constitution",
        on_error: OnError = "raise",
    ) -> None:
        """Combine principles.

        Args:
            principles: At least one, with different names.
            reward: What the principles go with; None for principles alone.
            reward_weight: Of that.
            combine: ``sum`` or ``min``.
            name: What metrics and errors call the score.
            on_error: ``report`` puts a sample without a score into the result's ``errors`` instead of raising; the judges of
                principles each have their own setting.

        Raises:
            ConfigError: There is no principle, two have one name (the reward's is ``reward``), or a weight is not a finite number.
        """
        for principle in principles:
            check_type(principle, Principle, name="A principle", expected="Principle(name=..., scorer=..., weight=...)")
            check_type(principle.scorer, Scorer, name="scorer", expected="a scorer, such as LearnedReward(folder)")
        names = [principle.name for principle in principles]
        if not names or len(set(names)) < len(names):
            raise ConfigError(f"A constitution needs at least one principle, each with a name of its own; got {names}.")
        if reward is not None and "reward" in names:
            raise ConfigError("A principle can't be called 'reward' where a reward goes with it; give it another name.")
        for which, weight in [*((p.name, p.weight) for p in principles), ("reward", reward_weight)]:
            if not math.isfinite(weight):
                raise ConfigError(f"The weight of {which!r} is {weight}; wanted a finite number.")
        if combine not in ("sum", "min"):
            raise ConfigError(f"Principles are combined by `sum` or `min`; got {combine!r}.")
        self.principles = list(principles)
        self.components = [Component(scorer=p.scorer, weight=p.weight) for p in principles]
        if reward is not None:
            self.components.append(Component(scorer=reward, weight=reward_weight))
        self.has_reward = reward is not None
        self.names = [f"{name}/{own}" for own in names] + ([f"{name}/reward"] if reward is not None else [])
        self.combine: Combination = combine
        self.on_error = on_error
        self._name = name

    @property
    def name(self) -> str:
        """What metrics and errors call it."""
        return self._name

    def score(self, prompts: Sequence[Prompt], completions: Sequence[CompletionLike]) -> ScoreResult:
        """Judge each completion.

        Raises:
            RewardError: A principle has no verdict on a sample, or none applies to it.
        """
        asked = ask_components(self.names, self.components, prompts, completions)
        errors = dict(asked.errors)
        scores = [math.nan] * len(completions)
        for place in range(len(completions)):
            if place in errors:
                continue
            said = {name: verdicts[place] for name, verdicts in asked.verdicts.items()}
            total = self._combined(said)
            if total is None or not math.isfinite(total):
                errors[place] = (
                    f"none of its principles applies to it ({', '.join(self.names)})"
                    if total is None
                    else f"its score is {total}; bring the verdicts to a smaller scale"
                )
            else:
                scores[place] = total
        if errors and self.on_error == "raise":
            place, reason = min(errors.items())
            raise RewardError(f"Sample {sample_name(prompts[place], completions[place])} has no reward: {reason}.")
        return ScoreResult(scores, asked.parts, errors)

    def _combined(self, said: Mapping[str, float | None]) -> float | None:
        """One sample's score; None where no principle applies."""
        weighted = [
            None if verdict is None else component.weight * verdict
            for component, verdict in zip(self.components, said.values(), strict=True)
        ]
        reward = weighted.pop() if self.has_reward else 0.0
        scores = [value for value in weighted if value is not None]
        if reward is None or not scores:
            return None
        return reward + (min(scores) if self.combine == "min" else math.fsum(scores))

    def close(self) -> None:
        """End the processes of the judges."""
        for component in self.components:
            close = getattr(component.scorer, "close", None)
            if close is not None:
                close()


def build_constitution(spec: ConstitutionRewardConfig, at: RewardContext) -> ConstitutionalRewardWrapper:
    """From a recipe's settings. A judge without a verdict reports it, so that the reason reaches the sample."""
    from rlhf.rewards.factory import build_reward  # here: the factory's table names this module

    def judge(one: Any) -> Scorer:
        return build_reward(one, tokenizer=at.tokenizer, on_error="report", folder=at.folder)

    return ConstitutionalRewardWrapper(
        [Principle(name=p.name, scorer=judge(p.judge), weight=p.weight, text=p.text) for p in spec.principles],
        reward=None if spec.reward is None else judge(spec.reward),
        combine=spec.combine,
        name=spec.name or "constitution",
        on_error=at.on_error,
    )
