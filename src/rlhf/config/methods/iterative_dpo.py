"""Iterative DPO: how the method is declared."""

from __future__ import annotations

from rlhf.config.methods.method import Method
from rlhf.config.methods.preference_family import PAIR_SOURCES, PAIR_TERMS

METHOD = Method(
    title="Iterative DPO",
    about="Several rounds: fresh pairs from the newest policy, each judged, each held to the first policy.",
    family="own",
    kind="dpo",
    options=("reference", *PAIR_TERMS, "loss"),
    computed_by="losses.preference:dpo_loss",
    paper="Xiong et al.",
    year=2023,
    arxiv="2312.11456",
    sources={
        "beta=0.1": "DPO's: DPO, appendix B, arXiv:2305.18290",
        "reference=null": "ours: right for a single round; the next ones name the first policy",
    },
    shared_sources=PAIR_SOURCES,
)
