"""What a trainer is given is what it takes, or the error says how to make it: a folder's name is no model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rlhf.config.base import BaseConfig
from rlhf.config.policy import RLConfig
from rlhf.errors import ConfigError, DataError, kind_of


@dataclass(frozen=True, slots=True)
class Wanted:
    """An input of trainers."""

    parts: tuple[str, ...]
    """Attributes that it has; a model of one's own is as good as ours."""
    expected: str
    """How to make one."""


INPUTS: Mapping[str, Wanted] = {
    "policy": Wanted(("score", "model"), "a PolicyModel; PolicyModel.from_pretrained(folder) loads one"),
    "value_model": Wanted(("values",), "a ValueModel; ValueModel.from_policy(policy) makes one"),
    "reward_model": Wanted(("raw_scores",), "a RewardModel; RewardModel.from_policy(policy) makes one"),
    "process_reward_model": Wanted(
        ("step_scores",), "a ProcessRewardModel; ProcessRewardModel.from_policy(policy) makes one"
    ),
    "reference": Wanted(
        ("logprobs",), "a model with logprobs(batch), such as ReferenceModel(policy); ReferenceModel(folder) loads one"
    ),
    "teacher": Wanted(("score",), "a PolicyModel; PolicyModel.from_pretrained(folder) loads one"),
    "scorer": Wanted(
        ("name", "score"),
        "a scorer, such as LearnedReward(folder); RewardFunctionFactory().from_function(f) makes one of a function",
    ),
}
"""Parameter of a constructor -> what it takes; ``model`` of the judges' trainers by the kind of judge."""


def check_inputs(config: object, kind: type[BaseConfig], /, **inputs: object) -> None:
    """Refuse a value of another type by the name of its parameter.

    Args:
        config: Settings.
        kind: Class of the settings.
        inputs: Values by the keys of ``INPUTS``.

    Raises:
        ConfigError: Naming the parameter, what was given and how to make what is wanted.
    """
    if not isinstance(config, kind):
        raise ConfigError(
            f"config is {kind_of(config)}; expected a {kind.__name__}, such as {kind.__name__}(learning_rate=1e-5)."
        )
    for name, value in inputs.items():
        wanted = INPUTS[name]
        if isinstance(value, type) or not all(hasattr(value, part) for part in wanted.parts):
            parameter = "model" if name.endswith("reward_model") else name
            raise ConfigError(f"{parameter} is {kind_of(value)}; expected {wanted.expected}.")


def check_online(
    config: object, *, policy: object, reference: object, scorer: object, prompts: Sequence[object]
) -> None:
    """What every trainer is given that learns from its own completions.

    Raises:
        ConfigError: See ``check_inputs``.
        DataError: There is no prompt.
    """
    check_inputs(config, RLConfig, policy=policy, reference=reference, **({} if scorer is None else {"scorer": scorer}))
    if isinstance(prompts, str) or not prompts:
        raise DataError("There is no prompt to ask; run `rlhf data check FILE` on the prompts to see why.")
    if not hasattr(prompts[0], "ids"):
        raise ConfigError(
            f"prompts[0] is {kind_of(prompts[0])}; expected Prompt objects, such as GRPODataset(rows, tokenizer) has."
        )
