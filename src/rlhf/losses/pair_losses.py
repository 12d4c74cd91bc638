"""Every loss on pairs against a reference, by name, and what a recipe may combine with it: as the methods declare them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor

from rlhf.config.pair_losses import PAIR_FORMULAS, SEES_MARGIN_ONLY, SEES_ONE_PAIR
from rlhf.losses.formula import load_formula

PAIR_LOSSES: Mapping[str, Callable[..., Tensor]] = {
    name: load_formula(formula.function) for name, formula in PAIR_FORMULAS.items()
}
"""Losses that share ``dpo_loss``'s four tensors and ``beta``; what else one takes is in its signature, by keyword."""

MARGIN_LOSSES = frozenset(SEES_MARGIN_ONLY)
"""Those that see a pair only by its margin: the ones for which ``divergence_scores`` may stand for log-ratios."""

WHOLE_STEP_LOSSES = frozenset(PAIR_LOSSES) - frozenset(SEES_ONE_PAIR)
"""Those that compare pairs with each other and need all of a step at once; the others take any micro-batch."""
