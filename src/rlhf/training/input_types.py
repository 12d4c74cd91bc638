"""What a trainer is given is what it takes, or the error says how to make it: a folder's name is not a model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlhf.config.base import BaseConfig
from rlhf.errors import ConfigError, DataError, kind_of, with_article
from rlhf.training.inputs import INPUTS, OfflineInputs, RLInputs


def check_inputs(
    config: object, kind: type[BaseConfig], /, *, called: Mapping[str, str] | None = None, **inputs: object
) -> None:
    """Refuse a value of another type by the name of its parameter.

    Args:
        config: Settings.
        kind: Class of the settings.
        called: Keys of ``INPUTS`` to names of parameters, where these differ.
        inputs: Values by the keys of ``INPUTS``.

    Raises:
        ConfigError: Naming the parameter, what was given and how to make what is wanted.
    """
    if not isinstance(config, kind):
        raise ConfigError(
            f"config is {kind_of(config)}; expected {with_article(kind.__name__)}, such as {kind.__name__}(learning_rate=1e-5)."
        )
    for name, value in inputs.items():
        wanted = INPUTS[name]
        if isinstance(value, type) or not all(hasattr(value, part) for part in wanted.parts):
            parameter = (called or {}).get(name, name)
            raise ConfigError(f"{parameter} is {kind_of(value)}; expected {wanted.expected}.")


def check_offline_inputs(inputs: OfflineInputs[Any, Any], kind: type[BaseConfig], *, model: str) -> None:
    """What every trainer is given that learns from files.

    Args:
        inputs: What was given.
        kind: Class of the settings.
        model: Key of ``INPUTS`` for the model.

    Raises:
        ConfigError: See ``check_inputs``.
    """
    given = {} if inputs.reference is None else {"reference": inputs.reference}
    check_inputs(inputs.config, kind, called={model: "model"}, **{model: inputs.model}, **given)
    for name in ("train_data", "eval_data"):
        _check_rows(getattr(inputs, name), name)


def _check_rows(rows: Any, name: str) -> None:
    """Refuse what was not tokenized: a file's name, or plain rows."""
    if rows is None:
        return
    expected = "a data set such as SFTDataset(rows, policy.tokenizer), whose rows are tokenized"
    first = rows[0] if isinstance(rows, (list, tuple)) and rows else None
    if isinstance(rows, (str, Path, Mapping)):
        raise ConfigError(f"{name} is {kind_of(rows)}; expected {expected}.")
    if isinstance(first, (str, Mapping)):
        raise ConfigError(f"{name}[0] is {kind_of(first)}; expected {expected}.")


def check_rl_inputs(inputs: RLInputs[Any], kind: type[BaseConfig]) -> None:
    """What every trainer is given that learns from its own completions.

    Args:
        inputs: What was given.
        kind: Class of the settings.

    Raises:
        ConfigError: See ``check_inputs``.
        DataError: There is no prompt.
    """
    optional = {name: getattr(inputs, name) for name in ("scorer", "value_model", "teacher")}
    given = {name: value for name, value in optional.items() if value is not None}
    check_inputs(inputs.config, kind, policy=inputs.policy, reference=inputs.reference, **given)
    prompts: Any = inputs.prompts
    if isinstance(prompts, (str, Path)):
        raise ConfigError(
            f"prompts is {kind_of(prompts)}; expected a data set such as GRPODataset(rows, policy.tokenizer), whose rows are tokenized."
        )
    if not prompts:
        raise DataError("There is no prompt to ask; run `rlhf data check FILE` on the prompts to see why.")
    if not hasattr(prompts[0], "ids"):
        raise ConfigError(
            f"prompts[0] is {kind_of(prompts[0])}; expected Prompt objects, such as GRPODataset(rows, tokenizer) has."
        )
