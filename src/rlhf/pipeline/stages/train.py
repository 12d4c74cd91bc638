"""Training stages: the trainer that the stage's class names, run on the inputs that were opened for it."""

from __future__ import annotations

import importlib
from typing import Any

from rlhf.config.stage_inputs import PolicyTraining
from rlhf.config.stages import BY_KIND
from rlhf.pipeline.stages.context import StageContext
from rlhf.pipeline.stages.inputs import penalties_of
from rlhf.training.loop import TrainResult


def train(stage: Any, at: StageContext, *given: Any, **named: Any) -> tuple[TrainResult, dict[str, Any]]:
    """Train to the end; the result, and the metrics of the last step and of the evaluation.

    Args:
        stage: Settings; the trainer's config.
        at: Where the stage works.
        given: The trainer's model, and behind its config whatever it takes by place.
        named: What it takes by name, see ``rlhf.training.inputs``.
    """
    model, *others = given
    trainer = trainer_of(stage.kind)(model, stage, *others, log=at.log, checkpoint_dir=at.folder, **named)
    trainer.keeps_shards = True  # until `save_model`
    if isinstance(stage, PolicyTraining):
        trainer.penalties += penalties_of(stage, model, at)
    result: TrainResult = trainer.train()
    return result, {**result.metrics, **result.evaluation}


def trainer_of(kind: str) -> Any:
    """The class that ``StageConfig.trainer`` names."""
    module, _, name = BY_KIND[kind].trainer.partition(":")
    return getattr(importlib.import_module(module), name)
