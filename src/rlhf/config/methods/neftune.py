"""NEFTune: how the method is declared."""

from __future__ import annotations

from rlhf.config.methods.method import Method
from rlhf.config.methods.supervised_family import SUPERVISED_SOURCES

METHOD = Method(
    title="NEFTune",
    about="SFT with noise on the embeddings: a small data set is not learned by heart.",
    family="supervised",
    kind="sft",
    settings={"neftune_alpha": 5.0},
    options=("neftune_alpha", "train_on", "epochs"),
    computed_by="losses.regularizers:neftune_noise",
    paper="Jain et al.",
    year=2023,
    arxiv="2310.05914",
    sources={
        "neftune_alpha=5.0": "NEFTune, arXiv:2310.05914: the smallest of its 5, 10 and 15",
    },
    shared_sources=SUPERVISED_SOURCES,
)
