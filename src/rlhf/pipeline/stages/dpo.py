"""Direct preference optimisation."""

from __future__ import annotations

from typing import Any

from rlhf.config.stages import DPOStage
from rlhf.data.datasets import PreferenceDataset
from rlhf.data.words import counted
from rlhf.models.load import disable_dropout
from rlhf.pipeline.stages.context import StageContext, StageOutcome, seed_of
from rlhf.pipeline.stages.inputs import choose_path, load_for_training, num_rows, open_datasets, save_model
from rlhf.training.dpo import DPOTrainer


def run_dpo(stage: DPOStage, at: StageContext) -> StageOutcome:
    """A policy that learned from pairs directly."""
    policy = load_for_training(stage.model, at, seed=seed_of(stage.seed))
    options: dict[str, Any] = {"truncation": stage.truncation}
    disable_dropout(policy.model)  # the reference that it is compared with has none
    train, held_out = open_datasets(stage, at, PreferenceDataset, None, policy, options)
    choose_path(policy, train, at)
    result = DPOTrainer(policy, stage, train, held_out, log=at.log, checkpoint_dir=at.folder).train()
    metrics = {**result.metrics, **result.evaluation}
    save_model(policy, stage, at, metrics)
    accuracy = metrics.get("eval/accuracy", metrics["dpo/accuracy"])
    margin = metrics.get("eval/reward_margin", metrics["dpo/reward_margin"])
    return StageOutcome(
        f"{num_rows(train, 'pair')}, {counted(result.steps, 'step')}, accuracy {accuracy:.3f}, margin {margin:.2f}",
        metrics,
    )
