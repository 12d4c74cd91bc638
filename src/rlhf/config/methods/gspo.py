"""GSPO: how the method is declared."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rlhf.config.grpo_settings import GRPOConfig, GRPOKLConfig
from rlhf.config.methods.group_family import GROUP_SOURCES, GroupStage
from rlhf.config.methods.method import Method
from rlhf.config.methods.policy_family import CLIPS, CREDIT, STEPS
from rlhf.config.policy import PolicyLoss


class GSPOConfig(GRPOConfig):
    """GSPO (Zheng et al. 2025, arXiv:2507.18071): one ratio for a whole completion."""

    prompts_per_rollout: int = Field(64, ge=1)
    """Prompts asked each time; with the other defaults a rollout is four steps, as in the paper's section 5.1."""

    policy_loss: PolicyLoss = "sequence"
    """What an advantage does to a token."""
    clip_low: float = Field(3e-4, ge=0, le=1)
    """Ratio, a mean per token, is not rewarded below 1 - clip_low."""
    clip_high: float = Field(4e-4, ge=0)
    """Ratio is not rewarded above 1 + clip_high."""
    kl: GRPOKLConfig = GRPOKLConfig(where="none", coef=0.0)
    """Penalty for moving away from the reference."""


class GSPOStage(GSPOConfig, GroupStage):
    """Group sequence policy optimization."""

    kind: Literal["gspo"]


METHOD = Method(
    title="GSPO",
    about="One ratio, and one clip, for a whole completion: steadier for long ones and mixtures of experts.",
    family="policy",
    kind="gspo",
    options=("group_size", *STEPS, *CLIPS, *CREDIT, "kl.where"),
    computed_by="losses.sequence_ratio:sequence_policy_loss",
    paper="Zheng et al.",
    year=2025,
    arxiv="2507.18071",
    stage=GSPOStage,
    sources={
        "aggregation=sequence": "GSPO, eq. 5, arXiv:2507.18071",
        "kl.where=none": "the authors, in verl's pull request 2775",
        "prompts_per_rollout=64": "GSPO, section 5.1, arXiv:2507.18071: its four steps a rollout",
        "clip_high=0.0004": "GSPO, section 5.1, arXiv:2507.18071",
        "clip_low=0.0003": "GSPO, section 5.1, arXiv:2507.18071",
        "policy_loss=sequence": "GSPO, eq. 5, arXiv:2507.18071",
    },
    shared_sources=GROUP_SOURCES,
)
