"""CPO: how the method is declared."""

from __future__ import annotations

from rlhf.config.methods.method import Method
from rlhf.config.methods.preference_family import PAIR_RATES

METHOD = Method(
    title="CPO",
    about="No reference: DPO's loss on bare log-probabilities, held by the chosen completion's likelihood.",
    family="preference",
    kind="cpo",
    options=("beta", "sft_coef", "label_smoothing"),
    computed_by="losses.reference_free:cpo_loss",
    paper="Xu et al.",
    year=2024,
    arxiv="2401.08417",
    rates=PAIR_RATES,
    sources={
        "beta=0.1": "TRL 1.16 (`CPOConfig`)",
        "label_smoothing=0.0": "TRL 1.16 (`CPOConfig`)",
        "sft_coef=1.0": "TRL 1.16 (`cpo_alpha`)",
    },
)
