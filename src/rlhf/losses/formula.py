"""Formulas that settings name by text."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module

from torch import Tensor


@cache
def load_formula(text: str) -> Callable[..., Tensor]:
    """The function that a formula names.

    Args:
        text: ``module:function`` below ``rlhf``.
    """
    module, _, function = text.partition(":")
    formula: Callable[..., Tensor] = getattr(import_module(f"rlhf.{module}"), function)
    return formula
