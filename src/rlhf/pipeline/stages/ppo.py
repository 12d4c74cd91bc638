"""Proximal policy optimization, and VAPO, which is the same trainer with other settings."""

from __future__ import annotations

from collections.abc import Sequence

from rlhf.config.rewards import RewardSpec
from rlhf.config.stages import PPOStage, TRPOStage, VAPOStage
from rlhf.errors import ConfigError
from rlhf.models.load import disable_dropout
from rlhf.models.policy import PolicyModel
from rlhf.models.reward import RewardModel
from rlhf.models.value import ValueModel
from rlhf.pipeline.stages.context import StageContext, StageOutcome, seed_of
from rlhf.pipeline.stages.inputs import penalties_of
from rlhf.pipeline.stages.rl import finish_rl, open_engine, open_rl_inputs, read_eval_prompts
from rlhf.training.ppo import PPOTrainer, VAPOTrainer


def run_ppo(stage: PPOStage | VAPOStage, at: StageContext) -> StageOutcome:
    """A policy that learned from rewards, with a critic."""
    return train_with_critic(VAPOTrainer if stage.kind == "vapo" else PPOTrainer, stage, at)


def train_with_critic(
    kind: type[PPOTrainer], stage: PPOStage | VAPOStage | TRPOStage, at: StageContext
) -> StageOutcome:
    """Open everything that a trainer with a critic needs, and train."""
    seed = seed_of(stage.seed)
    policy, prompts, scorer, reference = open_rl_inputs(stage, at, seed=seed)
    trainer = kind(
        policy, _build_critic(stage, policy, at, seed=seed), stage, prompts, scorer,
        reference=reference, eval_prompts=read_eval_prompts(stage, policy, at), log=at.log, checkpoint_dir=at.folder,
        engine=open_engine(stage, policy, at),
    )  # fmt: skip
    trainer.penalties += penalties_of(stage, policy, at)
    return finish_rl(stage.kind, policy, trainer.train(), stage, at)


def _build_critic(
    stage: PPOStage | VAPOStage | TRPOStage, policy: PolicyModel, at: StageContext, *, seed: int
) -> ValueModel:
    if stage.value_model == "shared":
        value_model = ValueModel.shared(policy, seed=seed)
    elif stage.value_init == "reward":
        reward_model = RewardModel.from_pretrained(at.path(_learned_source(stage.reward)))
        value_model = ValueModel.from_reward(reward_model, lora=stage.model.lora, seed=seed)
    else:
        value_model = ValueModel.from_policy(policy, lora=stage.model.lora, seed=seed)
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
