"""Reward model from rankings (Plackett-Luce): how the method is declared."""

from __future__ import annotations

from rlhf.config.methods.method import Method
from rlhf.config.methods.reward_family import REWARD_SOURCES

METHOD = Method(
    title="Reward model from rankings (Plackett-Luce)",
    about="An order of several completions is a row of choices: the best of all, the best of the rest.",
    family="reward",
    kind="reward",
    settings={"loss": "plackett_luce"},
    options=("loss", "top_ranks"),
    computed_by="losses.rankings:plackett_luce_loss",
    paper="Plackett 1975; Rafailov et al.",
    year=2023,
    arxiv="2305.18290",
    other_names={"plackett_luce": {}},
    sources={
        "top_ranks=null": "DPO, appendix A.3, arXiv:2305.18290: the whole ranking",
    },
    shared_sources=REWARD_SOURCES,
)
