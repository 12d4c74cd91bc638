"""The choices of ``loss`` of ``kind: dpo``, which the methods of that kind declare."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rlhf.config.base import BaseConfig
from rlhf.config.formulas import PairFormula
from rlhf.config.methods import methods_of_kind

PAIR_FORMULAS: Mapping[str, PairFormula] = {
    name: formula for method in methods_of_kind("dpo").values() for name, formula in method.pair_losses.items()
}
"""By name, in the order of the methods."""
if TYPE_CHECKING:

    class PairLossSettings(BaseConfig):
        """Settings of single losses."""
else:
    declared = [method.pair_settings for method in methods_of_kind("dpo").values() if method.pair_settings is not None]
    about = "Settings of single losses, which their methods declare (``Method.pair_settings``)."
    PairLossSettings = type("PairLossSettings", (*declared, BaseConfig), {"__module__": __name__, "__doc__": about})
SEES_MARGIN_ONLY = tuple(name for name, formula in PAIR_FORMULAS.items() if formula.sees_margin_only)
"""Those that see a pair only by its margin."""
SEES_ONE_PAIR = tuple(name for name, formula in PAIR_FORMULAS.items() if not formula.compares_pairs)
"""Those that need no pair but their own."""


def owners_of(setting: str) -> tuple[str, ...]:
    """The losses that a setting belongs to."""
    return tuple(name for name, formula in PAIR_FORMULAS.items() if setting in formula.settings)


OF_SOME_LOSSES: Mapping[str, tuple[str, ...]] = {
    **{name: owners_of(name) for formula in PAIR_FORMULAS.values() for name in formula.settings},
    "divergence": SEES_MARGIN_ONLY,
    "reference_free": SEES_MARGIN_ONLY,
    "weight_by_policy": SEES_ONE_PAIR,
}
"""Settings that belong to some losses -> those losses."""
