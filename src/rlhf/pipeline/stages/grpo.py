"""GRPO and its family: learning from rewards without a critic. What tells the kinds apart are their settings."""

from __future__ import annotations

from rlhf.config.methods.group_family import GroupStage
from rlhf.pipeline.stages.context import StageContext, StageOutcome, seed_of
from rlhf.pipeline.stages.inputs import penalties_of
from rlhf.pipeline.stages.rl import finish_rl, open_engine, open_rl_inputs, read_eval_prompts
from rlhf.training.grpo import GRPOTrainer


def run_grpo(stage: GroupStage, at: StageContext) -> StageOutcome:
    """A policy that learned from rewards, against its own siblings or another baseline."""
    policy, prompts, scorer, reference = open_rl_inputs(stage, at, seed=seed_of(stage.seed))
    trainer = GRPOTrainer(
        policy, stage, prompts, scorer,
        reference=reference, eval_prompts=read_eval_prompts(stage, policy, at), log=at.log, checkpoint_dir=at.folder,
        engine=open_engine(stage, policy, at), name=stage.kind,
    )  # fmt: skip
    trainer.penalties += penalties_of(stage, policy, at)
    return finish_rl(stage.kind, policy, trainer.train(), stage, at)
