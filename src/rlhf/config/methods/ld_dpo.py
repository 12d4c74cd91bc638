"""LD-DPO: how the method is declared."""

from __future__ import annotations

from rlhf.config.methods.method import Method
from rlhf.config.methods.preference_family import PAIR_SOURCES, PAIR_TERMS

METHOD = Method(
    title="LD-DPO",
    about="Tokens that only the longer completion of a pair has count for less: no reward for length.",
    family="preference",
    kind="dpo",
    settings={"length_alpha": 0.5},
    options=("length_alpha", "loss", *PAIR_TERMS),
    computed_by="losses.pair_tokens:length_desensitized_logprobs",
    paper="Liu et al.",
    year=2024,
    arxiv="2409.06411",
    sources={
        "length_alpha=0.5": "ours: half-way from DPO to pairs cut to one length",
    },
    shared_sources=PAIR_SOURCES,
)
