"""Search at inference: who scores, who criticizes, what it may cost, and a strategy (``rlhf.config.search_strategies``)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, model_validator

from rlhf.config.base import BaseConfig, InputPath
from rlhf.config.function_reward import FunctionRewardConfig
from rlhf.config.policy import SamplingConfig
from rlhf.config.reward_base import RewardBase
from rlhf.config.rewards import JudgeSpec
from rlhf.config.search_revision import CriticSpec, FunctionCriticConfig, ModelCriticConfig
from rlhf.config.search_strategies import AnswerConfig, StrategyConfig, StrategySpec
from rlhf.config.yaml_text import read_yaml

WANTED = "a search needs at least a strategy, such as `strategy: greedy`"
"""What the message about an empty file says it should hold."""


class BudgetConfig(BaseConfig):
    """Limits of a search; none of them is exceeded, and answers that they cut short are marked."""

    policy_tokens: int | None = Field(None, ge=1)
    """Most tokens sampled for each prompt."""
    scorer_forwards: int | None = Field(None, ge=1)
    """Most completions, or beginnings of some, scored for each prompt."""
    seconds: float | None = Field(None, gt=0)
    """For all prompts together. Looked at before each call of engine and scorer; prompts that are not reached have no answer."""


class SearchSettings(BaseConfig):
    """What searches have in common: who scores, what ends a step, where answers stand, and what it may cost."""

    reward: JudgeSpec | None = None
    """Who scores candidates: a reward model, a process reward model, a verifier or a function. Strategies that go by steps ask it about
    beginnings, which a process reward model can judge."""
    critic: CriticSpec | None = None
    """Who says what is wrong with a draft, for strategies that revise: `policy`, a Python function, or another model."""
    value_model: InputPath | None = None
    """A critic that PPO or VAPO left (`save_critic`), for `value_weight` of `mcts`."""
    step_separator: str | None = Field(None, min_length=1)
    """Text that ends a step; by default that of a process reward model."""
    answer: AnswerConfig = AnswerConfig()
    """Where the answer stands, for strategies that compare answers."""
    budget: BudgetConfig = BudgetConfig()
    """Limits of every search."""


class SearchConfig(SearchSettings):
    """A `search` section: how completions are looked for, in place of being sampled."""

    strategy: StrategySpec
    """How: a kind, its settings, or a function of yours."""

    @model_validator(mode="after")
    def _has_whom_it_asks(self) -> Self:
        if complaint := missing_for(self.strategy, self) or _unfit_reward(self.strategy, self):
            raise ValueError(complaint)
        return self


def _from_file(value: Any) -> Any:
    """The section in a YAML file, with or without the key ``search`` around it."""
    if not (isinstance(value, str) and value.endswith((".yaml", ".yml"))):
        return {"strategy": value} if isinstance(value, str) else value
    tree = read_yaml(Path(value), wanted=WANTED)
    return tree["search"] if isinstance(tree, dict) and set(tree) == {"search"} else tree


SearchSection = Annotated[SearchConfig, BeforeValidator(_from_file)]
"""A ``search`` section; a text is a file ``search.yaml`` that holds one, or a strategy without required settings."""


def missing_for(strategy: StrategyConfig, settings: SearchSettings) -> str | None:
    """Why a strategy can't search with these settings; None where it can."""
    kind = strategy.kind
    if strategy.needs_reward and settings.reward is None:
        return f"strategy {kind} scores candidates, and nobody does; set reward"
    if strategy.criticizes and settings.critic is None:
        return f"strategy {kind} revises what a critic says is wrong, and there is no critic; set critic"
    if getattr(strategy, "value_weight", 0) > 0 and settings.value_model is None:
        return f"value_weight of strategy {kind} is {strategy.value_weight:g}, and there is no value_model; set it"  # type: ignore[attr-defined]
    if strategy.judges_revisions and (same := judge_that_is_critic(settings)):
        return f"the critic and the reward are both {same}, so it would judge what was made to please it; give another reward or critic"
    return None


def _unfit_reward(strategy: StrategyConfig, settings: SearchSettings) -> str | None:
    """Why a reward can't judge what a strategy asks it about; None where it can, or where only its model tells."""
    reward = settings.reward
    if reward is None or not strategy.by_step:
        return None
    kinds = {reward.kind, *(part.kind for _, part in reward.rewards_inside())}
    if "process" not in kinds and settings.step_separator is None:
        return f"strategy {strategy.kind} searches step by step, and nothing says what ends a step; set step_separator"
    if strategy.wants_probabilities and reward.unbounded:
        return f"strategy {strategy.kind} wants scores from 0 to 1, which a reward of the kind {reward.kind} does not promise"
    return None


def judge_that_is_critic(settings: SearchSettings) -> str | None:
    """What critic and reward both are, as far as the settings tell; None where they differ."""
    critic, reward = settings.critic, settings.reward
    if reward is None:
        return None
    asked = _asked(reward)
    if isinstance(critic, FunctionCriticConfig):
        return critic.function if critic.function in asked else None
    if isinstance(critic, ModelCriticConfig):
        return critic.source if critic.source in asked else None
    return None


def asks_the_same(one: RewardBase, other: RewardBase) -> bool:
    """Whether two rewards are equal, or ask a model or a function in common."""
    return one == other or bool(_asked(one) & _asked(other))


def _asked(reward: RewardBase) -> set[str]:
    """Sources of models and names of functions."""
    inside = [reward, *(part for _, part in reward.rewards_inside())]
    functions = {each.function for each in inside if isinstance(each, FunctionRewardConfig)}
    return functions | {source for each in inside for _, source in each.models_asked()}


def why_no_search(search: SearchConfig, sampling: SamplingConfig, *, num_samples: int) -> str | None:
    """Why a search makes no sense with what surrounds it; None where it does.

    Args:
        search: The section.
        sampling: How its completions are drawn.
        num_samples: Searches for each prompt.
    """
    title = search.strategy.title
    if sampling.temperature == 0 and not search.strategy.single_draw:
        return (
            f"search.strategy is {title}, which chooses among different completions, and at sampling.temperature 0 all are the same; give "
            "a number above 0"
        )
    if search.strategy.kind == "greedy" and num_samples > 1:
        return (
            f"search.strategy is greedy, and {num_samples} greedy completions of a prompt are all the same; ask for one"
        )
    return None


def strategies_of(stage: BaseConfig) -> list[StrategyConfig]:
    """Every strategy of a stage: those that it compares, and that of its ``search`` section."""
    values = [getattr(stage, key) for key in type(stage).model_fields]
    items = [item for value in values for item in (value if isinstance(value, list) else [value])]
    strategies = [item.strategy if isinstance(item, SearchConfig) else item for item in items]
    return [item for item in strategies if isinstance(item, StrategyConfig)]
