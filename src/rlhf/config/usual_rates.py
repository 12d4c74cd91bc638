"""Learning rates that are usual for a kind of training on a model of a size, to tell a slip of the pen from a choice."""

from __future__ import annotations

from collections.abc import Mapping

USUAL_RATES: tuple[tuple[int, Mapping[str, float]], ...] = (
    (10_000_000, {"sft": 1e-3, "reward": 1e-3, "prm": 1e-3, "dpo": 2e-4, "rl": 5e-4}),
    (1_000_000_000, {"sft": 1e-4, "reward": 5e-5, "prm": 5e-5, "dpo": 5e-6, "rl": 1e-5}),
    (1 << 62, {"sft": 2e-5, "reward": 1e-5, "prm": 1e-5, "dpo": 5e-7, "rl": 1e-6}),
)
"""(parameters below, learning rate that works for all weights). The first row was measured on this package's own recipes; the
others are what published runs of Llama, Qwen and Mistral models use."""
RATES_LIKE = {"simpo": "dpo", "cpo": "dpo", "orpo": "dpo", "kto": "dpo"}
"""Stage kind -> the one above whose rates are usual for it too."""
LARGE_FACTOR = 100
"""So far above, a rate is more likely a slip of the pen than a choice."""
SMALL_FACTOR = 20
"""So far below, a run of the usual length learns next to nothing: a default for large models on a small one."""
LORA_FACTOR = 10
"""Adapters take about ten times the rate."""


def far_from_usual(learning_rate: float, kind: str, num_parameters: int, *, is_lora: bool) -> tuple[float, str] | None:
    """The rate that is usual, and in words how far off this one is; None where it is not far off.

    Args:
        learning_rate: The stage's.
        kind: The stage's.
        num_parameters: Of the whole model.
        is_lora: An adapter is trained, not all weights.
    """
    by_kind = next(rates for below, rates in USUAL_RATES if num_parameters < below)
    usual = by_kind.get(RATES_LIKE.get(kind, kind), by_kind["rl"]) * (LORA_FACTOR if is_lora else 1)
    factor = learning_rate / usual
    if 1 / SMALL_FACTOR < factor <= LARGE_FACTOR:
        return None
    what = f"{factor:,.0f} times" if factor > 1 else f"1/{1 / factor:,.0f} of"
    return usual, (
        f"{learning_rate:g} is {what} what is usual for {kind} on a model of {_short(num_parameters)} parameters (about {usual:g})"
    )


def _short(number: int) -> str:
    for size, letter in ((10**9, "B"), (10**6, "M"), (10**3, "K")):
        if number >= size:
            return f"{number / size:.3g}{letter}"
    return str(number)
