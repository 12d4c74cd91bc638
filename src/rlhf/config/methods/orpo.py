"""ORPO: how the method is declared."""

from __future__ import annotations

from rlhf.config.methods.method import Method
from rlhf.config.methods.preference_family import PAIR_RATES

METHOD = Method(
    title="ORPO",
    about="Fine-tuning and preference in one loss, straight from a base model.",
    family="preference",
    kind="orpo",
    options=("odds_coef", "sft_coef", "learning_rate"),
    computed_by="losses.reference_free:odds_ratio_loss",
    paper="Hong et al.",
    year=2024,
    arxiv="2403.07691",
    rates=PAIR_RATES,
    sources={
        "sft_coef=1.0": "ORPO, eq. 6, arXiv:2403.07691",
        "learning_rate=8e-06": "TRL (`examples/scripts/orpo.py`)",
        "odds_coef=0.1": "TRL 1.16 (`ORPOConfig.beta`)",
    },
)
