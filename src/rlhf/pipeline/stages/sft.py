"""Supervised fine-tuning."""

from __future__ import annotations

from typing import Any

from rlhf.config.recipe import SFTStage
from rlhf.data.datasets import SFTDataset
from rlhf.data.streaming import StreamingSFTDataset
from rlhf.pipeline.stages.context import StageContext, StageOutcome, seed_of
from rlhf.pipeline.stages.inputs import choose_path, load_for_training, num_rows, open_datasets, save_model
from rlhf.training.sft import SFTTrainer


def run_sft(stage: SFTStage, at: StageContext) -> StageOutcome:
    """A fine-tuned policy."""
    policy = load_for_training(stage.model, at, seed=seed_of(stage.seed))
    options: dict[str, Any] = {"max_length": stage.max_length, "truncation": stage.truncation, "score": stage.score}
    train, held_out = open_datasets(stage, at, SFTDataset, StreamingSFTDataset, policy, options)
    choose_path(policy, train, at)
    trainer = SFTTrainer(policy, stage, train, held_out, log=at.log, checkpoint_dir=at.folder)
    result = trainer.train()
    metrics = {**result.metrics, **result.evaluation}
    save_model(policy, stage, at, metrics)
    loss = metrics.get("eval/loss", metrics["loss/train"])
    return StageOutcome(f"{num_rows(train)} rows, {result.steps} steps, loss {loss:.3f} nats/token", metrics)
