"""What the stages that learn from pairs share: the policy, its rows, and how they end."""

from __future__ import annotations

from typing import Any

from rlhf.config.stages import CPOStage, DPOStage, ORPOStage, SimPOStage
from rlhf.data.datasets import PreferenceDataset
from rlhf.data.message_text import counted
from rlhf.data.streaming import StreamingPreferenceDataset
from rlhf.models.load import disable_dropout
from rlhf.models.policy import PolicyModel
from rlhf.pipeline.stages.context import StageContext, StageOutcome, seed_of
from rlhf.pipeline.stages.inputs import (
    choose_path,
    load_for_training,
    num_rows,
    open_datasets,
    penalties_of,
    save_model,
)
from rlhf.training.pair_trainer import PairsTrainer


def open_pairs(stage: Any, at: StageContext, *, may_stream: bool) -> tuple[PolicyModel, Any, Any]:
    """The policy, its pairs and the held-out ones."""
    policy = load_for_training(stage.model, at, seed=seed_of(stage.seed))
    disable_dropout(policy.model)  # both sides of a pair, and a reference, are compared without noise
    streaming = StreamingPreferenceDataset if may_stream else None
    train, held_out = open_datasets(stage, at, PreferenceDataset, streaming, policy, {"truncation": stage.truncation})
    choose_path(policy, train, at)
    return policy, train, held_out


PairsStage = DPOStage | SimPOStage | CPOStage | ORPOStage


def train_pairs(trainer: PairsTrainer[Any], train: Any, stage: PairsStage, at: StageContext) -> StageOutcome:
    """Train, save the policy, and say how well it tells pairs apart."""
    trainer.penalties += penalties_of(stage, trainer.policy, at)
    result = trainer.train()
    metrics = {**result.metrics, **result.evaluation}
    save_model(trainer.policy, stage, at, metrics)
    accuracy = metrics.get("eval/accuracy", metrics[f"{trainer.name}/accuracy"])
    margin = metrics.get("eval/reward_margin", metrics[f"{trainer.name}/reward_margin"])
    return StageOutcome(
        f"{num_rows(train, 'pair')}, {counted(result.steps, 'step')}, accuracy {accuracy:.3f}, margin {margin:.2f}",
        metrics,
    )
