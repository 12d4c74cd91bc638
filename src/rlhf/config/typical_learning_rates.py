"""Learning rates that work for a kind of training on a model of a size, to tell a typing error from a choice."""

from __future__ import annotations

from rlhf.config.methods import METHODS
from rlhf.config.methods.rates import Rates, TypicalRates

PAGE = "docs/learning-rates.md"


SMALL, MEDIUM = 10_000_000, 1_000_000_000
"""Parameters below which a model is small, and below which it is of medium size. Rates of small ones were measured here, on models of
0.26 to 1.1 million."""


POLICY_RATES = TypicalRates(small=Rates(1e-4, 1e-5, 1e-3), medium=1e-5, large=1e-6)
"""Of learning from rewards, and of every method that declares no ``rates`` of its own."""
LORA_FACTOR = 10
"""Adapters take about ten times the rate."""


def usual_rates(kind: str, num_parameters: int, *, is_lora: bool) -> Rates:
    """What is usual for a stage's kind on a model of a size.

    Args:
        kind: The stage's.
        num_parameters: Of the whole model.
        is_lora: An adapter is trained, not all weights.
    """
    method = METHODS.get(kind)
    typical = method.rates if method is not None and method.rates is not None else POLICY_RATES
    if num_parameters < SMALL:
        rates = typical.small
    else:
        rates = Rates.around(typical.medium if num_parameters < MEDIUM else typical.large)
    return rates.times(LORA_FACTOR) if is_lora else rates


def far_from_usual(learning_rate: float, kind: str, num_parameters: int, *, is_lora: bool) -> tuple[float, str] | None:
    """The rate that is usual, and in words how far off this one is; None where it is not far off.

    Args:
        learning_rate: The stage's.
        kind: The stage's.
        num_parameters: Of the whole model.
        is_lora: An adapter is trained, not all weights.
    """
    rates = usual_rates(kind, num_parameters, is_lora=is_lora)
    if rates.lowest < learning_rate <= rates.highest:
        return None
    factor = learning_rate / rates.usual
    what = f"{factor:,.{0 if factor >= 10 else 1}f} times" if factor > 1 else f"1/{1 / factor:,.0f} of"
    message = (
        f"{learning_rate:g} is {what} what is usual for {method_and_size(kind, num_parameters)} (about {rates.usual:g}"
    )
    if num_parameters < SMALL and not is_lora:
        message += f"; {PAGE} has what was measured on models of 0.26M to 1.1M"
    return rates.usual, f"{message})"


def method_and_size(kind: str, num_parameters: int) -> str:
    """What a rate is usual for, in words."""
    return f"{kind} on a model of {_short(num_parameters)} parameters"


def _short(number: int) -> str:
    for size, letter in ((10**9, "B"), (10**6, "M"), (10**3, "K")):
        if number >= size:
            return f"{number / size:.3g}{letter}"
    return str(number)
