"""Direct preference optimization."""

from __future__ import annotations

from rlhf.config.stages import DPOStage
from rlhf.pipeline.stages.context import StageContext, StageOutcome, seed_of
from rlhf.pipeline.stages.inputs import load_policy
from rlhf.pipeline.stages.pair_training import open_pairs, train_pairs
from rlhf.training.dpo import DPOTrainer


def run_dpo(stage: DPOStage, at: StageContext) -> StageOutcome:
    """A policy that learned from pairs directly."""
    policy, train, held_out = open_pairs(stage, at, may_stream=stage.reference_free)
    named = stage.reference
    trainer = DPOTrainer(
        policy, stage, train, held_out,
        reference=load_policy(named, at, seed=seed_of(stage.seed)).requires_grad_(False) if named is not None else None,
        log=at.log, checkpoint_dir=at.folder,
    )  # fmt: skip
    return train_pairs(trainer, train, stage, at)
