"""Builds a scorer from a recipe's settings.

A scorer's module is loaded when one of its kind is built: a settings class names its builder by text (``RewardBase.builds``).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from inspect import isfunction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from rlhf.config.named_table import NamedTable
from rlhf.config.reward_base import RewardBase
from rlhf.config.rewards import REWARD_KINDS, RewardSpec
from rlhf.errors import ConfigError, check_type, look_up
from rlhf.rewards.composite import Component, CompositeReward
from rlhf.rewards.in_memory import name_of, needs_this_process, own_name, settings_of
from rlhf.rewards.types import OnError, RewardContext, Scorer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

RewardFunction = Callable[..., Any]
"""Of the standard signature, see ``rlhf.rewards``; or a class of scorers."""
BuildsElsewhere = Callable[[Sequence[RewardBase], RewardContext], Sequence[Scorer]]
"""Makes a scorer of each settings, whose weight is left to others."""


class RewardTable(NamedTable["str | RewardFunction"]):
    """Rewards by name: the kinds of a recipe, and functions registered in this process."""

    def register(self, name: str, reward: str | RewardFunction) -> None:
        """Give a reward a name in this process; ``build`` and ``build_reward`` know it then, and recipes don't.

        Args:
            name: Lower-case letters, digits and underscores.
            reward: A function ``reward(prompts, completions, **columns) -> list[float]``, its name as
                ``package.module:function``, or a class whose objects are scorers. A function at the top level of a module is
                called in a process of its own, any other in place and without a timeout.

        Raises:
            ConfigError: The name is the library's or malformed, or this is nothing to call.
        """
        if not isinstance(reward, str) and not callable(reward):
            raise ConfigError(
                f"The reward {name!r} is a {type(reward).__name__}; expected a function, its name or a class."
            )
        self.add(name, reward)

    def build(
        self,
        name: str,
        *,
        tokenizer: PreTrainedTokenizerBase | None = None,
        on_error: OnError = "raise",
        **settings: Any,
    ) -> Scorer:
        """A scorer by name.

        Args:
            name: A kind of reward of a recipe, or a registered name.
            tokenizer: The policy's, so that a reward model knows whether it can take ids as they are.
            on_error: As of ``build_reward``.
            settings: Keys of the kind in a recipe, where a function may stand for its name; ``weight`` and ``normalize`` of a
                registered one too, whose other settings are given to each call of the function, or to the class.

        Raises:
            UnknownNameError: No reward has that name.
            ConfigError: The settings are wrong.
        """
        reward = self[name]
        if name not in self.registered:
            named = {key: name_of(value) if isfunction(value) else value for key, value in settings.items()}
            settings = settings_of(named, settings.get("function"))
            return build_reward({"kind": name, **settings}, tokenizer=tokenizer, on_error=on_error)
        weight, normalize = settings.pop("weight", 1.0), settings.pop("normalize", False)
        scorer = _registered(name, reward, settings, on_error)
        if weight == 1 and not normalize:
            return scorer
        return CompositeReward([Component(scorer=scorer, weight=weight, normalize=normalize)], on_error=on_error)


REWARDS = RewardTable("reward", {kind.kind_name(): kind.builds for kind in REWARD_KINDS})
"""Kind in a recipe -> ``module:function`` of what builds it; a registered name -> the function or class."""


def build_reward(
    specs: Any,
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    on_error: OnError = "raise",
    folder: Path | None = None,
    pool: BuildsElsewhere | None = None,
) -> Scorer:
    """A scorer of one or several settings.

    Args:
        specs: A ``RewardSpec``, a text or mapping that means one, a registered name, or a list of the former. Sources of learned rewards
            are folders or hub names here: anyone who knows about stages has put the folder in place of ``stage:NAME``.
        tokenizer: The policy's, so that a reward model knows whether it can take ids as they are.
        on_error: ``report`` puts samples that could not be judged into the result's ``errors`` instead of raising; what
            keeps a judge from working at all is raised even then.
        folder: Of the stage, where a reward may keep what a later attempt should find; None outside of a run.
        pool: Builds, in actors, what takes time (``RewardBase.in_actors``), such as ``rlhf.rewards.reward_pool.pooled_rewards`` of a
            cluster; None to compute everything in this process.

    Returns:
        One judge as it is, or the weighted sum.

    Raises:
        ConfigError: The settings are wrong.
    """
    if isinstance(specs, str) and specs in REWARDS.registered:
        return REWARDS.build(specs, tokenizer=tokenizer, on_error=on_error)
    configs = [
        _validated(spec) for spec in (specs if isinstance(specs, Sequence) and not isinstance(specs, str) else [specs])
    ]
    context = RewardContext(tokenizer, on_error, folder)
    scorers = [_debiased(scorer, spec) for scorer, spec in zip(_built(configs, context, pool), configs, strict=True)]
    if len(configs) == 1 and configs[0].weight == 1 and not configs[0].normalize:
        return scorers[0]
    return CompositeReward(
        [
            Component(scorer=scorer, weight=spec.weight, normalize=spec.normalize)
            for scorer, spec in zip(scorers, configs, strict=True)
        ],
        on_error=on_error,
    )


def _built(configs: Sequence[Any], context: RewardContext, pool: BuildsElsewhere | None) -> list[Scorer]:
    """A scorer of each, without weight: in actors where there is a pool for it, else in this process."""
    apart = [spec for spec in configs if pool is not None and spec.in_actors]
    pooled = iter(pool(apart, context) if pool is not None and apart else ())
    return [next(pooled) if spec in apart else _builder(spec)(spec, context) for spec in configs]


def as_scorer(reward: Any, *, tokenizer: PreTrainedTokenizerBase | None = None) -> Scorer:
    """A scorer of whatever means one.

    Args:
        reward: A scorer, a class of scorers, a function of the standard signature (see ``rlhf.rewards``), what a recipe's ``reward``
            takes, or a list of any of these, which is their sum. A function at the top level of an importable module is called in a
            process of its own, any other in place and without a timeout.
        tokenizer: As of ``build_reward``.

    Raises:
        ConfigError: It is nothing of that kind.
    """
    if isinstance(reward, Scorer) and not isinstance(reward, type):
        return reward
    if isinstance(reward, list | tuple) and any(callable(item) or isinstance(item, Scorer) for item in reward):
        return CompositeReward([Component(scorer=as_scorer(item, tokenizer=tokenizer)) for item in reward])
    if callable(reward):
        return _registered(own_name(reward), reward, {}, "raise")
    check_type(
        reward,
        (str, list, tuple, Mapping, RewardBase),
        name="reward",
        expected="a scorer such as LearnedReward(folder), a function, or what a recipe's reward takes",
    )
    return build_reward(reward, tokenizer=tokenizer)


def _registered(name: str, reward: str | RewardFunction, settings: Mapping[str, Any], on_error: OnError) -> Scorer:
    from rlhf.rewards.functions import FunctionReward

    if isinstance(reward, type):
        try:
            scorer = reward(**settings)
        except TypeError as err:
            raise ConfigError(f"The reward {name!r} does not take these settings: {err}.") from err
        if not isinstance(scorer, Scorer):
            raise ConfigError(f"The reward {name!r} made a {type(scorer).__name__}, which has no `name` and `score`.")
        return scorer
    in_process = not isinstance(reward, str) and needs_this_process(reward)
    return FunctionReward(reward, name=name, arguments=settings, in_process=in_process, on_error=on_error)


def _debiased(scorer: Scorer, spec: RewardBase) -> Scorer:
    if not spec.length_debias:
        return scorer
    from rlhf.rewards.length_debias import LengthDebiasedReward  # here: few rewards ask for it

    return LengthDebiasedReward(scorer)


def _builder(spec: RewardBase) -> Callable[[Any, RewardContext], Scorer]:
    module, _, name = spec.builds.partition(":")
    builder: Callable[[Any, RewardContext], Scorer] = getattr(importlib.import_module(module), name)
    return builder


def _validated(spec: Any) -> Any:
    if isinstance(spec, RewardBase):
        return spec
    try:
        return _SPEC.validate_python(spec)
    except ValidationError as err:
        if isinstance(spec, Mapping) and "headers" not in spec:
            kinds = {kind.kind_name(): kind for kind in REWARD_KINDS}
            if isinstance(name := spec.get("kind"), str):
                look_up(kinds, name, kind="kind of reward").of(
                    spec, source="The reward"
                )  # its errors are those of recipes
        problems = "; ".join(f"{'.'.join(map(str, e['loc'][1:])) or 'kind'}: {_said(e['msg'])}" for e in err.errors())
        shown = {**spec, "headers": "..."} if isinstance(spec, Mapping) and "headers" in spec else spec
        raise ConfigError(f"{shown!r} is not a valid reward: {problems}.") from None


def _said(message: str) -> str:
    return message.removeprefix("Value error, ").removesuffix(".")


_SPEC: TypeAdapter[Any] = TypeAdapter(RewardSpec)
