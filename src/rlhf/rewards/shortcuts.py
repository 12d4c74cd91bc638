"""Rewards by short names, for Python code without a recipe."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from transformers import PreTrainedTokenizerBase

from rlhf.models.reward import RewardModel
from rlhf.rewards.composite import Component, CompositeReward
from rlhf.rewards.factory import build_reward
from rlhf.rewards.functions import FunctionReward
from rlhf.rewards.learned import LearnedReward
from rlhf.rewards.rules import RuleBasedReward
from rlhf.rewards.service import ServiceReward
from rlhf.rewards.types import Scorer


class RewardFunctionFactory:
    """Makes rewards for one policy: ``build_reward`` with the tokenizer remembered, and a few short names."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase | None = None) -> None:
        self.tokenizer = tokenizer

    def build(self, specs: Any) -> Scorer:
        """A scorer of what a recipe's ``reward`` takes, as ``build_reward`` makes it."""
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

    def from_service(self, url: str, **options: Any) -> ServiceReward:
        """A reward server; options as of ``ServiceReward``."""
        return ServiceReward(url, **options)

    def combine(self, weighted: Mapping[Scorer, float]) -> CompositeReward:
        """A weighted sum."""
        return CompositeReward([Component(scorer=scorer, weight=weight) for scorer, weight in weighted.items()])
