"""Reward model (Bradley-Terry): how the method is declared."""

from __future__ import annotations

from rlhf.config.methods.method import Method
from rlhf.config.methods.reward_family import JUDGE_RATES, REWARD_SOURCES

RM_LOSS = "Ouyang et al. 2022, eq. 1, arXiv:2203.02155"

METHOD = Method(
    title="Reward model (Bradley-Terry)",
    about="Score completions so that the difference of two scores, times the model's std, is the log-odds of preferring one.",
    family="reward",
    kind="reward",
    options=("label_smoothing", "use_label_probability", "margin", "center_coef", "head", "normalize"),
    computed_by="losses.reward:bradley_terry_loss",
    paper="Ouyang et al.",
    year=2022,
    arxiv="2203.02155",
    rates=JUDGE_RATES,
    other_names={"bradley_terry": {}},
    sources={
        "label_smoothing=0.0": f"{RM_LOSS}: labels are sure",
        "use_label_probability=false": f"{RM_LOSS}: labels are sure",
        "margin=null": f"{RM_LOSS}: no margin",
    },
    shared_sources=REWARD_SOURCES,
)
