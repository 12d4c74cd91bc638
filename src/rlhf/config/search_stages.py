"""Strategies of search compared on problems whose answers can be judged: how the stage is declared."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from rlhf.config.base import InputPath
from rlhf.config.engines import EngineSpec, LocalEngineConfig
from rlhf.config.model import ModelConfig
from rlhf.config.policy import SamplingConfig
from rlhf.config.rewards import JudgeSpec
from rlhf.config.search import SearchSettings, missing_for
from rlhf.config.search_strategies import StrategySpec
from rlhf.config.stage_inputs import FilteredPrompts, RowsInput, listed


class SearchCompareStage(SearchSettings, FilteredPrompts):
    """Let strategies of search answer the same held-out problems, and say which to take for how many tokens."""

    kind: Literal["search_compare"]
    runs = "search_compare:run_search_compare"
    samples = True
    evaluates = True
    policy: ModelConfig
    """Who samples."""
    prompts: InputPath | list[InputPath]
    """Held-out problems."""
    judge: JudgeSpec
    """Who says whether an answer solves its problem; no strategy sees it."""
    solved_at: float = 1.0
    """The judge's score from which on a problem counts as solved."""
    tolerance: float = Field(0.03, ge=0, lt=1)
    """Share of solved problems that fewer tokens are worth: the advice is the cheapest strategy that surely solves at most so much less
    than the most accurate."""
    strategies: list[StrategySpec] = Field(min_length=1)
    """What is compared: kinds, their settings, or functions of yours."""
    sampling: SamplingConfig = SamplingConfig()
    """How completions are drawn."""
    engine: EngineSpec = LocalEngineConfig()
    """Who draws them: `local` or `vllm`, as in stages that train."""
    max_prompt_length: int | None = Field(None, ge=1)
    """Longest prompt in tokens; longer ones are left out and counted."""
    limit: int | None = Field(None, ge=1)
    """Use only this many problems, the first of the file."""
    seed: int | None = Field(None, ge=0)
    """The recipe's by default."""

    @model_validator(mode="after")
    def _can_be_compared(self) -> Self:
        titles = [strategy.title for strategy in self.strategies]
        if twice := sorted({title for title in titles if titles.count(title) > 1}):
            raise ValueError(f"two strategies are called {twice[0]!r}; give one of them another `name`")
        files: dict[str, str] = {}
        for strategy in self.strategies:
            other = files.setdefault(strategy.file_name, strategy.title)
            if not strategy.file_name or other != strategy.title:
                clash = f"as {other!r} is" if strategy.file_name else "which names no file"
                raise ValueError(
                    f"the strategy {strategy.title!r} would be written to {strategy.file_name!r}, {clash}; give it another `name`, with "
                    "letters (a to z) or digits of its own"
                )
            if complaint := missing_for(strategy, self):
                raise ValueError(f"{strategy.title!r}: {complaint}")
        if self.budget.seconds is not None:
            raise ValueError("budget.seconds would leave out other problems for each strategy; limit policy_tokens")
        if complaint := self.engine.complaint(self.sampling):
            raise ValueError(complaint)
        return self

    def rows_read(self) -> list[RowsInput]:
        """Problems."""
        return [RowsInput("prompts", listed(self.prompts), "grpo", limit=self.limit)]

    def files_written(self) -> dict[str, str | None]:
        """What was measured, as numbers and as a picture."""
        return {"evaluation.json": None, "search.png": None}
