"""Ensemble of reward models: how the method is declared."""

from __future__ import annotations

from rlhf.config.methods.method import Method
from rlhf.config.methods.reward_family import REWARD_SOURCES

METHOD = Method(
    title="Ensemble of reward models",
    about="Several models judge; where they part nobody knows, and the policy is paid for the worst case.",
    family="reward",
    kind="reward",
    settings={"num_models": 3},
    options=("num_models", "num_heads", "head"),
    computed_by="losses.reward:bradley_terry_loss",
    paper="Coste et al.",
    year=2023,
    arxiv="2310.02743",
    sources={
        "num_heads=1": "ours: members with backbones of their own are less alike",
        "num_models=3": "ours: the fewest that can outvote one",
    },
    shared_sources=REWARD_SOURCES,
)
