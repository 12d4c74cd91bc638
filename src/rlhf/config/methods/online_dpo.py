"""Online DPO: how the method is declared."""

from __future__ import annotations

from rlhf.config.methods.method import Method
from rlhf.config.methods.policy_family import POLICY_SOURCES, ROLLOUT

DPO_LOSS = "DPO, eq. 7, arXiv:2305.18290"

METHOD = Method(
    title="Online DPO",
    about="DPO on pairs that the policy has just written and a reward has just judged.",
    family="own",
    kind="online_dpo",
    options=("group_size", "beta", "loss", "label_smoothing", *ROLLOUT[:2], "minibatch_size"),
    computed_by="losses.preference:dpo_loss",
    paper="Guo et al.",
    year=2024,
    arxiv="2402.04792",
    other_names={"oaif": {}},
    sources={
        "beta=0.1": "TRL 1.16 (`OnlineDPOConfig`)",
        "group_size=2": "Guo et al. 2024, abstract, arXiv:2402.04792",
        "label_smoothing=0.0": DPO_LOSS,
        "loss=sigmoid": DPO_LOSS,
    },
    shared_sources=POLICY_SOURCES,
)
