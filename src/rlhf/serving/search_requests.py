"""The field ``search`` of a request for a chat completion: how the answer is looked for, in place of being sampled."""

from __future__ import annotations

from pydantic import Field, field_validator

from rlhf.config.base import BaseConfig
from rlhf.config.search import BudgetConfig
from rlhf.config.search_strategies import AnswerConfig, OwnStrategyConfig, StrategyConfig, StrategySpec


class SearchBody(BaseConfig):
    """The words are those of a recipe's ``search`` section; the scorer is a reward model of this server."""

    strategy: StrategySpec
    """A kind, or its settings."""
    scorer: str | None = None
    """Name of a served reward model; for strategies that score."""
    step_separator: str | None = Field(None, min_length=1)
    """Text that ends a step; by default that of a process reward model."""
    answer: AnswerConfig = AnswerConfig()
    """Where the answer stands, for strategies that compare answers."""
    budget: BudgetConfig = BudgetConfig()
    """Limits, within those of the server."""

    @field_validator("strategy")
    @classmethod
    def _is_ours(cls, strategy: StrategyConfig) -> StrategyConfig:
        if isinstance(strategy, OwnStrategyConfig):
            raise ValueError("a server runs no functions of its clients")
        return strategy
