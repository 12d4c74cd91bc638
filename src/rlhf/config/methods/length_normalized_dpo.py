"""Length-normalized DPO: how the method is declared."""

from __future__ import annotations

from rlhf.config.methods.method import Method
from rlhf.config.methods.preference_family import PAIR_SOURCES, PAIR_TERMS

METHOD = Method(
    title="Length-normalized DPO",
    about="DPO on log-ratios per token: a long completion has no larger say than a short one.",
    family="preference",
    kind="dpo",
    settings={"length_normalized": True, "beta": 3.0},
    options=("length_normalized", *PAIR_TERMS),
    computed_by="losses.preference:length_normalized_dpo_loss",
    paper="Lambert et al.",
    year=2024,
    arxiv="2411.15124",
    other_names={"dpo_norm": {}},
    sources={
        "beta=3.0": "ours: with this world's 12 tokens it is 0.3 on sums; TÜLU 3 has 5",
    },
    shared_sources=PAIR_SOURCES,
)
