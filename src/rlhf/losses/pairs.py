"""Every loss on pairs against a reference, by name, and what a recipe may combine with it."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from rlhf.losses.anchored import apo_down_loss, apo_zero_loss, bco_pair_loss, nca_loss, sppo_loss
from rlhf.losses.preference import (
    discopop_loss,
    dpo_hinge_loss,
    dpo_loss,
    exo_loss,
    ipo_loss,
    robust_dpo_loss,
)
from rlhf.losses.transport import aot_loss, aot_unpaired_loss

PAIR_LOSSES: dict[str, Callable[..., Tensor]] = {
    "sigmoid": dpo_loss,
    "hinge": dpo_hinge_loss,
    "ipo": ipo_loss,
    "robust": robust_dpo_loss,
    "exo": exo_loss,
    "discopop": discopop_loss,
    "nca": nca_loss,
    "bco": bco_pair_loss,
    "sppo": sppo_loss,
    "apo_zero": apo_zero_loss,
    "apo_down": apo_down_loss,
    "aot": aot_loss,
    "aot_unpaired": aot_unpaired_loss,
}
"""Losses that share ``dpo_loss``'s four tensors and ``beta``; what else one takes is in its signature, by keyword."""

MARGIN_LOSSES = frozenset({"sigmoid", "hinge", "ipo", "robust", "exo", "discopop"})
"""Those that see a pair only by its margin: the ones for which ``divergence_scores`` may stand for log-ratios."""

WHOLE_STEP_LOSSES = frozenset({"aot", "aot_unpaired"})
"""Those that compare pairs with each other and need all of a step at once; the others take any micro-batch."""
