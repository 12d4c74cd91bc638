"""Group-relative policy optimisation."""

from __future__ import annotations

from rlhf.config.stages import GRPOStage
from rlhf.pipeline.stages.context import StageContext, StageOutcome, seed_of
from rlhf.pipeline.stages.rl import finish_rl, open_rl_inputs, read_eval_prompts
from rlhf.training.grpo import GRPOTrainer


def run_grpo(stage: GRPOStage, at: StageContext) -> StageOutcome:
    """A policy that learned from rewards, against its own siblings."""
    policy, prompts, scorer, reference = open_rl_inputs(stage, at, seed=seed_of(stage.seed))
    trainer = GRPOTrainer(
        policy, stage, prompts, scorer,
        reference=reference, eval_prompts=read_eval_prompts(stage, policy, at), log=at.log, checkpoint_dir=at.folder,
    )  # fmt: skip
    return finish_rl("grpo", policy, trainer.train(), stage, at)
