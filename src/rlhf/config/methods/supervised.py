"""Supervised fine-tuning: how the method is declared."""

from __future__ import annotations

from rlhf.config.methods.method import Method
from rlhf.config.methods.supervised_family import SUPERVISED_RATES, SUPERVISED_SOURCES

METHOD = Method(
    title="Supervised fine-tuning",
    about="Imitate demonstrations: the likelihood of their completions.",
    family="supervised",
    kind="sft",
    options=("train_on", "label_smoothing", "epochs", "learning_rate"),
    computed_by="losses.supervised:nll_loss",
    paper="Ouyang et al.",
    year=2022,
    arxiv="2203.02155",
    rates=SUPERVISED_RATES,
    sources={
        "label_smoothing=0.0": "TRL 1.16 (`label_smoothing_factor`)",
    },
    shared_sources=SUPERVISED_SOURCES,
)
