"""Dr. GRPO: how the method is declared."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rlhf.config.grpo_settings import Advantage, GRPOConfig, GRPOKLConfig
from rlhf.config.methods.group_family import GROUP_SOURCES, GroupStage
from rlhf.config.methods.method import Method
from rlhf.config.methods.policy_family import CLIPS, CREDIT, STEPS
from rlhf.config.policy import Aggregation

OAT_ZERO = "the authors' code, sail-sg/understand-r1-zero"


class DrGRPOConfig(GRPOConfig):
    """Dr. GRPO (Liu et al. 2025, arXiv:2503.20783): GRPO without its biases by length and by difficulty, and without KL."""

    prompts_per_rollout: int = Field(128, ge=1)
    """Prompts asked each time; with the other defaults a rollout is eight steps, as in the authors' code."""
    advantage: Advantage = "group_mean"
    """See GRPO."""
    aggregation: Aggregation = "constant"
    """See GRPO."""
    kl: GRPOKLConfig = GRPOKLConfig(where="none", coef=0.0)
    """Penalty for moving away from the reference."""


class DrGRPOStage(DrGRPOConfig, GroupStage):
    """GRPO without its biases."""

    kind: Literal["dr_grpo"]


METHOD = Method(
    title="Dr. GRPO",
    about="GRPO without its biases by length and by difficulty, and without KL.",
    family="policy",
    kind="dr_grpo",
    options=("group_size", *STEPS, *CREDIT, *CLIPS, "kl.where", "kl.measure_every"),
    computed_by="losses.aggregation:constant_mean",
    paper="Liu et al.",
    year=2025,
    arxiv="2503.20783",
    stage=DrGRPOStage,
    sources={
        "aggregation=constant": "Dr. GRPO, section 3, arXiv:2503.20783",
        "group_size=8": f"{OAT_ZERO} (`num_samples`)",
        "kl.where=none": f"{OAT_ZERO} (`beta`: 0)",
        "prompts_per_rollout=128": f"{OAT_ZERO} (`rollout_batch_size`)",
        "minibatch_size=128": f"{OAT_ZERO} (`train_batch_size`)",
        "advantage=group_mean": "Dr. GRPO, section 3, arXiv:2503.20783",
    },
    shared_sources=GROUP_SOURCES,
)
