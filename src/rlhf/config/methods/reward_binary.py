"""Reward model from verdicts: how the method is declared."""

from __future__ import annotations

from rlhf.config.methods.method import Method
from rlhf.config.methods.reward_family import REWARD_SOURCES

METHOD = Method(
    title="Reward model from verdicts",
    about="The score is the log-odds that a completion is good; as a verifier, of whole solutions.",
    family="reward",
    kind="reward",
    settings={"loss": "binary", "normalize": False},
    options=("loss", "normalize"),
    computed_by="losses.reward:binary_loss",
    paper="Uesato et al.",
    year=2022,
    arxiv="2211.14275",
    sources={
        "normalize=false": "ours: the score is to stay a log-odds",
    },
    shared_sources=REWARD_SOURCES,
)
