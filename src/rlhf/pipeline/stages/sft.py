"""Supervised fine-tuning."""

from __future__ import annotations

import math
from typing import Any

from rlhf.config.stages import SFTStage
from rlhf.data.datasets import SFTDataset
from rlhf.data.message_text import counted
from rlhf.data.streaming import StreamingSFTDataset
from rlhf.pipeline.stages.context import StageContext, StageOutcome, seed_of
from rlhf.pipeline.stages.inputs import (
    choose_path,
    load_for_training,
    num_rows,
    open_datasets,
    penalties_of,
    save_model,
)
from rlhf.training.sft import SFTTrainer


def run_sft(stage: SFTStage, at: StageContext) -> StageOutcome:
    """A fine-tuned policy."""
    policy = load_for_training(stage.model, at, seed=seed_of(stage.seed))
    options: dict[str, Any] = {"truncation": stage.truncation, "train_on": stage.train_on}
    train, held_out = open_datasets(stage, at, SFTDataset, StreamingSFTDataset, policy, options)
    choose_path(policy, train, at)
    trainer = SFTTrainer(policy, stage, train, held_out, log=at.log, checkpoint_dir=at.folder)
    trainer.penalties += penalties_of(stage, policy, at)
    result = trainer.train()
    metrics = {**result.metrics, **result.evaluation}
    save_model(policy, stage, at, metrics)
    loss = metrics.get("eval/loss", metrics.get("loss/nll", metrics["loss/train"]))
    uniform = math.log(policy.model.config.get_text_config().vocab_size)
    if loss > uniform:
        at.log.alarm(
            f"{at.name}: the loss is {loss:.2f} nats per token, and guessing evenly among all tokens would give {uniform:.2f}. Does the "
            "tokenizer belong to this model, and is the text of the kind that it was trained on?"
        )
    told = f" ({len(held_out):,} more held out)" if stage.eval_frac and held_out is not None else ""
    return StageOutcome(
        f"{num_rows(train, 'row')}{told}, {counted(result.steps, 'step')}, loss {loss:.3f} nats/token", metrics
    )
