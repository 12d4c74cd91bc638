"""SimPO, CPO and ORPO: learning from pairs without a reference."""

from __future__ import annotations

from rlhf.config.stages import CPOStage, ORPOStage, SimPOStage
from rlhf.pipeline.stages.context import StageContext, StageOutcome
from rlhf.pipeline.stages.pair_training import open_pairs, train_pairs
from rlhf.training.reference_free import CPOTrainer, ORPOTrainer, SimPOTrainer


def run_simpo(stage: SimPOStage, at: StageContext) -> StageOutcome:
    """A policy whose mean log-probability is its reward."""
    policy, train, held_out = open_pairs(stage, at, may_stream=True)
    trainer = SimPOTrainer(policy, stage, train, held_out, log=at.log, checkpoint_dir=at.folder)
    return train_pairs(trainer, train, stage, at)


def run_cpo(stage: CPOStage, at: StageContext) -> StageOutcome:
    """A policy that learned from pairs and from the better completions at once."""
    policy, train, held_out = open_pairs(stage, at, may_stream=True)
    trainer = CPOTrainer(policy, stage, train, held_out, log=at.log, checkpoint_dir=at.folder)
    return train_pairs(trainer, train, stage, at)


def run_orpo(stage: ORPOStage, at: StageContext) -> StageOutcome:
    """A policy fine-tuned on the better completions, and away from the worse ones."""
    policy, train, held_out = open_pairs(stage, at, may_stream=True)
    trainer = ORPOTrainer(policy, stage, train, held_out, log=at.log, checkpoint_dir=at.folder)
    return train_pairs(trainer, train, stage, at)
