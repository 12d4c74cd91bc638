"""What methods have in common that learn from rewards without a critic."""

from __future__ import annotations

from collections.abc import Mapping

from rlhf.config.grpo_settings import GRPOConfig
from rlhf.config.methods.policy_family import POLICY_SOURCES
from rlhf.config.stage_inputs import PolicyStage

GROUP_SOURCES: Mapping[str, str] = {
    **POLICY_SOURCES,
    "advantage=group": "GRPO, section 4.1.2, arXiv:2402.03300",
    "aggregation=constant": "ours: the paper's sum over tokens, but for a constant",
    "clip_high=0.2": "TRL 1.16 (`epsilon`)",
    "clip_low=0.2": "TRL 1.16 (`epsilon`)",
    "epochs_per_rollout=1": "TRL 1.16 (`num_iterations`)",
    "group_size=8": "TRL 1.16 (`num_generations`); GRPO's paper has 64",
    "kl.measure_every=1": "ours: guards watch the KL of every rollout",
    "kl.where=none": "TRL 1.16 (`beta` of `GRPOConfig`: 0)",
    "minibatch_size=128": "ours: an eighth of GRPO's 1,024, with groups an eighth of its 64",
    "policy_loss=clip": "GRPO, eq. 3, arXiv:2402.03300",
}


class GroupStage(GRPOConfig, PolicyStage):
    """What every stage has that learns from rewards without a critic."""

    runs = "rl:run_rl"
    trainer = "rlhf.training.grpo:GRPOTrainer"
