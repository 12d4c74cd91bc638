"""What methods that learn from pairs have in common."""

from __future__ import annotations

from collections.abc import Mapping

from rlhf.config.methods.rates import Rates, TypicalRates

PAIR_TERMS = ("beta", "sft_coef")
"""What all losses on the margin against a reference have."""
PAIR_RATES = TypicalRates(small=Rates(2e-4, 3e-6, 3e-3), medium=5e-6, large=5e-7)
PAIR_SOURCES: Mapping[str, str] = {
    "beta=0.1": "TRL 1.16 (`DPOConfig`, for all its losses)",
    "loss=sigmoid": "DPO, eq. 7, arXiv:2305.18290",
    "sft_coef=0.0": "ours: the method's own loss, and nothing that nobody asked for",
}
SMOOTHING = {"label_smoothing": "label_smoothing"}
"""``arguments`` of a loss that takes it."""
