"""Formulas that settings name by text."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from typing import Any

from torch import Tensor

from rlhf.errors import ConfigError


@cache
def load_formula(text: str) -> Callable[..., Tensor]:
    """The function that a formula names.

    Args:
        text: ``module:function`` below ``rlhf``.

    Raises:
        ConfigError: There is no such module or function.
    """
    module, _, function = text.partition(":")
    try:
        formula: Callable[..., Tensor] = getattr(import_module(f"rlhf.{module}"), function)
    except (ModuleNotFoundError, AttributeError) as err:
        raise ConfigError(
            f"The formula {text!r} of a loss can't be loaded: {err}. It is module:function below rlhf, such as "
            "'losses.preference:dpo_loss'."
        ) from err
    return formula


def asked_of(function: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the values that the function has a parameter for, by name."""
    names = inspect.signature(function).parameters
    return {name: value for name, value in given.items() if name in names}
