"""SAPO: how the method is declared."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rlhf.config.grpo_settings import GRPOConfig, GRPOKLConfig
from rlhf.config.methods.group_family import GROUP_SOURCES, GroupStage
from rlhf.config.methods.method import Method
from rlhf.config.methods.policy_family import CREDIT, STEPS
from rlhf.config.policy import PolicyLoss


class SAPOConfig(GRPOConfig):
    """SAPO (Gao et al. 2025, arXiv:2511.20347): a soft gate in place of the clip."""

    prompts_per_rollout: int = Field(64, ge=1)
    """Prompts asked each time; with the other defaults a rollout is four steps. With one step every ratio is 1, and the gate does
    nothing."""
    policy_loss: PolicyLoss = "sapo"
    """What an advantage does to a token."""
    kl: GRPOKLConfig = GRPOKLConfig(where="none", coef=0.0)
    """Penalty for moving away from the reference."""


class SAPOStage(SAPOConfig, GroupStage):
    """Soft adaptive policy optimization."""

    kind: Literal["sapo"]


METHOD = Method(
    title="SAPO",
    about="A soft gate in place of the clip: what a token teaches fades and never stops at once.",
    family="policy",
    kind="sapo",
    options=("group_size", *STEPS, *CREDIT, "kl.where"),
    computed_by="losses.policy:sapo_loss",
    paper="Gao et al.",
    year=2025,
    arxiv="2511.20347",
    stage=SAPOStage,
    sources={
        "aggregation=sequence": "TRL 1.16 (`loss_type` `sapo`)",
        "prompts_per_rollout=64": "ours: four steps a rollout, as GSPO's, of the same authors",
        "policy_loss=sapo": "SAPO, arXiv:2511.20347",
    },
    shared_sources=GROUP_SOURCES,
)
