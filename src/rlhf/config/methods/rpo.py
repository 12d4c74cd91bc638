"""RPO: how the method is declared."""

from __future__ import annotations

from rlhf.config.methods.method import Method
from rlhf.config.methods.preference_family import PAIR_SOURCES

METHOD = Method(
    title="RPO",
    about="DPO with the chosen completion's likelihood as a second term: the chosen one cannot fade.",
    family="preference",
    kind="dpo",
    settings={"sft_coef": 1.0},
    options=("sft_coef", "beta", "loss"),
    computed_by="losses.pair_tokens:chosen_nll",
    paper="Pang et al.",
    year=2024,
    arxiv="2404.19733",
    sources={
        "sft_coef=1.0": "RPO, arXiv:2404.19733: its alpha",
    },
    shared_sources=PAIR_SOURCES,
)
