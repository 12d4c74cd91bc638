"""REINFORCE++: how the method is declared."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rlhf.config.grpo_settings import Advantage, GRPOConfig, RewardKLConfig
from rlhf.config.methods.group_family import GROUP_SOURCES, GroupStage
from rlhf.config.methods.method import Method
from rlhf.config.methods.policy_family import CLIPS, CREDIT, PENALTY, STEPS
from rlhf.config.policy import Aggregation

REINFORCE_PP = "REINFORCE++, arXiv:2501.03262"
OPENRLHF_RUN = "OpenRLHF, the authors' code (`train_reinforce_llama_ray.sh`)"


class ReinforcePPConfig(GRPOConfig):
    """REINFORCE++ (Hu et al. 2025, arXiv:2501.03262): no critic, no groups; advantages whitened over the whole rollout."""

    group_size: int = Field(1, ge=1)
    """Completions sampled for each prompt; 2 or more with `baseline: group`."""
    prompts_per_rollout: int = Field(1024, ge=1)
    """Prompts asked each time; with the other defaults a rollout is eight steps, as in the authors' code."""
    advantage: Advantage = "batch"
    """See GRPO."""
    aggregation: Aggregation = "token"
    """See GRPO."""
    kl: RewardKLConfig = RewardKLConfig()
    """Penalty for moving away from the reference."""


class ReinforcePPStage(ReinforcePPConfig, GroupStage):
    """REINFORCE++."""

    kind: Literal["reinforce_pp"]


METHOD = Method(
    title="REINFORCE++",
    about="No critic and no groups: advantages of tokens, whitened over the whole rollout.",
    family="policy",
    kind="reinforce_pp",
    options=("group_size", *STEPS, "baseline", *CREDIT, *CLIPS, *PENALTY),
    computed_by="losses.advantage:reinforce_plus_plus_advantages",
    paper="Hu et al.",
    year=2025,
    arxiv="2501.03262",
    stage=ReinforcePPStage,
    other_names={"reinforce_pp_baseline": {"group_size": 4, "baseline": "group"}},
    sources={
        "aggregation=token": "OpenRLHF, the authors' code",
        "group_size=1": f"{REINFORCE_PP}: no groups",
        "kl.coef=0.05": "ours: as in RLOO, which has the same penalty",
        "policy_loss=clip": REINFORCE_PP,
        "prompts_per_rollout=1024": OPENRLHF_RUN,
        "minibatch_size=128": OPENRLHF_RUN,
        "advantage=batch": REINFORCE_PP,
        "baseline=none": f"{REINFORCE_PP}: the form without groups",
    },
    shared_sources=GROUP_SOURCES,
)
