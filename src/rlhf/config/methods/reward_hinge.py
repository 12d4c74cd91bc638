"""Reward model with a hinge: how the method is declared."""

from __future__ import annotations

from rlhf.config.methods.method import Method
from rlhf.config.methods.reward_family import REWARD_SOURCES

METHOD = Method(
    title="Reward model with a hinge",
    about="A pair teaches until its margin is reached, and all that miss it pull alike.",
    family="reward",
    kind="reward",
    settings={"loss": "hinge"},
    options=("loss", "hinge_margin", "use_margin", "center_coef"),
    computed_by="losses.reward:hinge_margin_loss",
    paper="Herbrich, Graepel and Obermayer",
    year=2000,
    sources={
        "use_margin=false": "ours: one margin for all, unless rows come with theirs",
        "hinge_margin=1.0": "ours: scores have no unit, and this gives them one",
    },
    shared_sources=REWARD_SOURCES,
)
