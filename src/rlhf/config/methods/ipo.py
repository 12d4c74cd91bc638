"""IPO: how the method is declared."""

from __future__ import annotations

from rlhf.config.formulas import PairFormula
from rlhf.config.methods.method import Method
from rlhf.config.methods.preference_family import PAIR_SOURCES

METHOD = Method(
    title="IPO",
    about="The margin is drawn to a target instead of pushed without end: no overfitting of sure pairs.",
    family="preference",
    kind="dpo",
    settings={"loss": "ipo"},
    options=("loss", "beta", "ipo_per_token", "sft_coef"),
    computed_by="losses.preference:ipo_loss",
    pair_losses={
        "ipo": PairFormula(function="losses.preference:ipo_loss", options=("ipo_per_token",), sees_margin_only=True)
    },
    paper="Azar et al.",
    year=2023,
    arxiv="2310.12036",
    sources={
        "ipo_per_token=false": "IPO, eq. 17, arXiv:2310.12036",
    },
    shared_sources=PAIR_SOURCES,
)
