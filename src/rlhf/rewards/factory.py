"""From a recipe's settings to a scorer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import TypeAdapter, ValidationError
from transformers import PreTrainedTokenizerBase

from rlhf.config.rewards import (
    FunctionRewardConfig,
    LearnedRewardConfig,
    LexiconRewardConfig,
    RewardBase,
    RewardSpec,
    RulesRewardConfig,
)
from rlhf.errors import ConfigError, look_up
from rlhf.models.reward import RewardModel
from rlhf.rewards.composite import Component, CompositeReward
from rlhf.rewards.functions import FunctionReward
from rlhf.rewards.learned import LearnedReward
from rlhf.rewards.lexicon import LexiconReward
from rlhf.rewards.rules import RuleBasedReward
from rlhf.rewards.types import Scorer


def build_reward(specs: Any, *, tokenizer: PreTrainedTokenizerBase | None = None) -> Scorer:
    """A scorer of one or several settings.

    Args:
        specs: A ``RewardSpec``, a text or mapping that stands for one, or a list of them. Sources of learned rewards
            are folders or hub names here: whoever knows about stages has put the folder in place of ``stage:NAME``.
        tokenizer: The policy's, so that a reward model knows whether it can take ids as they are.

    Returns:
        One judge as it is, or the weighted sum.

    Raises:
        ConfigError: The settings are wrong.
    """
    found = [
        _validated(spec) for spec in (specs if isinstance(specs, Sequence) and not isinstance(specs, str) else [specs])
    ]
    scorers = [look_up(REWARDS, spec.kind, kind="reward")(spec, tokenizer) for spec in found]
    if len(found) == 1 and found[0].weight == 1 and not found[0].normalize:
        return scorers[0]
    return CompositeReward(
        [
            Component(scorer=scorer, weight=spec.weight, normalize=spec.normalize)
            for scorer, spec in zip(scorers, found, strict=True)
        ]
    )


class RewardFunctionFactory:
    """Makes rewards for one policy: ``build_reward`` with the tokenizer remembered, and a few short names."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase | None = None) -> None:
        self.tokenizer = tokenizer

    def build(self, specs: Any) -> Scorer:
        """See ``build_reward``."""
        return build_reward(specs, tokenizer=self.tokenizer)

    def from_model(self, model: RewardModel | str, *, name: str = "learned") -> LearnedReward:
        """A reward model in memory, in a folder or on the hub."""
        model = RewardModel.from_pretrained(model) if isinstance(model, str) else model
        return LearnedReward(model, tokenizer=self.tokenizer, name=name)

    def from_function(self, function: str | Callable[..., Any], **options: Any) -> FunctionReward:
        """A Python function; options as of ``FunctionReward``."""
        return FunctionReward(function, **options)

    def from_rules(self, **settings: Any) -> RuleBasedReward:
        """Heuristics of form; settings as of ``RuleBasedReward``."""
        return RuleBasedReward(**settings)

    def combine(self, weighted: Mapping[Scorer, float]) -> CompositeReward:
        """A weighted sum."""
        return CompositeReward([Component(scorer=scorer, weight=weight) for scorer, weight in weighted.items()])


def _validated(spec: Any) -> Any:
    if isinstance(spec, RewardBase):
        return spec
    try:
        return _SPEC.validate_python(spec)
    except ValidationError as err:
        problems = "; ".join(f"{'.'.join(map(str, e['loc'][1:])) or 'kind'}: {e['msg']}" for e in err.errors())
        raise ConfigError(f"{spec!r} is not a valid reward: {problems}.") from None


def _build_learned(spec: LearnedRewardConfig, tokenizer: PreTrainedTokenizerBase | None) -> Scorer:
    if spec.source.startswith("stage:"):
        raise ConfigError(f"The reward {spec.source!r} names a stage; outside a recipe give the folder of its model.")
    return LearnedReward(RewardModel.from_pretrained(spec.source), tokenizer=tokenizer, name=spec.name or "learned")


def _build_rules(spec: RulesRewardConfig, tokenizer: PreTrainedTokenizerBase | None) -> Scorer:
    return RuleBasedReward(
        target_words=spec.target_words,
        length_weight=spec.length_weight,
        capital_weight=spec.capital_weight,
        punctuation_weight=spec.punctuation_weight,
        name=spec.name or "rules",
    )


def _build_lexicon(spec: LexiconRewardConfig, tokenizer: PreTrainedTokenizerBase | None) -> Scorer:
    return LexiconReward(spec.path, scale=spec.scale, negation=spec.negation, name=spec.name or "lexicon")


def _build_function(spec: FunctionRewardConfig, tokenizer: PreTrainedTokenizerBase | None) -> Scorer:
    return FunctionReward(
        spec.function,
        name=spec.name,
        arguments=spec.arguments,
        timeout_seconds=spec.timeout_seconds,
        in_process=spec.in_process,
    )


_SPEC: TypeAdapter[Any] = TypeAdapter(RewardSpec)

REWARDS: dict[str, Callable[[Any, PreTrainedTokenizerBase | None], Scorer]] = {
    "learned": _build_learned,
    "rules": _build_rules,
    "lexicon": _build_lexicon,
    "function": _build_function,
}
"""Kind in a recipe -> what builds it."""
