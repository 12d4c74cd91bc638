"""DAPO: how the method is declared."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rlhf.config.grpo_settings import GRPOConfig, GRPOKLConfig
from rlhf.config.methods.group_family import GROUP_SOURCES, GroupStage
from rlhf.config.methods.method import Method
from rlhf.config.methods.policy_family import CLIPS, STEPS
from rlhf.config.policy import Aggregation, OverlongConfig

DAPO_RUNS = "DAPO, section 4.1, arXiv:2503.14476"


class DAPOConfig(GRPOConfig):
    """DAPO (Yu et al. 2025, arXiv:2503.14476): clip higher, mean over tokens, groups that teach, soft length limit, no KL."""

    group_size: int = Field(16, ge=1)
    """Completions sampled for each prompt."""
    prompts_per_rollout: int = Field(128, ge=1)
    """Prompts asked each time; with the other defaults a rollout is 16 steps, as in the paper's section 4.1."""
    clip_high: float = Field(0.28, ge=0)
    """Ratio is not rewarded above 1 + clip_high."""
    aggregation: Aggregation = "token"
    """See GRPO."""
    kl: GRPOKLConfig = GRPOKLConfig(where="none", coef=0.0)
    """Penalty for moving away from the reference."""
    dynamic_sampling: bool = True
    """Ask further prompts in place of those whose completions all score alike."""
    overlong: OverlongConfig | None = OverlongConfig()
    """Soft punishment near the length limit; null for none."""


class DAPOStage(DAPOConfig, GroupStage):
    """Decoupled clip and dynamic sampling."""

    kind: Literal["dapo"]


METHOD = Method(
    title="DAPO",
    about="GRPO for long reasoning: clip higher, mean over tokens, groups that teach, soft length limit, no KL.",
    family="policy",
    kind="dapo",
    options=(
        "group_size",
        *STEPS,
        *CLIPS,
        "aggregation",
        "dynamic_sampling",
        "max_sampling_rounds",
        "overlong",
        "kl.where",
        "kl.measure_every",
    ),
    computed_by="losses.shaping:teaching_groups",
    paper="Yu et al.",
    year=2025,
    arxiv="2503.14476",
    derived_defaults={"overlong": "max_new_tokens / 5"},
    stage=DAPOStage,
    sources={
        "prompts_per_rollout=128": f"{DAPO_RUNS}: its 16 steps a rollout, of a quarter as many completions",
        "minibatch_size=128": f"ours: a quarter of the 512 of {DAPO_RUNS}",
        "clip_low=0.2": DAPO_RUNS,
        "kl.where=none": "DAPO, section 2.3, arXiv:2503.14476",
        "overlong=max_new_tokens / 5": f"{DAPO_RUNS}: 4,096 of 20,480 tokens",
        "aggregation=token": "DAPO, eq. 8, arXiv:2503.14476",
        "clip_high=0.28": DAPO_RUNS,
        "dynamic_sampling=true": "DAPO, eq. 11, arXiv:2503.14476",
        "group_size=16": DAPO_RUNS,
        "max_sampling_rounds=4": "ours: prompts that all score alike cannot hold a run for ever; verl asks 10 times",
    },
    shared_sources=GROUP_SOURCES,
)
