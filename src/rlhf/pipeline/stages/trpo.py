"""Trust-region policy optimization."""

from __future__ import annotations

from rlhf.config.stages import TRPOStage
from rlhf.pipeline.stages.context import StageContext, StageOutcome
from rlhf.pipeline.stages.ppo import train_with_critic
from rlhf.training.trpo import TRPOTrainer


def run_trpo(stage: TRPOStage, at: StageContext) -> StageOutcome:
    """A policy that learned from rewards, one natural-gradient step a rollout."""
    return train_with_critic(TRPOTrainer, stage, at)
