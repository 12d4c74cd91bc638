"""SLiC (hinge): how the method is declared."""

from __future__ import annotations

from rlhf.config.formulas import PairFormula
from rlhf.config.methods.method import Method
from rlhf.config.methods.preference_family import PAIR_SOURCES, PAIR_TERMS

METHOD = Method(
    title="SLiC (hinge)",
    about="A hinge on DPO's margin: a pair that is won by enough teaches nothing more.",
    family="preference",
    kind="dpo",
    settings={"loss": "hinge"},
    options=("loss", *PAIR_TERMS),
    computed_by="losses.preference:dpo_hinge_loss",
    pair_losses={"hinge": PairFormula(function="losses.preference:dpo_hinge_loss", sees_margin_only=True)},
    paper="Zhao et al.",
    year=2023,
    arxiv="2305.10425",
    other_names={"rso": {}},
    shared_sources=PAIR_SOURCES,
)
