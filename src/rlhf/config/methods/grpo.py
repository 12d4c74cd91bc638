"""GRPO: how the method is declared."""

from __future__ import annotations

from typing import Literal

from rlhf.config.methods.group_family import GROUP_SOURCES, GroupStage
from rlhf.config.methods.method import Method
from rlhf.config.methods.policy_family import CLIPS, CREDIT, PENALTY, STEPS

GRPO_LOSS = "GRPO, eq. 3, arXiv:2402.03300"


class GRPOStage(GroupStage):
    """Group-relative policy optimization."""

    kind: Literal["grpo"]


METHOD = Method(
    title="GRPO",
    about="No critic: a completion is measured against its siblings of the same prompt.",
    family="policy",
    kind="grpo",
    options=("group_size", *STEPS, *CREDIT, *CLIPS, *PENALTY, "kl.unbiased"),
    computed_by="losses.advantage:group_advantages",
    paper="Shao et al.",
    year=2024,
    arxiv="2402.03300",
    stage=GRPOStage,
    sources={
        "group_size=8": "TRL 1.16 (`num_generations`); section 4.2 of the paper has 64",
        "aggregation=sequence": GRPO_LOSS,
        "kl.coef=0.04": "GRPO, section 4.2, arXiv:2402.03300",
        "kl.estimator=k3": "GRPO, eq. 4, arXiv:2402.03300",
        "kl.unbiased=false": "GRPO, eq. 4, arXiv:2402.03300: no such weight",
        "kl.where=loss": GRPO_LOSS,
        "prompts_per_rollout=16": "GRPO, section 4.2, arXiv:2402.03300: one step a rollout, there of 1,024 completions",
    },
    shared_sources=GROUP_SOURCES,
)
