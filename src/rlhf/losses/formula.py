"""Formulas that settings name by text."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module

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
