"""DPO on the policy's own completions."""

from __future__ import annotations

from rlhf.config.stages import OnlineDPOStage
from rlhf.pipeline.stages.context import StageContext, StageOutcome, seed_of
from rlhf.pipeline.stages.inputs import penalties_of
from rlhf.pipeline.stages.rl import finish_rl, open_engine, open_rl_inputs, read_eval_prompts
from rlhf.training.online_dpo import OnlineDPOTrainer


def run_online_dpo(stage: OnlineDPOStage, at: StageContext) -> StageOutcome:
    """A policy that learned from pairs of its own, judged by a reward."""
    policy, prompts, scorer, reference = open_rl_inputs(stage, at, seed=seed_of(stage.seed))
    trainer = OnlineDPOTrainer(
        policy, stage, prompts, scorer,
        reference=reference, eval_prompts=read_eval_prompts(stage, policy, at), log=at.log, checkpoint_dir=at.folder,
        engine=open_engine(stage, policy, at),
    )  # fmt: skip
    trainer.penalties += penalties_of(stage, policy, at)
    return finish_rl("online_dpo", policy, trainer.train(), stage, at)
