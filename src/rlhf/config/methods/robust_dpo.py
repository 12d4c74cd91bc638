"""Robust DPO: how the method is declared."""

from __future__ import annotations

from rlhf.config.formulas import PairFormula
from rlhf.config.methods.method import Method
from rlhf.config.methods.preference_family import PAIR_SOURCES, PAIR_TERMS, SMOOTHING

METHOD = Method(
    title="Robust DPO",
    about="DPO with the effect of wrong labels taken out: on average the loss of the true ones.",
    family="preference",
    kind="dpo",
    settings={"loss": "robust", "label_smoothing": 0.1},
    options=("loss", "label_smoothing", *PAIR_TERMS),
    computed_by="losses.preference:robust_dpo_loss",
    pair_losses={
        "robust": PairFormula(function="losses.preference:robust_dpo_loss", arguments=SMOOTHING, sees_margin_only=True)
    },
    paper="Chowdhury et al.",
    year=2024,
    arxiv="2403.00409",
    sources={
        "label_smoothing=0.1": "robust DPO, section 6, arXiv:2403.00409",
    },
    shared_sources=PAIR_SOURCES,
)
