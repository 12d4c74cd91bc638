"""Direct preference optimization: how the method is declared."""

from __future__ import annotations

from rlhf.config.formulas import PairFormula
from rlhf.config.methods.method import Method
from rlhf.config.methods.preference_family import PAIR_RATES, PAIR_SOURCES, PAIR_TERMS, SMOOTHING

METHOD = Method(
    title="Direct preference optimization",
    about="Learn from pairs what a reward model and RL would end at, in one supervised step.",
    family="preference",
    kind="dpo",
    options=(*PAIR_TERMS, "loss", "reference_free", "learning_rate"),
    computed_by="losses.preference:dpo_loss",
    pair_losses={
        "sigmoid": PairFormula(
            function="losses.preference:dpo_loss",
            arguments=SMOOTHING,
            options=("length_normalized",),
            sees_margin_only=True,
        )
    },
    paper="Rafailov et al.",
    year=2023,
    arxiv="2305.18290",
    rates=PAIR_RATES,
    sources={
        "beta=0.1": "DPO, appendix B, arXiv:2305.18290",
        "learning_rate=5e-07": "the authors' code, eric-mitchell/direct-preference-optimization (`lr`); appendix B has 1e-6",
        "reference_free=false": "DPO, eq. 7, arXiv:2305.18290",
    },
    shared_sources=PAIR_SOURCES,
)
