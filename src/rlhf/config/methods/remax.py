"""ReMax: how the method is declared."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rlhf.config.grpo_settings import Advantage, GRPOConfig, RewardKLConfig
from rlhf.config.methods.group_family import GROUP_SOURCES, GroupStage
from rlhf.config.methods.method import Method
from rlhf.config.methods.policy_family import CREDIT, PENALTY
from rlhf.config.policy import Aggregation, PolicyLoss

REMAX = "ReMax, algorithm 1, arXiv:2310.10505"


class ReMaxConfig(GRPOConfig):
    """ReMax (Li et al. 2023, arXiv:2310.10505): the plain policy gradient against the prompt's greedy completion."""

    group_size: int = Field(1, ge=1)
    """Completions sampled for each prompt, in addition to the greedy one."""
    prompts_per_rollout: int = Field(128, ge=1)
    """Prompts asked each time."""
    advantage: Advantage = "greedy"
    """See GRPO."""
    policy_loss: PolicyLoss = "reinforce"
    """The paper's; with several steps to a rollout take `clip`."""
    aggregation: Aggregation = "constant"
    """A sum over each completion's tokens, but for a constant."""
    kl: RewardKLConfig = RewardKLConfig()
    """Penalty for moving away from the reference."""


class ReMaxStage(ReMaxConfig, GroupStage):
    """REINFORCE against the greedy completion."""

    kind: Literal["remax"]


METHOD = Method(
    title="ReMax",
    about="The plain policy gradient against the prompt's greedy completion: one more sample, no critic.",
    family="policy",
    kind="remax",
    options=("prompts_per_rollout", "group_size", *CREDIT, *PENALTY),
    computed_by="losses.advantage:greedy_baseline_advantages",
    paper="Li et al.",
    year=2023,
    arxiv="2310.10505",
    stage=ReMaxStage,
    sources={
        "kl.coef=0.05": "ours: as in RLOO, which has the same penalty",
        "policy_loss=reinforce": REMAX,
        "advantage=greedy": REMAX,
        "group_size=1": REMAX,
        "prompts_per_rollout=128": "ours: one step of `minibatch_size`",
    },
    shared_sources=GROUP_SOURCES,
)
