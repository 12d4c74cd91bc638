"""Dynamic fine-tuning: how the method is declared."""

from __future__ import annotations

from rlhf.config.methods.method import Method
from rlhf.config.methods.supervised_family import SUPERVISED_SOURCES

METHOD = Method(
    title="Dynamic fine-tuning",
    about="SFT in which a token counts by the probability it has already: learn what is near, leave what is absurd.",
    family="supervised",
    kind="sft",
    settings={"loss": "dft"},
    options=("loss", "train_on", "learning_rate"),
    computed_by="losses.supervised:dft_loss",
    paper="Wu et al.",
    year=2025,
    arxiv="2508.05629",
    shared_sources=SUPERVISED_SOURCES,
)
