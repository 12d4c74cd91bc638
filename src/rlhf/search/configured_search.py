"""A search from its settings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from rlhf.config.policy import SamplingConfig
from rlhf.config.search import SearchSettings
from rlhf.config.search_strategies import AnswerConfig, OwnStrategyConfig, StrategyConfig
from rlhf.data.contracts import Prompt
from rlhf.errors import ConfigError
from rlhf.rewards.factory import build_reward
from rlhf.rewards.functions import load_function
from rlhf.rewards.steps import ProcessReward
from rlhf.rewards.types import Notify, Scorer, listen
from rlhf.rollout.types import RolloutEngine, SamplablePolicy
from rlhf.search.answer_key import AnswerOf, answer_reader
from rlhf.search.contract import Budget, Strategy
from rlhf.search.critics import check_other_than_critic
from rlhf.search.search_helpers import SearchHelpers, build_helpers
from rlhf.search.search_run import SearchRun, run_search


def strategy_function(config: StrategyConfig) -> Strategy:
    """The function of a kind, or a user's."""
    if isinstance(config, OwnStrategyConfig):
        return load_function(config.function)
    module, _, name = config.runs.partition(":")
    function: Strategy = getattr(import_module(module), name)
    return function


def arguments_of(config: StrategyConfig, common: AnswerConfig) -> dict[str, Any]:
    """Keywords of the strategy's function."""
    arguments = config.keywords()
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


def build_search(
    settings: SearchSettings,
    strategies: Sequence[StrategyConfig],
    policy: SamplablePolicy,
    engine: RolloutEngine,
    *,
    notify: Notify | None = None,
) -> tuple[Scorer | None, SearchHelpers]:
    """Who scores, and who else takes part; folders stand where settings named ``stage:`` inputs.

    Args:
        settings: What searches have in common.
        strategies: Those that are going to search.
        policy: Who is searched.
        engine: Samples from it.
        notify: Told of long waits for the scorer.

    Raises:
        ConfigError: The judge of revisions is the critic.
        ModelError: The value model can't read what the policy writes.
    """
    scorer = None
    if settings.reward is not None:
        scorer = build_reward(settings.reward, tokenizer=policy.tokenizer)
        if notify is not None:
            listen(scorer, notify)
    helpers = build_helpers(settings, policy, engine)
    if scorer is not None and helpers.critic is not None and any(each.judges_revisions for each in strategies):
        check_other_than_critic(scorer, helpers.critic)
    return scorer, helpers


def search_with(
    settings: SearchSettings,
    config: StrategyConfig,
    prompts: Sequence[Prompt],
    *,
    engine: RolloutEngine,
    scorer: Scorer | None,
    helpers: SearchHelpers | None = None,
    sampling: SamplingConfig,
    seed: int,
    file: Path | None = None,
    progress: Callable[[int], None] | None = None,
) -> SearchRun:
    """Run one strategy.

    Args:
        settings: What searches have in common.
        config: The strategy.
        prompts: See ``run_search``.
        engine: Samples.
        scorer: What ``settings.reward`` was built to.
        helpers: What ``build_helpers`` made of the settings.
        sampling: How completions are drawn.
        seed: Same seed, same answers.
        file: Where finished prompts are kept.
        progress: See ``run_search``.

    Raises:
        ConfigError: The strategy scores and there is no scorer.
    """
    if config.needs_reward and scorer is None:
        raise ConfigError(f"The strategy {config.title!r} scores candidates, and nobody does; set reward.")
    helpers = helpers or SearchHelpers()
    common = {name: getattr(settings, name) for name in SearchSettings.model_fields}
    known = SearchSettings(**common).model_dump(mode="json", exclude={"budget": {"seconds"}})
    known["strategy"] = config.model_dump(mode="json")
    return run_search(
        prompts,
        strategy_function(config),
        engine=engine,
        scorer=scorer,
        helpers=helpers,
        arguments=arguments_of(config, settings.answer),
        sampling=sampling,
        separator=separator_of(settings, scorer),
        budget=Budget(**settings.budget.model_dump()),
        seed=seed,
        file=file,
        settings=known,
        progress=progress,
    )
