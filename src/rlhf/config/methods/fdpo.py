"""f-DPO: how the method is declared."""

from __future__ import annotations

from rlhf.config.methods.method import Method
from rlhf.config.methods.preference_family import PAIR_SOURCES, PAIR_TERMS

METHOD = Method(
    title="f-DPO",
    about="DPO under another divergence than reverse KL (Jensen-Shannon here): more or less variety.",
    family="preference",
    kind="dpo",
    settings={"divergence": "js"},
    options=("divergence", "divergence_alpha", "loss", *PAIR_TERMS),
    computed_by="losses.divergences:divergence_scores",
    paper="Wang et al.",
    year=2023,
    arxiv="2309.16240",
    sources={
        "divergence=js": "ours: one of the paper's, arXiv:2309.16240, as an example",
        "divergence_alpha=null": "ours: only `alpha` has one",
    },
    shared_sources=PAIR_SOURCES,
)
