"""Conservative DPO: how the method is declared."""

from __future__ import annotations

from rlhf.config.methods.method import Method
from rlhf.config.methods.preference_family import PAIR_SOURCES, PAIR_TERMS

METHOD = Method(
    title="Conservative DPO",
    about="DPO for labels of which a share is the wrong way round: it stops at the margin that the noise allows.",
    family="preference",
    kind="dpo",
    settings={"label_smoothing": 0.1},
    options=("label_smoothing", *PAIR_TERMS),
    computed_by="losses.preference:dpo_loss",
    paper="Mitchell",
    year=2023,
    sources={
        "beta=0.1": "DPO's: DPO, appendix B, arXiv:2305.18290",
        "label_smoothing=0.1": "ours: the share of wrong labels in the embedded world; take that of your own",
    },
    shared_sources=PAIR_SOURCES,
)
