"""KTO: how the method is declared."""

from __future__ import annotations

from rlhf.config.methods.method import Method
from rlhf.config.methods.preference_family import PAIR_RATES

METHOD = Method(
    title="KTO",
    about="No pairs: single completions, each good or bad, valued as people value gains and losses.",
    family="preference",
    kind="kto",
    options=("beta", "desirable_weight", "undesirable_weight", "reference_point", "reference_point_decay"),
    computed_by="losses.unpaired:kto_loss",
    paper="Ethayarajh et al.",
    year=2024,
    arxiv="2402.01306",
    rates=PAIR_RATES,
    sources={
        "beta=0.1": "TRL 1.16 (`KTOConfig`)",
        "desirable_weight=1.0": "TRL 1.16 (`KTOConfig`)",
        "reference_point=step": "KTO, section 4, arXiv:2402.01306",
        "reference_point_decay=0.9": "ours: about the last ten steps count",
        "undesirable_weight=1.0": "TRL 1.16 (`KTOConfig`)",
    },
)
