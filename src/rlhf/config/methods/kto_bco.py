"""BCO on single completions: how the method is declared."""

from __future__ import annotations

from rlhf.config.methods.method import Method

METHOD = Method(
    title="BCO on single completions",
    about="No pairs: a binary classifier of good and bad, whose logit is the implicit reward.",
    family="preference",
    kind="kto",
    settings={"loss": "bco"},
    options=("loss", "beta", "reference_point_decay"),
    computed_by="losses.unpaired:bco_loss",
    paper="Jung et al.",
    year=2024,
    arxiv="2404.04656",
    sources={
        "beta=0.1": "TRL 1.16 (`KTOConfig`)",
        "reference_point_decay=0.9": "ours: about the last ten steps count",
    },
)
