"""Process reward model: how the method is declared."""

from __future__ import annotations

from rlhf.config.methods.method import Method
from rlhf.config.methods.reward_family import JUDGE_RATES, REWARD_SOURCES

STEPS = "Lightman et al. 2023, section 2.6, arXiv:2305.20050"

METHOD = Method(
    title="Process reward model",
    about="Judges every step of a solution: finds the first wrong one; as a reward, one number from all steps together.",
    family="reward",
    kind="prm",
    options=(
        "loss",
        "step_coef",
        "until_first_error",
        "wrong_weight",
        "aggregate",
        "step_separator",
        "extra_layers",
        "lm_coef",
    ),
    computed_by="losses.process:step_loss",
    paper="Lightman et al.",
    year=2023,
    arxiv="2305.20050",
    rates=JUDGE_RATES,
    sources={
        "aggregate=product": STEPS,
        "extra_layers=0": "ours: the smaller model, until it proves too small",
        "lm_coef=0.0": "ours: a judge need not write",
        "loss=steps": STEPS,
        "step_coef=0.0": "ours: pairs are read without labels of steps",
        r"step_separator=\n": "ours: a step a line",
        "until_first_error=false": "ours: a label that somebody gave is learned",
        "wrong_weight=1.0": "ours: a wrong step counts like a right one",
    },
    shared_sources=REWARD_SOURCES,
)
