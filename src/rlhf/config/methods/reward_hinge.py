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
    options=("loss", "margin", "label_smoothing", "use_label_probability", "center_coef"),
    computed_by="losses.reward:hinge_margin_loss",
    paper="Herbrich, Graepel and Obermayer",
    year=2000,
    sources={
        "margin=null": "ours: 1 for all, as scores have no unit and this gives them one, unless rows come with theirs",
        "label_smoothing=0.0": "ours: labels are sure",
        "use_label_probability=false": "ours: labels are sure",
    },
    shared_sources=REWARD_SOURCES,
)
