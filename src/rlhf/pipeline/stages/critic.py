"""Stages that learn from rewards with a critic: PPO, VAPO and TRPO."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlhf.config.rewards import RewardSpec
from rlhf.config.training_stages import PPOStage, TRPOStage, VAPOStage
from rlhf.distributed.ranks import current_ranks
from rlhf.errors import ConfigError
from rlhf.models.load import disable_dropout
from rlhf.models.policy import PolicyModel
from rlhf.models.reward import RewardModel
from rlhf.models.sharded_models import saveable_on_main
from rlhf.models.value import ValueModel
from rlhf.pipeline.stages.context import StageContext, StageOutcome, seed_of
from rlhf.pipeline.stages.rl import open_policy_and_prompts, train_rl


def run_with_critic(stage: Any, at: StageContext) -> StageOutcome:
    """A policy that learned from rewards, with a critic."""
    policy, prompts = open_policy_and_prompts(stage, at)
    critic = _build_critic(stage, policy, at, seed=seed_of(stage.seed))
    outcome = train_rl(stage, at, policy, prompts, value_model=critic)
    if stage.save_critic:
        card = {"summary": f"The critic of the {stage.kind} stage {at.name}."}
        with saveable_on_main(critic, at.folder):
            if current_ranks().is_main:
                critic.save_pretrained(at.folder / "critic", card=card)
    return outcome


def _build_critic(
    stage: PPOStage | VAPOStage | TRPOStage, policy: PolicyModel, at: StageContext, *, seed: int
) -> ValueModel:
    head: dict[str, Any] = {"value_head": stage.value_head, "head_hidden_size": stage.head_hidden_size}
    if stage.value_model == "shared":
        value_model = ValueModel.shared(policy, **head, seed=seed)
    elif stage.value_init == "reward":
        reward_model = RewardModel.from_pretrained(at.path(_learned_source(stage.reward)))
        value_model = ValueModel.from_reward(reward_model, **head, lora=stage.model.lora, seed=seed)
    else:
        value_model = ValueModel.from_policy(policy, **head, lora=stage.model.lora, seed=seed)
    disable_dropout(value_model)
    return value_model


def _learned_source(reward: Sequence[RewardSpec]) -> str:
    for spec in reward:
        if spec.kind == "learned":
            return spec.source
    raise ConfigError(
        "value_init is `reward`, but no reward of this stage is `learned`, one reward model with a backbone to start from (the "
        "models of an `ensemble` have several); use `value_init: policy`."
    )
