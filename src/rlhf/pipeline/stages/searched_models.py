"""Models whose completions are found by a search, and what that cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rlhf.config.search import SearchConfig
from rlhf.models.policy import PolicyModel
from rlhf.rewards.types import Notify
from rlhf.rollout.types import RolloutEngine
from rlhf.search.search_engine import SearchEngine, searching_engine


class SearchedModels:
    """Builds an engine that searches for each model, and keeps the account.

    Args:
        config: The search; folders stand where it named ``stage:`` inputs.
        build: The engine that samples from a model.
        notify: Told of long waits for the scorer.
    """

    def __init__(self, config: SearchConfig, build: Callable[[PolicyModel], RolloutEngine], notify: Notify) -> None:
        self.config = config
        self.build = build
        self.notify = notify
        self._engines: list[tuple[PolicyModel, SearchEngine]] = []

    def __call__(self, policy: PolicyModel) -> SearchEngine:
        """An engine for a model."""
        engine = searching_engine(self.config, self.build(policy), policy, notify=self.notify)
        self._engines.append((policy, engine))
        return engine

    def account(self, names: Mapping[str, PolicyModel]) -> dict[str, Any]:
        """What the searches were and cost, for JSON; numbers of ``Cost`` are for each completion.

        Args:
            names: What reports call the models.
        """
        costs = {}
        for name, model in names.items():
            own = [engine for policy, engine in self._engines if policy is model and engine.num_searches]
            for engine in own:
                costs[name] = {
                    **engine.cost_per_completion(),
                    "num_completions": engine.num_searches,
                    "num_stopped": engine.num_stopped,
                }
        return {
            "strategy": self.config.strategy.title,
            "settings": self.config.strategy.model_dump(mode="json"),
            "budget": self.config.budget.model_dump(exclude_none=True),
            "costs": costs,
        }

    def figures(self) -> dict[str, float]:
        """The first model's cost of a completion, as metrics."""
        if not self._engines:
            return {}
        _, engine = self._engines[0]
        return {f"search/{name}": value for name, value in engine.cost_per_completion().items()}

    def sentence(self) -> str:
        """The first model's cost of a completion, in words."""
        return self._engines[0][1].cost_sentence() if self._engines else ""
