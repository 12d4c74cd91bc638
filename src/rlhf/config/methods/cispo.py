"""CISPO: how the method is declared."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rlhf.config.grpo_settings import GRPOConfig, GRPOKLConfig
from rlhf.config.methods.group_family import GROUP_SOURCES, GroupStage
from rlhf.config.methods.method import Method
from rlhf.config.methods.policy_family import CLIPS, CREDIT, STEPS
from rlhf.config.policy import Aggregation, PolicyLoss

CISPO_LOSS = "MiniMax-M1, eqs. 4 and 5, arXiv:2506.13585"


class CISPOConfig(GRPOConfig):
    """CISPO (MiniMax 2025, arXiv:2506.13585): clips the weight of a token, and silences none."""

    prompts_per_rollout: int = Field(256, ge=1)
    """Prompts asked each time; with the other defaults a rollout is 16 steps, as in the paper's section 3.1. With one step every
    weight is 1, and this is the plain policy gradient."""
    policy_loss: PolicyLoss = "cispo"
    """What an advantage does to a token."""
    clip_low: float = Field(1.0, ge=0, le=1)
    """A token's weight is at least 1 - clip_low; 1 for no lower bound."""
    clip_high: float = Field(4.0, ge=0)
    """A token's weight is at most 1 + clip_high (ScaleRL, arXiv:2510.13786, found 5 good)."""
    aggregation: Aggregation = "token"
    """See GRPO."""
    kl: GRPOKLConfig = GRPOKLConfig(where="none", coef=0.0)
    """Penalty for moving away from the reference."""


class CISPOStage(CISPOConfig, GroupStage):
    """Clipped importance weights."""

    kind: Literal["cispo"]


METHOD = Method(
    title="CISPO",
    about="Clips the weight of a token and never its gradient: rare words that start a thought keep teaching.",
    family="policy",
    kind="cispo",
    options=("group_size", *STEPS, *CLIPS, *CREDIT, "kl.where"),
    computed_by="losses.policy:cispo_loss",
    paper="MiniMax",
    year=2025,
    arxiv="2506.13585",
    stage=CISPOStage,
    sources={
        "aggregation=token": CISPO_LOSS,
        "prompts_per_rollout=256": "MiniMax-M1, section 3.1, arXiv:2506.13585: its 16 steps a rollout",
        "clip_high=4.0": "TRL 1.16's advice for it, after ScaleRL, arXiv:2510.13786: weights up to 5",
        "clip_low=1.0": "MiniMax-M1, arXiv:2506.13585: no lower bound",
        "policy_loss=cispo": CISPO_LOSS,
    },
    shared_sources=GROUP_SOURCES,
)
