"""Reward model with ties: how the method is declared."""

from __future__ import annotations

from rlhf.config.methods.method import Method
from rlhf.config.methods.reward_family import REWARD_SOURCES

METHOD = Method(
    title="Reward model with ties",
    about="That two completions are alike is knowledge about both, not a row to drop (Davidson, or Rao and Kupper).",
    family="reward",
    kind="reward",
    settings={"loss": "davidson"},
    options=("loss", "center_coef"),
    computed_by="losses.tie_losses:davidson_loss",
    paper="Davidson 1970; Rao and Kupper 1967; Liu et al.",
    year=2024,
    arxiv="2410.05328",
    other_names={"rao_kupper": {"loss": "rao_kupper"}},
    shared_sources=REWARD_SOURCES,
)
