"""EXO: how the method is declared."""

from __future__ import annotations

from rlhf.config.formulas import PairFormula
from rlhf.config.methods.method import Method
from rlhf.config.methods.preference_family import PAIR_SOURCES, PAIR_TERMS, SMOOTHING

METHOD = Method(
    title="EXO",
    about="Reverse KL to the annotator's choice where DPO has forward KL: it seeks the mode.",
    family="preference",
    kind="dpo",
    settings={"loss": "exo", "label_smoothing": 0.1},
    options=("loss", "label_smoothing", *PAIR_TERMS),
    computed_by="losses.preference:exo_loss",
    pair_losses={
        "exo": PairFormula(
            function="losses.preference:exo_loss",
            arguments=SMOOTHING,
            needs={"label_smoothing": "asks for an infinite margin without label_smoothing; give one, such as 0.001"},
            sees_margin_only=True,
        )
    },
    paper="Ji et al.",
    year=2024,
    arxiv="2402.00856",
    other_names={"exo_pair": {}},
    sources={
        "beta=0.1": "EXO, appendix B (beta_r), arXiv:2402.00856",
        "label_smoothing=0.1": "ours: the share of wrong labels in the embedded world; the authors have 0.001",
    },
    shared_sources=PAIR_SOURCES,
)
