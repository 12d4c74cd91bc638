"""SPPO: how the method is declared."""

from __future__ import annotations

from rlhf.config.formulas import PairFormula
from rlhf.config.methods.method import Method
from rlhf.config.methods.preference_family import PAIR_SOURCES, PAIR_TERMS

METHOD = Method(
    title="SPPO",
    about="Self-play: each log-ratio is drawn to what its win rate is worth. For rounds of fresh pairs.",
    family="preference",
    kind="dpo",
    settings={"loss": "sppo"},
    options=("loss", *PAIR_TERMS),
    computed_by="losses.anchored:sppo_loss",
    pair_losses={"sppo": PairFormula(function="losses.anchored:sppo_loss")},
    paper="Wu et al.",
    year=2024,
    arxiv="2405.00675",
    other_names={"sppo_hard": {}},
    shared_sources=PAIR_SOURCES,
)
