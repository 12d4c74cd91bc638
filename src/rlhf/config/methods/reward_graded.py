"""Reward model with graded preferences: how the method is declared."""

from __future__ import annotations

from rlhf.config.methods.method import Method
from rlhf.config.methods.reward_family import REWARD_SOURCES

METHOD = Method(
    title="Reward model with graded preferences",
    about="'Slightly' and 'significantly better' each have a margin, learned with the scores.",
    family="reward",
    kind="reward",
    settings={"loss": "graded"},
    options=("loss", "center_coef"),
    computed_by="losses.tie_losses:graded_loss",
    paper="Agresti",
    year=1992,
    shared_sources=REWARD_SOURCES,
)
