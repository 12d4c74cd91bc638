"""Learning from single completions, good or bad: KTO and unpaired BCO."""

from __future__ import annotations

from rlhf.config.stages import KTOStage
from rlhf.data.datasets import KTODataset
from rlhf.data.message_text import counted
from rlhf.models.load import disable_dropout
from rlhf.pipeline.stages.context import StageContext, StageOutcome, seed_of
from rlhf.pipeline.stages.inputs import (
    choose_path,
    load_for_training,
    load_policy,
    num_rows,
    open_datasets,
    penalties_of,
    save_model,
)
from rlhf.training.kto import KTOTrainer


def run_kto(stage: KTOStage, at: StageContext) -> StageOutcome:
    """A policy that learned which of its completions are good."""
    seed, named = seed_of(stage.seed), stage.reference
    policy = load_for_training(stage.model, at, seed=seed)
    disable_dropout(policy.model)  # the reference that it is compared with has none
    train, held_out = open_datasets(stage, at, KTODataset, None, policy, {"truncation": stage.truncation})
    choose_path(policy, train, at)
    trainer = KTOTrainer(
        policy, stage, train, held_out,
        reference=load_policy(named, at, seed=seed).requires_grad_(False) if named is not None else None,
        log=at.log, checkpoint_dir=at.folder,
    )  # fmt: skip
    trainer.penalties += penalties_of(stage, policy, at)
    result = trainer.train()
    metrics = {**result.metrics, **result.evaluation}
    save_model(policy, stage, at, metrics)
    accuracy = metrics.get("eval/accuracy", metrics["kto/accuracy"])
    return StageOutcome(
        f"{num_rows(train, 'completion')}, {counted(result.steps, 'step')}, accuracy {accuracy:.3f}", metrics
    )
