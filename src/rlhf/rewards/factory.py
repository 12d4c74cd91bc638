"""From a recipe's settings to a scorer.

A scorer's module is loaded when one of its kind is built: a settings class names its builder by text (``RewardBase.builds``).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from rlhf.config.rewards import REWARD_KINDS, RewardBase, RewardSpec
from rlhf.errors import ConfigError
from rlhf.rewards.composite import Component, CompositeReward
from rlhf.rewards.types import OnError, RewardContext, Scorer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

REWARDS = {kind.kind_name(): kind.builds for kind in REWARD_KINDS}
"""Kind in a recipe -> ``module:function`` of what builds it."""


def build_reward(
    specs: Any, *, tokenizer: PreTrainedTokenizerBase | None = None, on_error: OnError = "raise"
) -> Scorer:
    """A scorer of one or several settings.

    Args:
        specs: A ``RewardSpec``, a text or mapping that stands for one, or a list of them. Sources of learned rewards
            are folders or hub names here: anyone who knows about stages has put the folder in place of ``stage:NAME``.
        tokenizer: The policy's, so that a reward model knows whether it can take ids as they are.
        on_error: ``report`` puts samples that could not be judged into the result's ``errors`` instead of raising; what
            keeps a judge from working at all is raised even then.

    Returns:
        One judge as it is, or the weighted sum.

    Raises:
        ConfigError: The settings are wrong.
    """
    found = [
        _validated(spec) for spec in (specs if isinstance(specs, Sequence) and not isinstance(specs, str) else [specs])
    ]
    context = RewardContext(tokenizer, on_error)
    scorers = [_builder(spec)(spec, context) for spec in found]
    if len(found) == 1 and found[0].weight == 1 and not found[0].normalize:
        return scorers[0]
    return CompositeReward(
        [
            Component(scorer=scorer, weight=spec.weight, normalize=spec.normalize)
            for scorer, spec in zip(scorers, found, strict=True)
        ],
        on_error=on_error,
    )


def _builder(spec: RewardBase) -> Callable[[Any, RewardContext], Scorer]:
    module, _, name = spec.builds.partition(":")
    found: Callable[[Any, RewardContext], Scorer] = getattr(importlib.import_module(module), name)
    return found


def _validated(spec: Any) -> Any:
    if isinstance(spec, RewardBase):
        return spec
    try:
        return _SPEC.validate_python(spec)
    except ValidationError as err:
        problems = "; ".join(f"{'.'.join(map(str, e['loc'][1:])) or 'kind'}: {e['msg']}" for e in err.errors())
        shown = {**spec, "headers": "..."} if isinstance(spec, Mapping) and "headers" in spec else spec
        raise ConfigError(f"{shown!r} is not a valid reward: {problems}.") from None


_SPEC: TypeAdapter[Any] = TypeAdapter(RewardSpec)
