"""SimPO: how the method is declared."""

from __future__ import annotations

from rlhf.config.methods.method import Method
from rlhf.config.methods.preference_family import PAIR_RATES

SIMPO_RUN = "`training_configs/llama-3-8b-base-simpo.yaml` in the authors' code, princeton-nlp/SimPO"

METHOD = Method(
    title="SimPO",
    about="No reference: the mean log-probability is the reward, and it has to win by a margin.",
    family="preference",
    kind="simpo",
    options=("beta", "target_margin", "label_smoothing", "sft_coef"),
    computed_by="losses.reference_free:simpo_loss",
    paper="Meng et al.",
    year=2024,
    arxiv="2405.14734",
    rates=PAIR_RATES,
    sources={
        "label_smoothing=0.0": "SimPO, eq. 6, arXiv:2405.14734",
        "sft_coef=0.0": "SimPO, eq. 6, arXiv:2405.14734: no such term",
        "beta=2.0": f"SimPO: {SIMPO_RUN}",
        "target_margin=1.0": f"SimPO: {SIMPO_RUN} (0.5 times its beta of 2)",
    },
)
