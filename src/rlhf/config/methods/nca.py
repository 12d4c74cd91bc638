"""NCA: how the method is declared."""

from __future__ import annotations

from rlhf.config.formulas import PairFormula
from rlhf.config.methods.method import Method
from rlhf.config.methods.preference_family import PAIR_SOURCES, PAIR_TERMS

METHOD = Method(
    title="NCA",
    about="Noise-contrastive: also holds the chosen completion's own likelihood, which DPO may let fall.",
    family="preference",
    kind="dpo",
    settings={"loss": "nca"},
    options=("loss", *PAIR_TERMS),
    computed_by="losses.anchored:nca_loss",
    pair_losses={"nca": PairFormula(function="losses.anchored:nca_loss")},
    paper="Chen et al.",
    year=2024,
    arxiv="2402.05369",
    other_names={"nca_pair": {}},
    sources={
        "beta=0.1": "TRL 1.16 (`DPOConfig`, for all its losses); the paper has 0.01, appendix C",
    },
    shared_sources=PAIR_SOURCES,
)
