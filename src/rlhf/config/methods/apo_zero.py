"""APO-zero: how the method is declared."""

from __future__ import annotations

from rlhf.config.formulas import PairFormula
from rlhf.config.methods.method import Method
from rlhf.config.methods.preference_family import PAIR_SOURCES, PAIR_TERMS

METHOD = Method(
    title="APO-zero",
    about="Chosen up and rejected down, each against the reference: for data better than what the policy writes.",
    family="preference",
    kind="dpo",
    settings={"loss": "apo_zero"},
    options=("loss", *PAIR_TERMS),
    computed_by="losses.anchored:apo_zero_loss",
    pair_losses={"apo_zero": PairFormula(function="losses.anchored:apo_zero_loss")},
    paper="D'Oosterlinck et al.",
    year=2024,
    arxiv="2408.06266",
    sources={
        "beta=0.1": "APO, section 5.2 as published (TACL 2025), arXiv:2408.06266",
    },
    shared_sources=PAIR_SOURCES,
)
