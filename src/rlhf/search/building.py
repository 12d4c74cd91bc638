"""A search from its settings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from rlhf.config.policy import SamplingConfig
from rlhf.config.search import AnswerConfig, OwnStrategyConfig, SearchConfig, SearchSettings, StrategyConfig
from rlhf.data.contracts import Prompt
from rlhf.errors import ConfigError
from rlhf.rewards.functions import load_function
from rlhf.rewards.steps import ProcessReward
from rlhf.rewards.types import Scorer
from rlhf.rollout.types import RolloutEngine
from rlhf.search.answer_key import AnswerOf, answer_reader
from rlhf.search.contract import Budget, Strategy
from rlhf.search.result_file import ResultFile
from rlhf.search.search_run import SearchRun, run_search


def strategy_function(config: StrategyConfig) -> Strategy:
    """The function of a kind, or a user's."""
    if isinstance(config, OwnStrategyConfig):
        return load_function(config.function)
    module, _, name = config.runs.partition(":")
    function: Strategy = getattr(import_module(f"rlhf.search.strategies.{module}"), name)
    return function


def arguments_of(config: StrategyConfig, common: AnswerConfig) -> dict[str, Any]:
    """Keywords of the strategy's function."""
    arguments = config.arguments()
    if "answer" in type(config).model_fields and config.needs_answer:
        arguments["answer_of"] = reader_of(config, common)
    return arguments


def reader_of(config: StrategyConfig, common: AnswerConfig) -> AnswerOf:
    """Where a strategy finds a completion's answer."""
    answer = getattr(config, "answer", None) or common
    return answer_reader(pattern=answer.pattern, where=answer.where)


def separator_of(settings: SearchSettings, scorer: Scorer | None) -> str | None:
    """What ends a step: the settings' text, else the process reward model's.

    Raises:
        ConfigError: They differ, so that the model would judge steps other than those that are searched.
    """
    own = scorer.model.step_separator if isinstance(scorer, ProcessReward) else None
    if settings.step_separator is not None and own is not None and settings.step_separator != own:
        raise ConfigError(
            f"step_separator is {settings.step_separator!r}, and the process reward model was trained on steps that end with {own!r}; "
            "leave step_separator out."
        )
    return settings.step_separator or own


def search_with(
    config: SearchConfig,
    prompts: Sequence[Prompt],
    *,
    engine: RolloutEngine,
    scorer: Scorer | None,
    sampling: SamplingConfig,
    seed: int,
    file: Path | None = None,
    weights: str | None = None,
    progress: Callable[[int], None] | None = None,
) -> SearchRun:
    """Run one.

    Args:
        config: The settings.
        prompts: See ``run_search``.
        engine: Samples.
        scorer: What ``config.reward`` was built to.
        sampling: How completions are drawn.
        seed: Same seed, same answers.
        file: Where finished prompts are kept.
        weights: What tells the policy apart in the file; by default its fingerprint.
        progress: See ``run_search``.
    """
    strategy = strategy_function(config.strategy)
    results = None
    if file is not None:
        known = {"search": config.model_dump(mode="json", exclude={"budget": {"seconds"}}), "sampling": sampling.model_dump(mode="json")}
        results = ResultFile(file, {**known, "seed": seed, "weights": weights or engine.fingerprint()})
    return run_search(
        prompts,
        strategy,
        engine=engine,
        scorer=scorer,
        arguments=arguments_of(config.strategy, config.answer),
        sampling=sampling,
        separator=separator_of(config, scorer),
        budget=Budget(**config.budget.model_dump()),
        seed=seed,
        file=results,
        progress=progress,
    )


