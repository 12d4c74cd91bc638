"""BCO on pairs: how the method is declared."""

from __future__ import annotations

from rlhf.config.formulas import PairFormula
from rlhf.config.methods.method import Method
from rlhf.config.methods.preference_family import PAIR_SOURCES, PAIR_TERMS

METHOD = Method(
    title="BCO on pairs",
    about="The implicit reward is the logit of 'this one was chosen', for each side by itself.",
    family="preference",
    kind="dpo",
    settings={"loss": "bco"},
    options=("loss", *PAIR_TERMS),
    computed_by="losses.anchored:bco_pair_loss",
    pair_losses={"bco": PairFormula(function="losses.anchored:bco_pair_loss")},
    paper="Jung et al.",
    year=2024,
    arxiv="2404.04656",
    other_names={"bco_pair": {}},
    sources={
        "beta=0.1": "TRL 1.16 (`DPOConfig`, for all its losses); the paper has 0.01, appendix C",
    },
    shared_sources=PAIR_SOURCES,
)
