"""RLOO: how the method is declared."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rlhf.config.grpo_settings import Advantage, GRPOConfig, RewardKLConfig
from rlhf.config.methods.group_family import GROUP_SOURCES, GroupStage
from rlhf.config.methods.method import Method
from rlhf.config.methods.policy_family import CREDIT, PENALTY
from rlhf.config.policy import Aggregation, PolicyLoss


class RLOOConfig(GRPOConfig):
    """RLOO (Ahmadian et al. 2024, arXiv:2402.14740): the plain policy gradient against the mean of a completion's siblings."""

    group_size: int = Field(4, ge=1)
    """Completions sampled for each prompt; the paper has 2 and 4."""
    prompts_per_rollout: int = Field(32, ge=1)
    """Prompts asked each time."""
    advantage: Advantage = "leave_one_out"
    """See GRPO."""
    policy_loss: PolicyLoss = "reinforce"
    """The paper's; with several steps to a rollout take `clip`."""
    aggregation: Aggregation = "constant"
    """A sum over each completion's tokens, as the paper has it, but for a constant."""
    kl: RewardKLConfig = RewardKLConfig()
    """Penalty for moving away from the reference."""


class RLOOStage(RLOOConfig, GroupStage):
    """REINFORCE, each completion against its siblings."""

    kind: Literal["rloo"]


METHOD = Method(
    title="RLOO",
    about="The plain policy gradient against the mean of a completion's siblings: simple, unbiased.",
    family="policy",
    kind="rloo",
    options=("group_size", *CREDIT, *PENALTY),
    computed_by="losses.advantage:leave_one_out_advantages",
    paper="Ahmadian et al.",
    year=2024,
    arxiv="2402.14740",
    stage=RLOOStage,
    sources={
        "advantage=leave_one_out": "RLOO, arXiv:2402.14740",
        "group_size=4": "RLOO, arXiv:2402.14740: the larger of its 2 and 4",
        "kl.coef=0.05": "TRL 1.16 (`RLOOConfig`)",
        "policy_loss=reinforce": "RLOO, arXiv:2402.14740",
    },
    shared_sources=GROUP_SOURCES,
)
