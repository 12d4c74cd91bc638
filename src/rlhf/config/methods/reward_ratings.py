"""Reward model from ratings: how the method is declared."""

from __future__ import annotations

from rlhf.config.methods.method import Method
from rlhf.config.methods.reward_family import REWARD_SOURCES

METHOD = Method(
    title="Reward model from ratings",
    about="Regression on the marks that single completions were given.",
    family="reward",
    kind="reward",
    settings={"loss": "rating"},
    options=("loss", "normalize"),
    computed_by="losses.reward:rating_loss",
    paper="Wang et al.",
    year=2024,
    arxiv="2406.08673",
    shared_sources=REWARD_SOURCES,
)
