"""WPO: how the method is declared."""

from __future__ import annotations

from rlhf.config.methods.method import Method
from rlhf.config.methods.preference_family import PAIR_SOURCES, PAIR_TERMS

METHOD = Method(
    title="WPO",
    about="Pairs that the policy could have written itself count more: old data as if it were fresh.",
    family="preference",
    kind="dpo",
    settings={"weight_by_policy": True},
    options=("weight_by_policy", "loss", *PAIR_TERMS),
    computed_by="losses.pair_tokens:wpo_weights",
    paper="Zhou et al.",
    year=2024,
    arxiv="2406.11827",
    shared_sources=PAIR_SOURCES,
)
